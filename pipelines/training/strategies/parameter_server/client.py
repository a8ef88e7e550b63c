"""A worker's end: weights come in, gradients go out, to all servers at once, whatever happens to a server.

What was asked and not answered is kept. When a shard's primary changes, or the connection to it breaks, all of that is
asked again in its order; servers apply an update once. One thread owns a client; nothing happens between its calls, but
what was asked travels on in the sockets' buffers, so that a read is answered while the caller computes.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import numpy as np

from pipelines.errors import DataError, DeadlineError, GangError
from pipelines.training.gang.context import Array
from pipelines.training.strategies.parameter_server import frames
from pipelines.training.strategies.parameter_server.frames import Frame, Kind, Part
from pipelines.training.strategies.parameter_server.layout import Layout
from pipelines.training.strategies.parameter_server.limits import Limits
from pipelines.training.strategies.parameter_server.streams import Hub, Stream
from pipelines.training.strategies.parameter_server.views import Address, View

_RETRY_S = 0.05
PIECE_ROWS = 1 << 18
WINDOW = 2
"""Updates of one client on their way: the next is computed while servers apply the last; more only makes them stale."""


@dataclass(eq=False)
class _Request:
    """What was asked of a shard's primary, and not answered yet."""

    kind: Kind
    shard: int
    number: int
    parts: tuple[Part, ...]
    answered: Callable[[Frame], object]
    stream: Stream | None = None


