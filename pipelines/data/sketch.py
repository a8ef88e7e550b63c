"""How many different values are there? HyperLogLog, in one kilobyte a column."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from pipelines.data.order import mix

BITS = 10
REGISTERS = 1 << BITS
ERROR = 1.04 / REGISTERS**0.5
"""Relative standard error of the estimate: 3.3 %."""

_LEVELS = 64 - BITS
_WAITING = 32


@dataclass
class DistinctSketch:
    """HyperLogLog (Flajolet et al. 2007) with Ertl's estimator (2017, algorithm 6), which needs no bias tables.

    Merging takes the larger register, so it is associative, commutative and idempotent.
    """

    registers: np.ndarray = field(default_factory=lambda: np.zeros(REGISTERS, np.uint8))
    waiting: list[np.ndarray] = field(default_factory=list)

    def update(self, words: np.ndarray) -> None:
        """Take in words (uint64), which are mixed here. Small batches wait until they are worth the work."""
        self.waiting.append(words)
        if len(self.waiting) == _WAITING:
            self.flush()

    def flush(self) -> None:
        """Take in what waits."""
        if not self.waiting:
            return
        hashes = mix(np.concatenate(self.waiting) + np.uint64(0x2545F4914F6CDD1D))
        self.waiting = []
        low = int(self.registers.min())
        if low:  # only ranks above the smallest register can change anything
            hashes = hashes[(hashes << np.uint64(BITS)) < (np.uint64(1) << np.uint64(64 - low))]
        if not len(hashes):
            return
        places = (hashes >> np.uint64(_LEVELS)).astype(np.int64)
        # The float's exponent gives the position of the highest bit; rounding up to the next power of two is harmless.
        rest = (hashes & np.uint64((1 << _LEVELS) - 1)).astype(np.float64)
        ranks = (_LEVELS + 1 - np.frexp(rest)[1]).astype(np.uint8)
        np.maximum.at(self.registers, places, ranks)

    def __getstate__(self) -> dict[str, object]:
        self.flush()
        return {"registers": self.registers, "waiting": []}

    def merge(self, other: DistinctSketch) -> None:
        """Take in another sketch."""
        self.flush()
        other.flush()
        np.maximum(self.registers, other.registers, out=self.registers)

    def estimate(self) -> float:
        """The number of different words, with a relative standard error of 3.3 %."""
        self.flush()
        counts = np.bincount(self.registers, minlength=_LEVELS + 2)
        z = REGISTERS * _tau(1 - counts[_LEVELS + 1] / REGISTERS)
        for level in range(_LEVELS, 0, -1):
            z = 0.5 * (z + counts[level])
        z += REGISTERS * _sigma(counts[0] / REGISTERS)
        return REGISTERS**2 / (2 * np.log(2)) / z


def _sigma(x: float) -> float:
    if x == 1.0:
        return float("inf")
    y, z, before = 1.0, x, -1.0
    while z != before:
        x, before = x * x, z
        z, y = z + x * y, 2 * y
    return z


def _tau(x: float) -> float:
    if x in (0.0, 1.0):
        return 0.0
    y, z, before = 1.0, 1 - x, -1.0
    while z != before:
        x, before, y = x**0.5, z, 0.5 * y
        z -= (1 - x) ** 2 * y
    return z / 3
