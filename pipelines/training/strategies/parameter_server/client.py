"""A worker's end: weights come in, gradients go out, to all servers at once, whatever happens to a server.

One thread owns a client. Nothing happens between its calls, but what was asked travels on in the sockets' buffers, so
that a read is answered while the caller computes.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any

import numpy as np

from pipelines.training.gang.context import Array
from pipelines.training.strategies.parameter_server import frames
from pipelines.training.strategies.parameter_server.frames import Frame, Kind, Part
from pipelines.training.strategies.parameter_server.layout import Layout
from pipelines.training.strategies.parameter_server.limits import Limits
from pipelines.training.strategies.parameter_server.requests import Requests
from pipelines.training.strategies.parameter_server.views import Address

PIECE_ROWS = 1 << 18
WINDOW = 2
"""Updates of one client on their way: the next is computed while servers apply the last; more only makes them stale."""


@dataclass(eq=False)
class Reading:
    """Weights on their way, and the ticket for the update that comes of them.

    weights : ndarray of float32, by the places that were asked for; complete once `Client.wait` has returned
    slices : shard, start and stop among the places, and keys (int32) there
    missing : answers that are to come; None until the ticket is there
    """

    ticket: int
    weights: Array
    slices: list[tuple[int, int, int, Array]]
    missing: int | None = None


class Client:
    """A connection to all servers and the arbiter; close it with ``with``.

    Parameters
    ----------
    arbiter : (host, port)
    token : bytes
    layout : Layout
    limits : Limits
    name : int
        Greater than 0, of no other client of the run, dead ones included; by default a random one.
    aborted : callable
        Looked at twice a second while waiting: returns why to leave (then a ``GangError``), or nothing.

    Raises
    ------
    DeadlineError
        Not all servers came within ``limits.start_s``. Every method raises it when its wait has reached its limit.
    GangError
        The run has failed, or the arbiter is gone. Every method raises it.
    """

    def __init__(
        self,
        arbiter: Address,
        token: bytes,
        layout: Layout,
        *,
        limits: Limits | None = None,
        name: int | None = None,
        aborted: Callable[[], str] = lambda: "",
    ) -> None:
        self._layout, self._limits = layout, limits or Limits()
        self.name = name or 1 + secrets.randbelow(2**62)
        self._updates: Counter[int] = Counter()
        self._uncommitted: dict[int, int] = {}
        self._requests = Requests(arbiter, token, self.name, self._limits, aborted)
        try:
            self._requests.meet()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Leave; what was pushed and is not committed may or may not be applied."""
        self._requests.close()

    @property
    def halted(self) -> bool:
        """Whether the arbiter's owner wants no more updates; looked at while waiting, and by `poll`."""
        return self._requests.halted

    @property
    def traffic(self) -> tuple[int, int]:
        """Bytes that came (weights), and that went (gradients), words included."""
        return self._requests.traffic

    def read(self, places: Array) -> Reading:
        """Ask for a ticket, and for weights as soon as it is given; returns at once.

        Parameters
        ----------
        places : ndarray of int64
            Ascending, each once (`Layout.place`).
        """
        reading = self._reading(places)
        self._requests.ask_arbiter(Kind.OPEN, reading.ticket, lambda _: self._pull(reading))
        return reading

    def look(self, places: Array) -> Array:
        """Return weights (float32) without a ticket: for whoever does not mean to update them.

        Parameters
        ----------
        places : ndarray of int64
            As for `read`.
        """
        reading = self._reading(places)
        self._pull(reading)
        return self.wait(reading)

    def poll(self, timeout_s: float = 0.0) -> None:
        """Hear what has come, by default without waiting: a ticket leads to its reading before the caller computes."""
        self._requests.poll(timeout_s)

    def wait(self, reading: Reading) -> Array:
        """Return the weights of a reading."""
        self._requests.until(lambda: reading.missing is not None, self._patience_s, "a turn to read")
        self._requests.until(lambda: reading.missing == 0, self._limits.failover_s, "weights")
        return reading.weights

    def push(self, reading: Reading, gradient: Array, note: bytes = b"") -> int:
        """Wait for the turn of a reading's update, and send it; returns its number in the run.

        The update is applied exactly once, also when servers are lost. `flush` waits until all servers have it; with
        `WINDOW` updates on their way, so does this.

        Parameters
        ----------
        gradient : ndarray of float32
            By the reading's places.
        note : bytes
            For the arbiter's owner, who gets it when all servers have the update.
        """
        self._requests.until(lambda: len(self._uncommitted) < WINDOW, self._limits.failover_s, "earlier updates")
        turn = frames.turn_of(self._ask(Kind.TURN, reading.ticket, "a turn to update"))
        self._uncommitted[reading.ticket] = len(reading.slices)
        for shard, start, stop, keys in reading.slices:
            self._updates[shard] += 1
            head = frames.UPDATE.pack(turn, self._updates[shard])
            parts = (head, frames.view(keys), frames.view(gradient[start:stop].astype(np.float32, copy=False)))
            self._requests.ask_shard(Kind.PUSH, shard, parts, lambda _: self._count_down(reading.ticket, note))
        if not reading.slices:
            self._commit(reading.ticket, note)
        return turn

    def flush(self) -> None:
        """Wait until all servers, replicas included, have all updates, and the arbiter knows."""
        self._requests.until(lambda: not self._uncommitted, self._limits.failover_s, "updates to be applied")
        # Whoever closes a connection with words unread takes its own last words back: commits would be lost.
        self._ask(Kind.HEARD, self._requests.next(), "the arbiter to hear of updates")

    def pause(self) -> bytes:
        """Keep every client from updating, and wait until what is on its way is committed. Own updates come first.

        Returns what the arbiter's owner has to say about this state.
        """
        self.flush()
        frame = self._ask(Kind.PAUSE, self._requests.next(), "updates to pause")
        return bytes(frame.body)

    def resume(self) -> None:
        """End a `pause`."""
        self._requests.ask_arbiter(Kind.RESUME, 0)

    def snapshot(self, on_paused: Callable[[bytes], object] = lambda said: None) -> Iterator[tuple[int, Array, Array]]:
        """Pause, yield all rows that are not zero in pieces, and resume: a state between two updates.

        Parameters
        ----------
        on_paused : callable
            Called with what `pause` returns, before the first piece.

        Yields
        ------
        shard : int
        keys : ndarray of int32
            Numbers in the shard (a place minus the shard's first).
        rows : ndarray of float32, shape (keys, columns of the rule)
        """
        on_paused(self.pause())
        try:
            for shard in range(self._layout.shards):
                length = self._layout.length(shard)
                for start in range(0, length, PIECE_ROWS):
                    part = frames.RANGE.pack(start, min(start + PIECE_ROWS, length))
                    keys, rows = frames.any_rows_of(self._call(Kind.READ, shard, (part,)))
                    if len(keys):
                        yield shard, keys, rows
        finally:
            self.resume()

    def restore(self, pieces: Iterable[tuple[int, Array, Array]]) -> None:
        """Set rows as a `snapshot` has yielded them, here and on the replicas; the rest stays."""
        for shard, keys, rows in pieces:
            body = (frames.view(keys.astype(np.int32)), frames.view(rows.astype(np.float32)))
            self._call(Kind.WRITE, shard, (frames.KEYS.pack(len(keys)), *body))

    def stats(self) -> list[dict[str, Any]]:
        """Ask every server that is there how it is, by number; one that is lost meanwhile is left out."""
        found: dict[int, Frame] = {}
        servers = sorted(self._requests.view.servers)
        for server in servers:
            self._requests.ask_server(Kind.STATS, server, partial(found.__setitem__, server))

        def there() -> bool:
            return all(server in found or server not in self._requests.view.servers for server in servers)

        self._requests.until(there, self._limits.failover_s, "the servers' statistics")
        return [frames.from_json(found[server].body) for server in servers if server in found]

    @property
    def _patience_s(self) -> float:
        """For the arbiter, which itself gives up after ``step_s``."""
        return self._limits.step_s + self._limits.failover_s

    def _reading(self, places: Array) -> Reading:
        cuts = self._layout.cut(places)
        slices = []
        for shard, first in enumerate(self._layout.bounds[:-1]):
            start, stop = cuts[shard], cuts[shard + 1]
            if start < stop:
                slices.append((shard, start, stop, (places[start:stop] - first).astype(np.int32)))
        return Reading(self._requests.next(), np.empty(len(places), np.float32), slices)

    def _pull(self, reading: Reading) -> None:
        reading.missing = len(reading.slices)
        for shard, start, stop, keys in reading.slices:

            def fill(frame: Frame, start: int = start, stop: int = stop) -> None:
                assert reading.missing is not None
                reading.weights[start:stop] = np.frombuffer(frame.body, np.float32)
                reading.missing -= 1

            self._requests.ask_shard(Kind.PULL, shard, (frames.view(keys),), fill)

    def _ask(self, kind: Kind, number: int, what: str) -> Frame:
        """Ask the arbiter, and wait for the answer."""
        found: list[Frame] = []
        self._requests.ask_arbiter(kind, number, found.append)
        self._requests.until(lambda: bool(found), self._patience_s, what)
        return found[0]

    def _call(self, kind: Kind, shard: int, parts: tuple[Part, ...]) -> Frame:
        """Ask a shard's primary, and wait for the answer."""
        found: list[Frame] = []
        self._requests.ask_shard(kind, shard, parts, found.append)
        self._requests.until(lambda: bool(found), self._limits.failover_s, "rows")
        return found[0]

    def _count_down(self, ticket: int, note: bytes) -> None:
        self._uncommitted[ticket] -= 1
        if not self._uncommitted[ticket]:
            self._commit(ticket, note)

    def _commit(self, ticket: int, note: bytes) -> None:
        del self._uncommitted[ticket]
        self._requests.ask_arbiter(Kind.COMMIT, ticket, body=note)