@dataclass(eq=False)
class Reading:
    """Weights on their way, and the ticket for the update that comes of them."""

    ticket: int
    weights: Array
    """float32, by the places that were asked for; complete once `Client.wait` has returned."""
    slices: list[tuple[int, int, int, Array]]
    """Shard, start and stop among the places, and keys (int32) there."""
    missing: int = field(default=-1)


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

    Raises
    ------
    DeadlineError
        Not all servers came within ``limits.start_s``. Every method raises it when its wait has reached its limit.
    GangError
        The run has failed, or the arbiter is gone. Every method raises it.
    """

    def __init__(
        self, arbiter: Address, token: bytes, layout: Layout, *, limits: Limits | None = None, name: int | None = None
    ) -> None:
        self._layout, self._limits = layout, limits or Limits()
        self.name = name or 1 + secrets.randbelow(2**62)
        self._hello = frames.to_json({"role": "client", "name": self.name})
        self._number = 0
        self._updates: Counter[int] = Counter()
        self._requests: dict[int, _Request] = {}
        self._answers: dict[int, Frame | None] = {}
        self._readings: dict[int, Reading] = {}
        self._uncommitted: dict[int, int] = {}
        self._links: dict[int, Stream] = {}
        self._again: set[int] = set()
        self._again_at = 0.0
        self._view: View | None = None
        self._hub = Hub(token)
        self._arbiter = self._hub.dial(arbiter, self._hello)
        try:
            self._until(lambda: self._view is not None, self._limits.start_s, "the servers of the weights to come")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Leave; what was pushed and is not committed may or may not be applied."""
        self._hub.__exit__(None, None, None)

    def read(self, places: Array) -> Reading:
        """Ask for a ticket, and for weights as soon as it is given; returns at once.

        Parameters
        ----------
        places : ndarray of int64
            Ascending, each once (`Layout.place`).
        """
        cuts = self._layout.cut(places)
        slices = []
        for shard, first in enumerate(self._layout.bounds[:-1]):
            start, stop = cuts[shard], cuts[shard + 1]
            if start < stop:
                slices.append((shard, start, stop, (places[start:stop] - first).astype(np.int32)))
        reading = Reading(self._next(), np.empty(len(places), np.float32), slices)
        self._readings[reading.ticket] = reading
        self._hub.send(self._arbiter, Kind.OPEN, 0, 0, reading.ticket)
        return reading

    def poll(self) -> None:
        """Hear what has come, without waiting: so that a ticket leads to its reading before the caller computes."""
        self._hear_all(0.0)

    def wait(self, reading: Reading) -> Array:
        """Return the weights of a reading."""
        limit_s = self._limits.step_s + self._limits.failover_s
        self._until(lambda: reading.missing >= 0, limit_s, "a turn to read")
        self._until(lambda: reading.missing == 0, self._limits.failover_s, lambda: self._missing(Kind.PULL))
        return reading.weights

    def push(self, reading: Reading, gradient: Array) -> int:
        """Wait for the turn of a reading's update, and send it; returns its number in the run.

        The update is applied exactly once, also when servers are lost. `flush` waits until all servers have it; with
        `WINDOW` updates on their way, so does this.

        Parameters
        ----------
        gradient : ndarray of float32
            By the reading's places.
        """
        self._until(lambda: len(self._uncommitted) < WINDOW, self._limits.failover_s, lambda: self._missing(Kind.PUSH))
        del self._readings[reading.ticket]
        turn = frames.turn_of(self._ask(Kind.TURN, reading.ticket, "a turn to update"))
        self._uncommitted[reading.ticket] = len(reading.slices)
        for shard, start, stop, keys in reading.slices:
            self._updates[shard] += 1
            head = frames.UPDATE.pack(turn, self._updates[shard])
            parts = (head, frames.view(keys), frames.view(gradient[start:stop].astype(np.float32, copy=False)))
            self._request(Kind.PUSH, shard, parts, lambda _: self._count_down(reading.ticket))
        if not reading.slices:
            self._uncommitted[reading.ticket] = 1
            self._count_down(reading.ticket)
        return turn

    def flush(self) -> None:
        """Wait until all servers, replicas included, have all updates."""
        self._until(lambda: not self._uncommitted, self._limits.failover_s, lambda: self._missing(Kind.PUSH))

    def abandon(self, reading: Reading) -> None:
        """Give a reading's ticket back, with an update that changes nothing."""
        self.wait(reading)
        reading.slices.clear()
        self.push(reading, reading.weights[:0])

    def pause(self) -> None:
        """Keep every client from updating, and wait until what is on its way is committed. Own updates come first."""
        self.flush()
        self._ask(Kind.PAUSE, self._next(), "updates to pause")

    def resume(self) -> None:
        """End a `pause`."""
        self._hub.send(self._arbiter, Kind.RESUME, 0, 0, 0)

    def snapshot(self) -> Iterator[tuple[int, Array, Array]]:
        """Pause, yield all rows that are not zero in pieces, and resume: a state between two updates.

        Yields
        ------
        shard : int
        keys : ndarray of int32
            Numbers in the shard (a place minus the shard's first).
        rows : ndarray of float32, shape (keys, columns of the rule)
        """
        self.pause()
        try:
            for shard in range(self._layout.shards):
                length = self._layout.length(shard)
                for start in range(0, length, PIECE_ROWS):
                    part = frames.RANGE.pack(start, min(start + PIECE_ROWS, length))
                    yield shard, *frames.any_rows_of(self._call(Kind.READ, shard, (part,)))
        finally:
            self.resume()

    def restore(self, pieces: Iterable[tuple[int, Array, Array]]) -> None:
        """Set rows as a `snapshot` has yielded them, here and on the replicas; the rest stays."""
        for shard, keys, rows in pieces:
            parts = (
                frames.KEYS.pack(len(keys)),
                frames.view(keys.astype(np.int32)),
                frames.view(rows.astype(np.float32)),
            )
            self._call(Kind.WRITE, shard, parts)

    def stats(self) -> list[dict[str, Any]]:
        """Ask every server that is there how it is; a server that leaves meanwhile is left out."""
        assert self._view is not None
        asked = [self._next() for _ in self._view.servers]
        for number, server in zip(asked, self._view.servers, strict=True):
            self._answers[number] = None
            self._hub.send(self._link(server), Kind.STATS, 0, 0, number)
        alone = {number: server for number, server in zip(asked, self._view.servers, strict=True)}

        def there() -> bool:
            assert self._view is not None
            return all(self._answers[n] is not None or server not in self._view.servers for n, server in alone.items())

        self._until(there, self._limits.failover_s, "the servers' statistics")
        answers = [self._answers.pop(number) for number in asked]
        return [frames.from_json(frame.body) for frame in answers if frame is not None]

    # --- requests ---

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _ask(self, kind: Kind, number: int, what: str) -> Frame:
        """Ask the arbiter."""
        self._answers[number] = None
        self._hub.send(self._arbiter, kind, 0, 0, number)
        limit_s = self._limits.step_s + self._limits.failover_s
        self._until(lambda: self._answers[number] is not None, limit_s, what)
        answer = self._answers.pop(number)
        assert answer is not None
        return answer

    def _call(self, kind: Kind, shard: int, parts: tuple[Part, ...]) -> Frame:
        """Ask a shard's primary, and wait for the answer."""
        found: list[Frame] = []
        self._request(kind, shard, parts, found.append)
        self._until(lambda: bool(found), self._limits.failover_s, lambda: self._missing(kind))
        return found[0]

    def _request(self, kind: Kind, shard: int, parts: tuple[Part, ...], answered: Callable[[Frame], object]) -> None:
        request = _Request(kind, shard, self._next(), parts, answered)
        self._requests[request.number] = request
        if shard not in self._again:  # else it goes out behind those that wait
            self._send(request)

    def _send(self, request: _Request) -> None:
        assert self._view is not None
        holders = self._view.shards[request.shard]
        request.stream = self._link(holders.primary)
        self._hub.send(request.stream, request.kind, request.shard, holders.term, request.number, *request.parts)

    def _link(self, server: int) -> Stream:
        assert self._view is not None
        if server not in self._links or self._links[server].closed:
            self._links[server] = self._hub.dial(self._view.servers[server], self._hello)
        return self._links[server]

    def _count_down(self, ticket: int) -> None:
        self._uncommitted[ticket] -= 1
        if not self._uncommitted[ticket]:
            del self._uncommitted[ticket]
            self._hub.send(self._arbiter, Kind.COMMIT, 0, 0, ticket)

    # --- what comes ---

    def _until(self, done: Callable[[], bool], limit_s: float, what: str | Callable[[], str]) -> None:
        end = time.monotonic() + limit_s
        while not done():
            left = end - time.monotonic()
            if left <= 0:
                name = what if isinstance(what, str) else what()
                raise DeadlineError(f"waited {limit_s:g} s for {name}", on="parameter server's client")
            self._hear_all(min(left, _RETRY_S) if self._again else left)

    def _hear_all(self, timeout_s: float) -> None:
        for stream, frame in self._hub.poll(timeout_s):
            if stream is self._arbiter:
                self._obey(frame)
            elif frame is None:
                self._ask_again(request.shard for request in self._requests.values() if request.stream is stream)
            else:
                self._take(stream, frame)
        if self._again and time.monotonic() >= self._again_at:
            self._send_again()

    def _obey(self, frame: Frame | None) -> None:
        if frame is None:
            raise GangError("the arbiter of the parameter servers is gone", on="parameter server's client")
        if frame.kind == Kind.VIEW:
            before, self._view = self._view, View.from_json(frames.from_json(frame.body))
            for shard, held in enumerate(self._view.shards):
                if before is not None and held.primary != before.shards[shard].primary:
                    self._again.add(shard)
                    self._again_at = 0.0
            for server in set(self._links) - set(self._view.servers):
                self._hub.close(self._links.pop(server))
        elif frame.kind == Kind.FAILED:
            if frame.number:
                raise DeadlineError(frame.body.decode(), on="parameter server's client")
            raise GangError(frame.body.decode(), on="parameter servers")
        elif frame.kind == Kind.OPEN and frame.number in self._readings:
            self._start(self._readings[frame.number])
        elif frame.number in self._answers:
            self._answers[frame.number] = frame

    def _start(self, reading: Reading) -> None:
        reading.missing = len(reading.slices)
        for shard, start, stop, keys in reading.slices:

            def fill(frame: Frame, start: int = start, stop: int = stop) -> None:
                reading.weights[start:stop] = np.frombuffer(frame.body, np.float32)
                reading.missing -= 1

            self._request(Kind.PULL, shard, (frames.view(keys),), fill)

    def _take(self, stream: Stream, frame: Frame) -> None:
        if frame.kind == Kind.STATS and frame.number in self._answers:
            self._answers[frame.number] = frame
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

    def _send_again(self) -> None:
        again, self._again = self._again, set()
        for request in list(self._requests.values()):
            if request.shard in again:
                self._send(request)

    def _missing(self, kind: Kind) -> str:
        """Name the first server that has not answered."""
        assert self._view is not None
        first = next(request for request in self._requests.values() if request.kind == kind)
        server = self._view.shards[first.shard].primary
        host, port = self._view.servers.get(server, ("?", 0))
        return f"server {server} at {host}:{port} to answer for shard {first.shard}"
