"""What a worker of an asynchronous training does: take work, compute at the weights that came with it, give it back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Any, Protocol

import numpy as np

from pipelines.training.gang import Regroup, StopRequested, wire
from pipelines.training.gang.context import Array
from pipelines.training.gang.mesh import PeerError
from pipelines.training.strategies.asynchronous.course import Unit
from pipelines.training.strategies.asynchronous.hub import Hub, Work

_LOOK_S = 0.2

Compute = Callable[[Array, Sequence[Unit]], bytes]
"""From weights and units to what is given back."""
Load = Callable[[int, dict[str, Any]], None]
"""Read a lane that came over from another rank."""


class Port(Protocol):
    """A worker's way to the hub."""

    def take(self) -> Work: ...

    def give(self, payload: bytes) -> None: ...

    def close(self, error: BaseException | None = None) -> None:
        """Leave, for an error if there is one; whoever waits in `take` is woken."""
        ...


class HerePort:
    """The hub is in this process."""

    def __init__(self, hub: Hub, rank: int, worker: int) -> None:
        self._hub, self._rank, self._worker = hub, rank, worker
        self._at: Any = None

    def take(self) -> Work:
        """See `Hub.take`."""
        self._at = self._hub.take(self._rank, self._worker)
        work: Work = self._at[0]
        if work.kind != "units":
            self._hub.heard(self._rank, self._worker)
        return work

    def give(self, payload: bytes) -> None:
        """See `Hub.give`."""
        work, ticket = self._at
        self._hub.give(self._rank, work, ticket, payload)

    def close(self, error: BaseException | None = None) -> None:
        """See `Port.close`: the hub's owner raises the error."""
        if error is not None:
            self._hub.lose(self._rank, self._worker, error)


class FarPort:
    """The hub is in rank 0's process."""

    def __init__(
        self,
        address: tuple[str, int],
        token: bytes,
        rank: int,
        worker: int,
        *,
        step_s: float,
        keep: Callable[[int, bytes], None],
        leaving: Callable[[], bool],
    ) -> None:
        self._line = wire.dial(address, token, {"rank": rank, "worker": worker}, step_s)
        self._keep, self._leaving = keep, leaving

    def take(self) -> Work:
        """Wait for the next work, and keep the states that come before it."""
        while True:
            frame = self._line.receive(_LOOK_S)
            if self._leaving():
                raise Regroup
            if frame is None:
                continue
            header, payload = frame
            if header["kind"] == "keep":
                self._keep(int(header["step"]), payload)
                continue
            load = header["load"]
            units = tuple(Unit(*each) for each in header["units"])
            return Work(header["kind"], units, payload, None if load is None else (int(load[0]), load[1]))

    def give(self, payload: bytes) -> None:
        """Send what was computed."""
        self._line.send({"kind": "given"}, payload)

    def close(self, error: BaseException | None = None) -> None:
        """See `Port.close`."""
        self._line.close()


class Worker:
    """All workers of a rank: a thread each.

    Parameters
    ----------
    ports : sequence of Port
    compute : callable
    load : callable
    leaving : callable
        Whether the formation is over.
    """

    def __init__(self, ports: Sequence[Port], compute: Compute, load: Load, leaving: Callable[[], bool]) -> None:
        self._ports, self._compute, self._load, self._leaving = ports, compute, load, leaving
        self._loading = threading.Lock()

    def run(self) -> str:
        """Work until the hub says a word: ``end``, ``stop`` or ``regroup``.

        Raises
        ------
        StopRequested, Regroup
            Everybody leaves.
        PeerError
            The hub is gone.
        """
        with ThreadPoolExecutor(len(self._ports), thread_name_prefix="worker") as pool:
            futures = [pool.submit(self._live, port) for port in self._ports]
            wait(futures, return_when=FIRST_EXCEPTION)
            errors = [error for future in futures if future.done() and (error := future.exception())]
            for port in self._ports if errors else ():
                port.close(errors[0])
        if errors:
            raise errors[0]
        words = {future.result() for future in futures}
        if "stop" in words:
            raise StopRequested
        if "regroup" in words or self._leaving():
            raise Regroup
        return "end"

    def _live(self, port: Port) -> str:
        while True:
            try:
                work = port.take()
                if work.kind != "units":
                    return work.kind
                if work.load is not None:
                    with self._loading:
                        self._load(*work.load)
                port.give(self._compute(np.frombuffer(work.weights), work.units))
            except (OSError, wire.Malformed) as error:
                if self._leaving():
                    raise Regroup from error
                raise PeerError(f"has left the training ({error})", on="rank 0") from error
