"""Where do shares of the rows end? Mergeable one-pass summaries, whose result does not hang on how data were dealt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

_SPAN = 2.0**64
_SIGMAS = 8.0


@dataclass
class HashRanks:
    """Exact order statistics of uniform 64-bit hashes, in one pass and little memory.

    Of n uniform hashes the one of rank f·n lies within a few √(f(1−f)/n) of f. So it is enough to keep the hashes in
    a window around each share, which narrows as n grows, and to count those below it: 16·√(f(1−f)·n) words, 30,000 for
    five million rows. Merging only narrows windows, so any grouping of the rows gives the same result.

    Parameters
    ----------
    shares : tuple of float
        Ascending, within [0, 1].
    """

    shares: tuple[float, ...]
    rows: int = 0
    below: list[int] = field(default_factory=list)
    windows: list[np.ndarray] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.below = self.below or [0] * len(self.shares)
        self.windows = self.windows or [np.empty(0, np.uint64) for _ in self.shares]

    def update(self, hashes: np.ndarray) -> None:
        """Take in hashes (uint64)."""
        self.rows += len(hashes)
        for i in range(len(self.shares)):
            self._take(i, 0, hashes)

    def merge(self, other: HashRanks) -> None:
        """Take in another summary of other rows."""
        self.rows += other.rows
        for i in range(len(self.shares)):
            self._take(i, other.below[i], other.windows[i])

    def thresholds(self) -> tuple[int, ...]:
        """For each share a threshold: exactly ``round(share · rows)`` hashes are below it.

        With the odds of a window that misses (10⁻¹⁵) or of equal hashes, the nearest threshold there is.
        """
        found = []
        for share, below, window in zip(self.shares, self.below, self.windows, strict=True):
            rank = round(share * self.rows) - below
            held = np.sort(window)
            if rank <= 0:
                found.append(int(held[0]) if len(held) and below else 0)
            elif rank >= len(held):
                found.append(int(held[-1]) + 1 if len(held) else (1 << 64))
            else:
                found.append(int(held[rank]))
        return tuple(found)

    def _take(self, i: int, below: int, hashes: np.ndarray) -> None:
        low, high = self._window(self.shares[i])
        joined = np.concatenate([self.windows[i], hashes])
        self.below[i] += below + int(np.count_nonzero(joined < low))
        self.windows[i] = joined[(joined >= low) & (joined <= high)]

    def _window(self, share: float) -> tuple[np.uint64, np.uint64]:
        rows = max(self.rows, 1)
        width = _SIGMAS * (share * (1 - share) / rows) ** 0.5 + _SIGMAS / rows
        low, high = max(0.0, share - width), min(1.0, share + width)
        top = np.uint64(0xFFFFFFFFFFFFFFFF)
        return np.uint64(min(int(low * _SPAN), int(top))), top if high >= 1.0 else np.uint64(int(high * _SPAN))


@dataclass
class ValueCounts:
    """Rows per value of an integer scale, at most `capacity` different ones: beyond that, per cell of 2ˢ values.

    `shift` is the smallest s for which the occupied cells fit, whatever the grouping of the rows.
    """

    capacity: int = 65_536  # at least 2: negative and other values never share a cell
    shift: int = 0
    cells: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    counts: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))

    def update(self, values: np.ndarray) -> None:
        """Take in values (int64)."""
        cells, counts = np.unique(values >> self.shift, return_counts=True)
        self._join(cells, counts.astype(np.int64))

    def merge(self, other: ValueCounts) -> None:
        """Take in another summary of other rows."""
        shift = max(self.shift, other.shift)
        self._coarsen(shift)
        self._join(other.cells >> (shift - other.shift), other.counts)

    def cuts(self, shares: Sequence[float]) -> tuple[int, ...]:
        """For each share of the *last* rows the value at which they begin: those cell borders that come nearest."""
        if not len(self.cells):
            return tuple(0 for _ in shares)
        before = np.concatenate([[0], np.cumsum(self.counts)])
        found = []
        for share in shares:
            at = int(np.argmin(np.abs((before[-1] - before) - share * before[-1])[::-1]))
            at = len(before) - 1 - at
            last = (int(self.cells[-1]) + 1) << self.shift
            found.append(min(last, 2**63 - 1) if at == len(self.cells) else int(self.cells[at]) << self.shift)
        return tuple(found)

    def _join(self, cells: np.ndarray, counts: np.ndarray) -> None:
        every, places = np.unique(np.concatenate([self.cells, cells]), return_inverse=True)
        self.cells = every
        self.counts = np.bincount(places, np.concatenate([self.counts, counts]), len(every)).astype(np.int64)
        while len(self.cells) > self.capacity:
            self._coarsen(self.shift + 1)

    def _coarsen(self, shift: int) -> None:
        if shift > self.shift:
            cells, counts = self.cells >> (shift - self.shift), self.counts
            self.shift = shift
            self.cells, places = np.unique(cells, return_inverse=True)
            self.counts = np.bincount(places, counts, len(self.cells)).astype(np.int64)
