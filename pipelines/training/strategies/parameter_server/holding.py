"""One shard on one server, as its primary or its replica: what was applied, what the other has, who still waits.

A primary sends the new rows of every update on, not the gradient: a replica then computes nothing, whatever the rule,
and a row that is sent twice does no harm. So a new replica is filled while training goes on: rows travel in one stream,
each as it is when it is sent, and the last one is right.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pipelines.training.gang.context import Array
from pipelines.training.strategies.parameter_server import frames
from pipelines.training.strategies.parameter_server.frames import Frame, Kind
from pipelines.training.strategies.parameter_server.shard import Shard
from pipelines.training.strategies.parameter_server.streams import Hub, Stream

PIECE_ROWS = 1 << 18
BACKLOG_BYTES = 4 << 20
"""Filling waits while so much is still to be sent: updates go in between."""


@dataclass
class Holding:
    """A shard, and this server's part in it.

    `numbers` holds the number of the last update of every client, which is all it takes to apply each update once: a
    client numbers its updates of a shard from 1, and they are applied in that order without a gap.
    """

    index: int
    shard: Shard
    term: int
    primary: bool
    numbers: dict[int, int] = field(default_factory=dict)
    link: Stream | None = None
    replica: int | None = None
    synced: bool = False
    sent: int = 0
    kept: int = 0
    waiting: deque[tuple[int, Stream, int]] = field(default_factory=deque)
    """Clients that wait for the replica: the copy that has to be kept, the stream, the request's number."""
    filling: Iterator[tuple[Array, Array]] | None = None
    whole: int | None = None
    """The copy with which the replica becomes complete."""
    pulls: int = 0
    updates: int = 0
    keys: int = 0

    def attach(self, link: Stream | None, replica: int | None, *, synced: bool, hub: Hub) -> None:
        """Take a new replica, or none; whoever waited for the one before waits no more."""
        if self.link is not None:
            hub.close(self.link)
        self.link, self.replica, self.synced, self.sent, self.kept = link, replica, synced, 0, 0
        self.whole = None
        self.filling = None if link is None or synced else self._pieces()
        self._release(hub, everyone=True)

    def apply(self, hub: Hub, stream: Stream, frame: Frame) -> None:
        """Apply an update unless it was applied before, and answer when the replica has it too."""
        clock, number, keys, gradient = frames.update_of(frame)
        last = self.numbers.get(stream.name, 0)
        if number > last + 1:
            hub.send(stream, Kind.MOVED, self.index, self.term, frame.number)
            return
        if number == last + 1:
            rows = self.shard.push(keys, gradient, clock)
            self.numbers[stream.name] = number
            self.updates += 1
            self.keys += len(keys)
            self._send_on(hub, stream.name, number, keys, rows)
        self._answer(hub, stream, frame.number)

    def overwrite(self, hub: Hub, stream: Stream, frame: Frame) -> None:
        """Set rows, here and on the replica; doing it twice does no harm."""
        keys, rows = frames.rows_of(frame, self.shard.columns)
        self.shard.write(keys, rows)
        self._send_on(hub, 0, 0, keys, rows)
        self._answer(hub, stream, frame.number)

    def copy(self, frame: Frame) -> None:
        """Take in rows as the replica."""
        client, number, keys, rows = frames.copy_of(frame, self.shard.columns)
        self.shard.write(keys, rows)
        if client:
            self.numbers[client] = number

    def take_whole(self, frame: Frame) -> None:
        """Take in, as the replica, which updates the rows so far hold."""
        self.numbers = {int(client): int(number) for client, number in frames.from_json(frame.body)}

    def note_kept(self, hub: Hub, number: int) -> bool:
        """Answer those who waited for a copy; True when it was the one that makes the replica complete."""
        self.kept = max(self.kept, number)
        self._release(hub)
        return number == self.whole

    def fill(self, hub: Hub) -> None:
        """Send the replica some more of what it lacks."""
        if self.filling is None or self.link is None or self.link.unsent_bytes > BACKLOG_BYTES:
            return
        piece = next(self.filling, None)
        if piece is not None:
            if len(piece[0]):
                self._send_on(hub, 0, 0, *piece)
            return
        self.filling = None
        self.sent += 1
        # From here on the replica may take over: nobody is answered before it has what it needs for that.
        self.whole, self.synced = self.sent, True
        numbers = frames.to_json(list(self.numbers.items()))
        hub.send(self.link, Kind.WHOLE, self.index, self.term, self.sent, numbers)

    def describe(self) -> dict[str, Any]:
        """Say how it is."""
        return {
            "role": "primary" if self.primary else "replica",
            "term": self.term,
            "synced": self.synced,
            "keys_touched": self.shard.occupied,
            "pulls": self.pulls,
            "updates": self.updates,
            "keys_updated": self.keys,
        }

    def _pieces(self) -> Iterator[tuple[Array, Array]]:
        for start in range(0, self.shard.size, PIECE_ROWS):
            yield self.shard.read(start, min(start + PIECE_ROWS, self.shard.size))

    def _send_on(self, hub: Hub, client: int, number: int, keys: Array, rows: Array) -> None:
        if self.link is None:
            return
        self.sent += 1
        head = frames.FORWARD.pack(client, number, len(keys))
        hub.send(
            self.link,
            Kind.COPY,
            self.index,
            self.term,
            self.sent,
            head,
            frames.view(keys),
            frames.view(np.asarray(rows)),
        )

    def _answer(self, hub: Hub, stream: Stream, number: int) -> None:
        if self.synced and self.replica is not None and self.kept < self.sent:
            self.waiting.append((self.sent, stream, number))
        else:
            hub.send(stream, Kind.DONE, self.index, self.term, number)

    def _release(self, hub: Hub, *, everyone: bool = False) -> None:
        while self.waiting and (everyone or self.waiting[0][0] <= self.kept):
            _, stream, number = self.waiting.popleft()
            hub.send(stream, Kind.DONE, self.index, self.term, number)
