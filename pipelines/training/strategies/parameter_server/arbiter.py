"""Who decides? One arbiter, in the process that owns the run: which server holds what, and whose turn it is.

Two servers can't tell which of them was cut off, so neither decides: both ask here. The arbiter sees none of the
weights and none of the gradients. It has no thread of its own: its owner polls it. If its process ends, the run ends.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from pipelines.errors import DeadlineError, GangError
from pipelines.training.gang import wire
from pipelines.training.gang.mesh import listen
from pipelines.training.strategies.clock import Clock
from pipelines.training.strategies.parameter_server import frames
from pipelines.training.strategies.parameter_server.frames import Frame, Kind
from pipelines.training.strategies.parameter_server.limits import Limits
from pipelines.training.strategies.parameter_server.streams import Hub, Stream
from pipelines.training.strategies.parameter_server.turns import Question, Turns
from pipelines.training.strategies.parameter_server.views import (
    Address,
    View,
    first_view,
    refilled,
    relieved,
    unlinked,
    with_synced,
    without,
)

logger = logging.getLogger(__name__)

_QUESTIONS = (Kind.OPEN, Kind.TURN, Kind.PAUSE)
_FAREWELL_S = 2.0


@dataclass
class _Server:
    stream: Stream
    address: Address
    heard: float


class Arbiter:
    """Accepts servers and clients. Owned by one thread, which calls `poll`; close it with ``with``.

    Parameters
    ----------
    host : str
        Address to listen at.
    token : bytes
    servers : int
        How many there are to be; each serves one shard.
    replicas : bool
        Whether every shard is kept by a second server too.
    staleness : int or None
        The bound (`clock`); None: workers never wait for each other.
    limits : Limits
    first_turn : int
        The number of the first update: those before it are in a snapshot that is restored.
    on_view : callable, optional
        Called with every new `View`, so that the owner may replace a server that is not in it.
    on_commit : callable, optional
        Called with the note of every update that all servers have (`Client.push`), once.
    on_pause : callable, optional
        Returns what a client is told that has paused all updates: the owner's own state between two of them.
    """

    def __init__(
        self,
        host: str,
        token: bytes,
        *,
        servers: int,
        replicas: bool,
        staleness: int | None,
        limits: Limits | None = None,
        first_turn: int = 0,
        on_view: Callable[[View], object] | None = None,
        on_commit: Callable[[bytes], object] | None = None,
        on_pause: Callable[[], bytes] | None = None,
    ) -> None:
        listener = listen(host)
        self.address: Address = (host, int(listener.getsockname()[1]))
        self._hub = Hub(token, listener)
        self._count, self._replicas, self._limits = servers, replicas, limits or Limits()
        self._on_view, self._on_commit, self._on_pause = on_view, on_commit, on_pause
        self._turns = Turns(Clock(staleness, first_turn, first_turn))
        self._halted = False
        self._clients: dict[int, Stream] = {}
        self._servers: dict[int, _Server] = {}
        self._came = 0
        self._began = time.monotonic()
        self.view: View | None = None

    def __enter__(self) -> Arbiter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._hub.__exit__(kind, error, tb)

    @property
    def histogram(self) -> Counter[int]:
        """Updates so far, by their staleness."""
        return self._turns.clock.histogram

    @property
    def committed(self) -> int:
        """Updates that all servers have, those before the first turn included."""
        return self._turns.clock.committed

    def poll(self, timeout_s: float) -> None:
        """Hear servers and clients for at most `timeout_s`, and answer.

        Raises
        ------
        GangError
            A shard has lost all its complete copies. Clients and servers have been told.
        DeadlineError
            Not all servers came in time.
        """
        try:
            for stream, frame in self._hub.poll(timeout_s):
                if frame is None:
                    self._ended(stream)
                elif not stream.closed:
                    self._hear(stream, frame)
            self._look(time.monotonic())
        except (GangError, DeadlineError) as error:
            for stream in self._hub.streams:
                self._hub.send(stream, Kind.FAILED, 0, 0, 0, str(error).encode())
            self._see_off(self._hub.streams)
            raise
        self._settle()

    def halt(self) -> None:
        """Tell the clients, also those that are to come, that no more updates are wanted (`Client.halted`)."""
        if not self._halted:
            self._halted = True
            for stream in self._clients.values():
                self._hub.send(stream, Kind.STOP, 0, 0, 0)

    def stop(self) -> None:
        """Tell the servers that the work is done, and see them leave, for two seconds at most."""
        streams = {server.stream for server in self._servers.values()}
        for stream in streams:
            self._hub.send(stream, Kind.STOP, 0, 0, 0)
        self._see_off(streams)

    def _see_off(self, streams: set[Stream]) -> None:
        """Wait for the others to close: a socket that is closed with words unread takes its own last words back."""
        end = time.monotonic() + _FAREWELL_S
        while any(not stream.closed for stream in streams) and time.monotonic() < end:
            self._hub.poll(0.05)

    def _hear(self, stream: Stream, frame: Frame) -> None:
        try:
            if not stream.role:
                self._welcome(stream, frame)
            elif stream.role == "server":
                self._hear_server(stream, frame)
            else:
                self._hear_client(stream, frame)
        except (wire.Malformed, LookupError, TypeError, ValueError) as error:
            logger.warning("a connection was closed that does not speak as it should: %r", error)
            self._hub.close(stream)
            self._ended(stream)

    def _welcome(self, stream: Stream, frame: Frame) -> None:
        hello: dict[str, Any] = frames.from_json(frame.body)
        if hello["role"] == "client":
            name = int(hello["name"])
            if name in self._clients or name < 1:
                raise wire.Malformed(f"a second client of the name {name}")
            stream.role, stream.name, self._clients[name] = "client", name, stream
            if self.view is not None:
                self._show(stream, self.view)
            if self._halted:
                self._hub.send(stream, Kind.STOP, 0, 0, 0)
            return
        host, port = hello["address"]
        stream.role, stream.server = "server", self._came
        self._came += 1
        address = (str(host), int(port))
        self._servers[stream.server] = _Server(stream, address, time.monotonic())
        logger.info("server %d has come, at %s:%d", stream.server, *address)
        if self.view is not None:
            view = View(self.view.shards, {**self.view.servers, stream.server: address})
            self._change(refilled(view) if self._replicas else view)
        elif len(self._servers) == self._count:
            # Whoever left before all had come has left a gap in the numbers.
            self._servers = dict(enumerate(self._servers.values()))
            for server, each in self._servers.items():
                each.stream.server = server
            self._came = self._count
            addresses = [each.address for each in self._servers.values()]
            self._change(first_view(addresses, replicas=self._replicas))

    def _hear_server(self, stream: Stream, frame: Frame) -> None:
        self._servers[stream.server].heard = time.monotonic()
        if frame.kind == Kind.BEAT:
            self._hub.send(stream, Kind.BEAT, 0, 0, frame.number)
        elif frame.kind == Kind.SYNCED and self.view is not None:
            logger.info("the replica of shard %d is complete", frame.shard)
            self._change(with_synced(self.view, frame.shard, frame.term))
        elif frame.kind == Kind.BROKEN and self.view is not None:
            self._change(unlinked(self.view, frame.shard, frame.term))

    def _hear_client(self, stream: Stream, frame: Frame) -> None:
        if frame.kind in _QUESTIONS:
            self._turns.ask(Question(stream.name, Kind(frame.kind), frame.number, time.monotonic()))
        elif frame.kind == Kind.COMMIT:
            self._turns.clock.commit((stream.name, frame.number))
            if frame.body and self._on_commit is not None:
                self._on_commit(bytes(frame.body))
        elif frame.kind == Kind.RESUME:
            self._turns.resume(stream.name)
        elif frame.kind == Kind.HEARD:
            self._hub.send(stream, Kind.HEARD, 0, 0, frame.number)

    def _ended(self, stream: Stream) -> None:
        if stream.role == "server":
            self._lose(stream.server, "its connection has ended")
        elif stream.role == "client":
            del self._clients[stream.name]
            self._turns.leave(stream.name)

    def _look(self, now: float) -> None:
        """See who is silent, and who has waited too long. All that has come was read before."""
        if self.view is None and now > self._began + self._limits.start_s:
            raise DeadlineError(
                f"the servers of the weights did not come within {self._limits.start_s:g} s",
                expected=f"{self._count} servers",
                found=str(len(self._servers)),
                remedy="Look at the logs of the workers that were to start them.",
            )
        for number, server in list(self._servers.items()):
            if now > server.heard + self._limits.silence_s:
                self._hub.close(server.stream)
                self._lose(number, f"nothing was heard of it for {self._limits.silence_s:g} s")
        for question, why in self._turns.give_up(now, self._limits.step_s):
            self._hub.send(self._clients[question.client], Kind.FAILED, 0, 0, question.number, why.encode())

    def _lose(self, number: int, why: str) -> None:
        lost = self._servers.pop(number, None)
        if lost is None:
            return
        level = logging.INFO if self._halted else logging.WARNING  # at the end servers may go with their ranks
        logger.log(level, "server %d, at %s:%d, is lost: %s", number, *lost.address, why)
        if self.view is not None:
            view = without(self.view, number)
            self._change(refilled(view) if self._replicas else view)

    def _change(self, view: View) -> None:
        if view == self.view:
            return
        self.view = view
        for stream in self._hub.streams:
            if stream.role:
                self._show(stream, view)
        self._turns.held = relieved(view) is not None
        if self._on_view is not None:
            self._on_view(view)

    def _show(self, stream: Stream, view: View) -> None:
        you = {"you": stream.server} if stream.role == "server" else {}
        self._hub.send(stream, Kind.VIEW, 0, 0, 0, frames.to_json(view.to_json() | you))

    def _settle(self) -> None:
        """Answer what can be answered, and let a replacement take its share once no update is on its way."""
        if self._turns.held and self._turns.clock.quiet and self.view is not None:
            # Both copies are the same now: they may swap their parts.
            self._change(relieved(self.view) or self.view)
        for question, answer in self._turns.settle():
            stream = self._clients[question.client]
            if question.kind == Kind.PAUSE and self._on_pause is not None:
                answer = self._on_pause()
            self._hub.send(stream, question.kind, 0, 0, question.number, answer)
