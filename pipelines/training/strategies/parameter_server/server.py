"""A server's loop: one thread that serves its shard, keeps another one's replica, and obeys the arbiter.

It serves only while it holds a *lease*: for `lease_s` after a word of its own that the arbiter has answered. A process
that was stopped and goes on finds its lease gone, and what it is asked waits until the arbiter has spoken; by then
either the lease holds again or the connection to the arbiter has ended, and with it the server.
"""

from __future__ import annotations

import logging
import os
import resource
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pipelines.errors import DataError, DeadlineError, GangError
from pipelines.training.gang import wire
from pipelines.training.strategies.parameter_server import frames
from pipelines.training.strategies.parameter_server.frames import Frame, Kind
from pipelines.training.strategies.parameter_server.holding import Holding
from pipelines.training.strategies.parameter_server.holdings import Holdings
from pipelines.training.strategies.parameter_server.layout import Layout
from pipelines.training.strategies.parameter_server.limits import Limits
from pipelines.training.strategies.parameter_server.rules import Rule
from pipelines.training.strategies.parameter_server.streams import Hub, Stream
from pipelines.training.strategies.parameter_server.views import Address, View

logger = logging.getLogger(__name__)

_BEATS_PER_LEASE = 8
_FAREWELL_S = 2.0
_SERVED = (Kind.PULL, Kind.PUSH, Kind.READ, Kind.WRITE)


def serve(
    listener: socket.socket,
    arbiter: Address,
    token: bytes,
    layout: Layout,
    rule: Rule,
    *,
    free: Sequence[int] = (),
    limits: Limits | None = None,
    stop_requested: Callable[[], bool] = lambda: False,
) -> None:
    """Serve until the arbiter says that the work is done, or `stop_requested` does.

    Parameters
    ----------
    listener : socket
        Where clients and other servers reach this one (`gang.mesh.listen`); closed at the end.
    arbiter : (host, port)
    token : bytes
    layout : Layout
    rule : Rule
        The same on all servers, as `layout` and `free` are.
    free : sequence of int
        The keys whose weights are not penalised: the intercepts.

    Raises
    ------
    GangError
        The arbiter is gone, has given this server up, or has told that the run failed.
    DeadlineError
        The arbiter is silent.
    """
    with Hub(token, listener) as hub:
        host, port = listener.getsockname()[:2]
        _Server(hub, arbiter, (host, port), layout, rule, free, limits or Limits()).run(stop_requested)


