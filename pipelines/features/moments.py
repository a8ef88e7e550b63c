"""Which mean, variance and range have a column's values? Mergeable, stable, in float64."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

BLOCK = 8192
"""Rows at once: their float64 copy is 64 KiB; and OpenBLAS takes one thread for a dot product of up to 10,000, so that
sums do not hang on the number of threads."""

CHUNK = 8 * BLOCK
"""Rows that share a provisional mean, see `_measure_chunk`."""

STEADY_BITS = 32


@dataclass(frozen=True)
class Moments:
    """Summary of numbers.

    Parameters
    ----------
    count : int
        Finite values.
    missing : int
        Nulls and NaN.
    infinite : int
    mean, rest : float
        The mean is their sum: in two parts it is good to some 10⁻¹⁵ standard deviations, however large it is.
    squares : float
        Sum of squared differences from the mean.
    low, high : float
        Smallest and largest finite value; ``inf`` and ``-inf`` if there is none.
    """

    count: int = 0
    missing: int = 0
    infinite: int = 0
    mean: float = 0.0
    rest: float = 0.0
    squares: float = 0.0
    low: float = math.inf
    high: float = -math.inf

    def merge(self, other: Moments) -> Moments:
        """Join with the summary of other values (Chan, Golub & LeVeque 1979)."""
        if self is NOTHING:
            return other
        missing, infinite = self.missing + other.missing, self.infinite + other.infinite
        if not (self.count and other.count):
            return replace(self if self.count else other, missing=missing, infinite=infinite)
        count = self.count + other.count
        delta = (other.mean - self.mean) + (other.rest - self.rest)
        share = other.count / count
        mean, rest = _two_sum(self.mean, self.rest + delta * share)
        return Moments(
            count,
            missing,
            infinite,
            mean,
            rest,
            self.squares + other.squares + delta * delta * self.count * share,
            min(self.low, other.low),
            max(self.high, other.high),
        )

    @property
    def constant(self) -> bool:
        """Whether all finite values are equal."""
        return self.low == self.high


NOTHING = Moments()
"""The summary of no values."""


def measure(values: np.ndarray) -> Moments:
    """Summarise numbers (any real dtype, shape (rows,), NaN where null)."""
    if not len(values):
        return NOTHING
    low, high = float(values.min()), float(values.max())
    if not (math.isfinite(low) and math.isfinite(high)):
        missing = int(np.count_nonzero(np.isnan(values)))
        finite = values[np.isfinite(values)]
        return replace(measure(finite), missing=missing, infinite=len(values) - len(finite) - missing)
    found = NOTHING
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, len(values), CHUNK):
            found = found.merge(_measure_chunk(values[start : start + CHUNK], low, high))
    return found


def _measure_chunk(values: np.ndarray, low: float, high: float) -> Moments:
    """Sum differences, and their squares, from the mean c of the first block; `low` and `high` are passed on.

    That is safe: the first block is at least an eighth of the chunk, so (c − mean)² is at most seven times the variance
    of the chunk, and the subtraction of it loses three bits at most.
    """
    space, ones = np.empty(min(BLOCK, len(values))), np.ones(min(BLOCK, len(values)))
    np.copyto(space, values[: len(space)])
    center = float(space.dot(ones)) / len(space)
    total = squares = 0.0
    for start in range(0, len(values), BLOCK):
        block = values[start : start + BLOCK]
        part = space[: len(block)]
        np.copyto(part, block)
        part -= center
        total += float(part.dot(ones[: len(block)]))
        squares += float(part.dot(part))
    shift = total / len(values)
    mean, rest = _two_sum(center, shift)
    squares -= total * shift
    return Moments(len(values), 0, 0, mean, rest, 0.0 if squares < 0.0 else squares, low, high)


def steady(moments: Moments) -> tuple[float, float]:
    """Mean and standard deviation, rounded so that how rows were grouped leaves no trace.

    Sums in another order differ in their last bits. Both are rounded to 32 bits below the standard deviation's leading
    one, 500 times finer than float32 resolves the scaled values: then other shards give the same plan, but for odds of
    some 10⁻⁵.

    Raises
    ------
    OverflowError
        The variance passes float64's range.
    """
    if moments.count == 0 or moments.constant:
        return (moments.low if moments.count else 0.0), 0.0
    std = math.sqrt(moments.squares / moments.count) if moments.squares >= 0 else math.nan
    if not math.isfinite(std):
        raise OverflowError("variance")
    if std == 0.0:
        return moments.mean, 0.0
    quantum = math.ldexp(1.0, max(math.frexp(std)[1] - STEADY_BITS, -1074))
    return _rounded(moments.mean, quantum, moments.rest), _rounded(std, quantum)


def _two_sum(large: float, small: float) -> tuple[float, float]:
    """A sum as the nearest float64 and what is left of it (Dekker 1971)."""
    total = large + small
    if abs(large) < abs(small):
        large, small = small, large
    return total, small - (total - large)


def _rounded(value: float, quantum: float, rest: float = 0.0) -> float:
    """Round to a multiple of `quantum`; where float64 is coarser than that, it rounds by itself."""
    if abs(value) >= quantum * 2.0**52:
        return value
    whole = round(value / quantum)
    return (whole + round(value / quantum - whole + rest / quantum)) * quantum
