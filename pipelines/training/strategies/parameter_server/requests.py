"""How is a question answered although servers come and go? It is kept, and asked again, until it is.

When a shard's primary changes, or the connection to it breaks, everything that was asked of it and not answered is
asked again, in its order; servers apply an update once. A wait that reaches its limit is an error that names a server.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from pipelines.errors import DataError, DeadlineError, GangError
from pipelines.training.strategies.parameter_server import frames
from pipelines.training.strategies.parameter_server.frames import Frame, Kind, Part
from pipelines.training.strategies.parameter_server.limits import Limits
from pipelines.training.strategies.parameter_server.streams import Hub, Stream
from pipelines.training.strategies.parameter_server.views import Address, View

_RETRY_S = 0.05
_LOOK_S = 0.5
"""How often a wait looks whether it was aborted."""
_ON = "parameter server's client"

Answered: TypeAlias = Callable[[Frame], object]


@dataclass(eq=False)
class _Request:
    """What was asked of a shard's primary, and not answered yet."""

    kind: Kind
    shard: int
    number: int
    parts: tuple[Part, ...]
    answered: Answered
    stream: Stream | None = None


class Requests:
    """A client's questions on their way. Owned by one thread.

    Parameters
    ----------
    arbiter : (host, port)
    token : bytes
    name : int
        The client's.
    limits : Limits
    aborted : callable
        Returns why all waits are to end, or nothing.
    """

    def __init__(
        self, arbiter: Address, token: bytes, name: int, limits: Limits, aborted: Callable[[], str] = lambda: ""
    ) -> None:
        self._limits, self._aborted = limits, aborted
        self._hello = frames.to_json({"role": "client", "name": name})
        self._number = 0
        self._requests: dict[int, _Request] = {}
        self._questions: dict[int, Answered] = {}
        self._links: dict[int, Stream] = {}
        self._again: set[int] = set()
        self._again_at = 0.0
        self._view: View | None = None
        self.halted = False
        """Whether the arbiter has said that no more updates are wanted."""
        self._hub = Hub(token)
        self._arbiter = self._hub.dial(arbiter, self._hello)

    @property
    def view(self) -> View:
        """Who holds what, as far as it is known here."""
        assert self._view is not None
        return self._view

    def close(self) -> None:
        """End all connections."""
        self._hub.__exit__(None, None, None)

    def meet(self) -> None:
        """Wait until all servers are there."""
        self.until(lambda: self._view is not None, self._limits.start_s, "the servers of the weights to come")

    def next(self) -> int:
        """Return a number that was not used before, larger than all."""
        self._number += 1
        return self._number

    @property
    def traffic(self) -> tuple[int, int]:
        """Bytes that came, and that went."""
        return self._hub.received_bytes, self._hub.sent_bytes

    def ask_arbiter(self, kind: Kind, number: int, answered: Answered | None = None, body: bytes = b"") -> None:
        """Say something to the arbiter; `answered` is called with its answer, while polling."""
        if answered is not None:
            self._questions[number] = answered
        self._hub.send(self._arbiter, kind, 0, 0, number, body)

    def ask_server(self, kind: Kind, server: int, answered: Answered) -> None:
        """Ask a server for itself, once: without an answer if it is lost."""
        number = self.next()
        self._questions[number] = answered
        self._hub.send(self._link(server), kind, 0, 0, number)

    def ask_shard(self, kind: Kind, shard: int, parts: tuple[Part, ...], answered: Answered) -> None:
        """Ask a shard's primary, whoever that is in the end."""
        request = _Request(kind, shard, self.next(), parts, answered)
        self._requests[request.number] = request
        if shard not in self._again:  # else it goes out behind those that wait
            self._send(request)

    def until(self, done: Callable[[], bool], limit_s: float, what: str) -> None:
        """Hear what comes until `done`; `what` is waited for.

        Raises
        ------
        DeadlineError
            After `limit_s`, or when the arbiter says that others take too long.
        GangError
            The run has failed, the arbiter is gone, or the wait was aborted.
        """
        end = time.monotonic() + limit_s
        while not done():
            left = end - time.monotonic()
            if left <= 0:
                raise DeadlineError(f"waited {limit_s:g} s for {what}{self._name_first()}", on=_ON)
            if reason := self._aborted():
                raise GangError(f"left the parameter servers: {reason}", on=_ON)
            self.poll(min(left, _RETRY_S if self._again else _LOOK_S))

    def poll(self, timeout_s: float) -> None:
        """Hear what has come, and wait for it for at most `timeout_s`."""
        for stream, frame in self._hub.poll(timeout_s):
            if stream is self._arbiter:
                self._obey(frame)
            elif frame is None:
                self._ask_again(request.shard for request in self._requests.values() if request.stream is stream)
            else:
                self._take(stream, frame)
        if self._again and time.monotonic() >= self._again_at:
            again, self._again = self._again, set()
            for request in list(self._requests.values()):
                if request.shard in again:
                    self._send(request)

    def _send(self, request: _Request) -> None:
        holders = self.view.shards[request.shard]
        request.stream = self._link(holders.primary)
        self._hub.send(request.stream, request.kind, request.shard, holders.term, request.number, *request.parts)

    def _link(self, server: int) -> Stream:
        if server not in self._links or self._links[server].closed:
            self._links[server] = self._hub.dial(self.view.servers[server], self._hello)
        return self._links[server]

    def _obey(self, frame: Frame | None) -> None:
        if frame is None:
            raise GangError("the arbiter of the parameter servers is gone", on=_ON)
        if frame.kind == Kind.FAILED:
            text = frame.body.decode()
            raise DeadlineError(text, on=_ON) if frame.number else GangError(text, on="parameter servers")
        if frame.kind == Kind.VIEW:
            self._adopt(View.from_json(frames.from_json(frame.body)))
        elif frame.kind == Kind.STOP:
            self.halted = True
        elif frame.number in self._questions:
            self._questions.pop(frame.number)(frame)

    def _adopt(self, view: View) -> None:
        before, self._view = self._view, view
        for shard, held in enumerate(view.shards):
            if before is not None and held.primary != before.shards[shard].primary:
                self._again.add(shard)
                self._again_at = 0.0
        for server in set(self._links) - set(view.servers):
            self._hub.close(self._links.pop(server))

    def _take(self, stream: Stream, frame: Frame) -> None:
        if frame.number in self._questions:
            self._questions.pop(frame.number)(frame)
            return
        request = self._requests.get(frame.number)
        if request is None or request.stream is not stream:
            return  # asked again elsewhere, and answered or on its way
        if frame.kind == Kind.MOVED:
            self._ask_again([request.shard])
        elif frame.kind == Kind.FAILED:
            raise DataError(frame.body.decode(), on=f"shard {request.shard} of the weights")
        else:
            del self._requests[frame.number]
            request.answered(frame)

    def _ask_again(self, shards: Iterable[int]) -> None:
        """Ask everything of these shards again, soon: the arbiter may know more by then."""
        self._again.update(shards)
        self._again_at = time.monotonic() + _RETRY_S

    def _name_first(self) -> str:
        """Name the server that has not answered for longest."""
        if self._view is None or not self._requests:
            return ""
        first = next(iter(self._requests.values()))
        server = self._view.shards[first.shard].primary
        host, port = self._view.servers[server]
        return f": server {server} at {host}:{port} does not answer for shard {first.shard}"