class _Server:
    def __init__(
        self, hub: Hub, arbiter: Address, own: Address, layout: Layout, rule: Rule, free: Sequence[int], limits: Limits
    ) -> None:
        self._hub, self._layout, self._rule, self._limits = hub, layout, rule, limits
        self._holdings = Holdings(hub, layout, rule, free)
        self._arbiter = hub.dial(arbiter, frames.to_json({"role": "server", "address": own}))
        self._heard = time.monotonic()
        self._leased_until = self._next_beat = 0.0
        self._parked: list[tuple[Stream, Frame]] = []
        self._done = False

    def run(self, stop_requested: Callable[[], bool]) -> None:
        """Serve until it is over."""
        between_s = self._limits.lease_s / _BEATS_PER_LEASE
        while not self._done and not stop_requested():
            now = time.monotonic()
            if now >= self._next_beat:
                self._next_beat = now + between_s
                self._hub.send(self._arbiter, Kind.BEAT, 0, 0, time.monotonic_ns())
            if now > self._heard + self._limits.idle_s:
                raise DeadlineError(
                    f"the arbiter has said nothing for {self._limits.idle_s:g} s", on="parameter server"
                )
            self._hear_all(0 if self._holdings.hungry else max(self._next_beat - now, 0))
            self._holdings.fill()
        self._hub.drain(_FAREWELL_S)

    def _hear_all(self, timeout_s: float) -> None:
        for stream, frame in self._hub.poll(timeout_s):
            if self._done:
                return  # the arbiter closes its connection behind its last word
            if frame is None:
                self._ended(stream)
            elif not stream.closed:
                self._hear(stream, frame)

    def _hear(self, stream: Stream, frame: Frame) -> None:
        try:
            if stream is self._arbiter:
                self._obey(frame)
            elif stream.dialled:
                self._hear_replica(stream, frame)
            elif not stream.role:
                self._welcome(stream, frame)
            elif stream.role == "primary":
                self._copy(stream, frame)
            elif frame.kind == Kind.STATS:
                self._hub.send(stream, Kind.STATS, 0, 0, frame.number, frames.to_json(self._describe()))
            elif frame.kind in _SERVED and frame.shard < self._layout.shards:
                self._consider(stream, frame)
            else:
                raise wire.Malformed(f"a request of kind {frame.kind} for shard {frame.shard}")
        except DataError as error:
            self._hub.send(stream, Kind.FAILED, frame.shard, 0, frame.number, str(error).encode())
        except (wire.Malformed, LookupError, TypeError, ValueError) as error:
            logger.warning("a connection was closed that does not speak as it should: %r", error)
            self._hub.close(stream)

    def _welcome(self, stream: Stream, frame: Frame) -> None:
        hello: dict[str, Any] = frames.from_json(frame.body)
        stream.role, stream.name = str(hello["role"]), int(hello["name"])
        if stream.role != "primary":
            return
        if not self._holdings.welcome_primary(int(hello["shard"]), int(hello["term"]), synced=bool(hello["synced"])):
            self._hub.close(stream)

    def _consider(self, stream: Stream, frame: Frame) -> None:
        """Serve a request, put it aside until the arbiter has spoken, or send the client elsewhere."""
        held = self._holdings.get(frame.shard)
        if time.monotonic() > self._leased_until or frame.term > self._holdings.known_term(frame.shard):
            self._parked.append((stream, frame))
        elif held is None or not held.primary:
            self._hub.send(stream, Kind.MOVED, frame.shard, self._holdings.known_term(frame.shard), frame.number)
        else:
            self._serve(stream, frame, held)

    def _serve(self, stream: Stream, frame: Frame, held: Holding) -> None:
        if frame.kind == Kind.PULL:
            held.pulls += 1
            weights = held.shard.pull(frames.keys_of(frame))
            self._hub.send(stream, Kind.WEIGHTS, frame.shard, held.term, frame.number, frames.view(weights))
        elif frame.kind == Kind.PUSH:
            held.apply(self._hub, stream, frame)
        elif frame.kind == Kind.WRITE:
            held.overwrite(self._hub, stream, frame)
        else:
            start, stop = frames.range_of(frame)
            keys, rows = held.shard.read(start, stop)
            body = (frames.KEYS.pack(len(keys)), frames.view(keys), frames.view(rows))
            self._hub.send(stream, Kind.ROWS, frame.shard, held.term, frame.number, *body)

    def _unpark(self) -> None:
        parked, self._parked = self._parked, []
        for stream, frame in parked:
            if not stream.closed:
                self._hear(stream, frame)

    # --- the replica's side, and the primary's side of it ---

    def _copy(self, stream: Stream, frame: Frame) -> None:
        held = self._holdings.get(frame.shard)
        if held is None or held.primary or held.term != frame.term:
            self._hub.close(stream)  # one that has been given up, and does not know it yet
            return
        if frame.kind == Kind.COPY:
            held.copy(frame)
        elif frame.kind == Kind.WHOLE:
            held.take_whole(frame)
        self._hub.send(stream, Kind.KEPT, frame.shard, frame.term, frame.number)

    def _hear_replica(self, stream: Stream, frame: Frame) -> None:
        held = self._holdings.get(frame.shard)
        if held is None or held.link is not stream or frame.kind != Kind.KEPT:
            return
        if held.note_kept(self._hub, frame.number):
            self._hub.send(self._arbiter, Kind.SYNCED, held.index, held.term, 0)

    def _ended(self, stream: Stream) -> None:
        if stream is self._arbiter:
            raise GangError(
                "the arbiter is gone, or has given this server up", on=f"parameter server {self._holdings.me}"
            )
        held = self._holdings.unlink(stream)
        if held is not None:
            self._hub.send(self._arbiter, Kind.BROKEN, held.index, held.term, 0)

    # --- the arbiter's orders ---

    def _obey(self, frame: Frame) -> None:
        self._heard = time.monotonic()
        if frame.kind == Kind.BEAT:
            self._leased_until = frame.number / 1e9 + self._limits.lease_s
            self._unpark()
        elif frame.kind == Kind.VIEW:
            value = frames.from_json(frame.body)
            self._holdings.adopt(View.from_json(value), int(value["you"]))
            self._unpark()
        elif frame.kind == Kind.FAILED:
            raise GangError(frame.body.decode(), on="parameter servers")
        elif frame.kind == Kind.STOP:
            self._done = True

    def _describe(self) -> dict[str, Any]:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return {
            "server": self._holdings.me,
            "pid": os.getpid(),
            "shards": {held.index: held.describe() for held in self._holdings},
            "received_bytes": self._hub.received_bytes,
            "sent_bytes": self._hub.sent_bytes,
            "peak_rss_bytes": peak if sys.platform == "darwin" else peak * 1024,
            "row_bytes": self._rule.columns * np.dtype(np.float32).itemsize,
        }
