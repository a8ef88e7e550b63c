"""How far is a training on parameter servers? The owner's account of every batch whose update all servers have.

Each update carries a note of the batch that it came of, and the arbiter hands the note over when the update is
committed. So the account is exactly what the weights have seen, whatever becomes of the rank: a batch is entered once
it counts, and what was under way when its rank was lost is dealt out again.

None is lost so, and of a rank that dies at most `client.WINDOW` batches are learned twice: before an update gets its
turn, the arbiter has heard of all that were committed until then.
"""

from __future__ import annotations

import math
import struct
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pipelines.training.optimisers.first_order import stopped_falling

_NOTE = struct.Struct("<IQQddI")


@dataclass(frozen=True)
class Note:
    """A batch: its lane, its number there over all epochs, and how many an epoch has; the sums of its losses and of
    its rows' weights, and its rows."""

    lane: int
    batch: int
    batches: int
    loss: float
    weight: float
    rows: int

    def pack(self) -> bytes:
        """Turn into bytes, for `Client.push`."""
        return _NOTE.pack(self.lane, self.batch, self.batches, self.loss, self.weight, self.rows)


@dataclass
class _Lane:
    """Batches of an epoch (None: not known yet), the first batch that is not done, and later ones that are."""

    batches: int | None = None
    next: int = 0
    ahead: set[int] = field(default_factory=set)


class Ledger:
    """The account of all lanes. Safe to use from several threads.

    Parameters
    ----------
    lanes : int
    epochs : int
    tol : float
        See `stopped_falling`.
    """

    def __init__(self, lanes: int, epochs: int, tol: float) -> None:
        self._lanes = [_Lane() for _ in range(lanes)]
        self._epochs, self._tol = epochs, tol
        self._sums = [[0.0, 0.0] for _ in range(epochs)]
        self._done = [0] * epochs
        self._lock = threading.RLock()
        self._began: float | None = None
        self._latest = 0.0
        self._rows_before = 0
        self.history: list[float] = []
        """Mean loss of every epoch that is complete, each row's before the update that it took part in."""
        self.rows = 0
        self.updates = 0
        self.reason = ""
        """Why no more updates are wanted; empty while they are."""

    def measured(self, lane: int, batches: int) -> None:
        """Enter how many batches an epoch of a lane has."""
        with self._lock:
            self._lanes[lane].batches = batches
            self._close_epochs()

    def take(self, packed: bytes) -> None:
        """Enter a batch."""
        note = Note(*_NOTE.unpack(packed))
        with self._lock:
            if self._began is None:
                self._began, self._rows_before = time.monotonic(), self.rows
            self._latest = time.monotonic()
            self.rows += note.rows
            self.updates += 1
            lane = self._lanes[note.lane]
            lane.ahead.add(note.batch)
            while lane.next in lane.ahead:
                lane.ahead.remove(lane.next)
                lane.next += 1
            lane.batches = note.batches
            epoch = note.batch // note.batches
            self._sums[epoch][0] += note.loss
            self._sums[epoch][1] += note.weight
            self._done[epoch] += 1
            self._close_epochs()

    def positions(self, lanes: Sequence[int]) -> dict[int, tuple[int, list[int]]]:
        """Return for each lane the first batch that is to be done, and those behind it that are not."""
        with self._lock:
            return {lane: (self._lanes[lane].next, sorted(self._lanes[lane].ahead)) for lane in lanes}

    @property
    def begun(self) -> bool:
        """Whether a batch was entered since this ledger was made."""
        return self._began is not None

    @property
    def over(self) -> bool:
        """Whether no more updates are wanted."""
        return bool(self.reason)

    @property
    def running_loss(self) -> float:
        """Mean loss of the first epoch that is not complete, so far, or of the last one that is; NaN at first."""
        with self._lock:
            loss, weight = self._sums[min(len(self.history), self._epochs - 1)]
            return loss / weight if weight > 0 else (self.history or [math.nan])[-1]

    @property
    def rows_per_s(self) -> float:
        """Rows of all ranks, from the first of them to the latest."""
        with self._lock:
            if self._began is None:
                return 0.0
            return (self.rows - self._rows_before) / max(self._latest - self._began, 1e-9)

    def to_plain(self) -> dict[str, Any]:
        """Turn into JSON values."""
        with self._lock:
            return {
                "lanes": [[lane.batches, lane.next, sorted(lane.ahead)] for lane in self._lanes],
                "sums": [list(pair) for pair in self._sums],
                "done": list(self._done),
                "history": list(self.history),
                "rows": self.rows,
                "updates": self.updates,
                "reason": self.reason,
            }

    def restore(self, plain: dict[str, Any]) -> None:
        """Take over what `to_plain` gave, of a ledger of the same lanes and epochs."""
        with self._lock:
            self._lanes = [_Lane(batches, first, set(ahead)) for batches, first, ahead in plain["lanes"]]
            self._sums, self._done = [list(pair) for pair in plain["sums"]], list(plain["done"])
            self.history, self.reason = list(plain["history"]), str(plain["reason"])
            self.rows, self.updates = plain["rows"], plain["updates"]

    def _close_epochs(self) -> None:
        counts = [lane.batches for lane in self._lanes]
        total = 0
        for count in counts:
            if count is None:
                return
            total += count
        while not self.reason and self._done[len(self.history)] == total:
            loss, weight = self._sums[len(self.history)]
            self.history.append(loss / weight if weight > 0 else math.nan)
            if stopped_falling(self.history, self._tol):
                self.reason = "tolerance"
            elif len(self.history) == self._epochs:
                self.reason = "epochs"
