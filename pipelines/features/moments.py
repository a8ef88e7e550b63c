"""Which mean, variance and range have a column's values? Mergeable, stable, in float64."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

BLOCK = 16_384
"""Rows at once: their float64 copy stays in the second-level cache."""

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
    mean : float
    squares : float
        Sum of squared differences from the mean.
    low, high : float
        Smallest and largest finite value; ``inf`` and ``-inf`` if there is none.
    """

    count: int = 0
    missing: int = 0
    infinite: int = 0
    mean: float = 0.0
    squares: float = 0.0
    low: float = math.inf
    high: float = -math.inf

    def merge(self, other: Moments) -> Moments:
        """Join with the summary of other values (Chan, Golub & LeVeque 1979)."""
        count = self.count + other.count
        delta = other.mean - self.mean
        share = other.count / count if count else 0.0
        return Moments(
            count,
            self.missing + other.missing,
            self.infinite + other.infinite,
            other.mean if self.count == 0 else self.mean + delta * share,
            self.squares + other.squares + delta * delta * self.count * share,
            min(self.low, other.low),
            max(self.high, other.high),
        )

    @property
    def constant(self) -> bool:
        """Whether all finite values are equal."""
        return self.low == self.high

    @property
    def std(self) -> float:
        """Population standard deviation, see `steady`."""
        return steady(self)[1]


def measure(values: np.ndarray) -> Moments:
    """Summarise numbers (any real dtype, shape (rows,), NaN where null)."""
    result = Moments()
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, len(values), BLOCK):
            result = result.merge(_measure_block(values[start : start + BLOCK]))
    return result


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
    std = math.sqrt(moments.squares / moments.count)
    if not math.isfinite(std):
        raise OverflowError("variance")
    if std == 0.0:
        return moments.mean, 0.0
    quantum = math.ldexp(1.0, max(math.frexp(std)[1] - STEADY_BITS, -1074))
    return _rounded(moments.mean, quantum), _rounded(std, quantum)


def _rounded(value: float, quantum: float) -> float:
    return round(value / quantum) * quantum if abs(value) < quantum * 2.0**53 else value


def _measure_block(values: np.ndarray) -> Moments:
    low, high = float(values.min()), float(values.max())
    missing = infinite = 0
    if not (math.isfinite(low) and math.isfinite(high)):
        finite = np.isfinite(values)
        missing = int(np.count_nonzero(np.isnan(values)))
        infinite = len(values) - int(np.count_nonzero(finite)) - missing
        values = values[finite]
        if not len(values):
            return Moments(missing=missing, infinite=infinite)
        low, high = float(values.min()), float(values.max())
    differences = values.astype(np.float64)
    mean = float(differences.mean())
    differences -= mean
    np.square(differences, out=differences)
    return Moments(len(values), missing, infinite, mean, float(differences.sum()), low, high)
