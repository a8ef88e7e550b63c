"""Exact sums of float64: the same in any order and grouping, so that workers and shards don't show in a metric.

A float64 is an integer times a power of two. Values are split into their integer halves, halves of one exponent are
added by `bincount` (exact: 2^26 numbers of 27 bits fit into float64's 53), and the exponents are put together as one
Python integer in units of 2^-1126. Such integers are what partial states hold; adding them is exact and associative.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.intp]

_SHIFT = 1126  # the smallest float64 has exponent -1073 for np.frexp, and its 53 bits end at 2^-1126
# Rows at a time, far below the 2^26 that bincount adds exactly: what stays in the cache (11 ns a row; 15 at 2^20), or,
# where there are groups, so many that putting their cells together does not count.
_ROWS, _GROUPED_ROWS = 1 << 17, 1 << 20


def grouped_sums(values: Floats, groups: Codes | None = None, count: int = 1) -> list[int]:
    """Add values exactly, by group.

    Parameters
    ----------
    values : ndarray of float64, shape (rows,)
        Finite.
    groups : ndarray of intp, shape (rows,), optional
        The group of each value, in ``range(count)``; None puts all into group 0.
    count : int
        Number of groups.

    Returns
    -------
    list of int, length `count`
        Sums in units of 2^-1126; `as_float` rounds them once.
    """
    totals = [0] * count
    step = _ROWS if count <= 8 else _GROUPED_ROWS
    for start in range(0, len(values), step):
        rows = slice(start, start + step)
        _add_block(totals, values[rows], None if groups is None else groups[rows])
    return totals


def grouped_counts(groups: Codes, count: int) -> list[int]:
    """Count the rows of each group, in the same units as `grouped_sums` of ones."""
    return [int(n) << _SHIFT for n in np.bincount(groups, minlength=count)]


def exact(value: float) -> int:
    """Write a finite float in the units of sums, without rounding."""
    numerator, denominator = value.as_integer_ratio()
    return (numerator << _SHIFT) // denominator


def whole(value: int) -> int:
    """Write a whole number in the units of sums."""
    return value << _SHIFT


def as_float(total: int) -> float:
    """Round a sum to the nearest float64."""
    return total / (1 << _SHIFT)


def ratio(numerator: int, denominator: int) -> float:
    """Divide two sums, rounding once."""
    return numerator / denominator


def two_product(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """Multiply without loss: ``a · b = product + error`` exactly (Dekker 1971), barring overflow and underflow."""
    product = a * b
    a_high, a_low = _halves(a)
    b_high, b_low = _halves(b)
    error = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    return product, error


def _halves(x: Floats) -> tuple[Floats, Floats]:
    scaled = x * 134217729.0  # 2^27 + 1, Veltkamp's splitter
    high = scaled - (scaled - x)
    return high, x - high


def _add_block(totals: list[int], values: Floats, groups: Codes | None) -> None:
    mantissa, exponent = np.frexp(values)
    low = int(exponent.min())
    width = int(exponent.max()) - low + 1
    cells: Any = exponent.astype(np.intp)
    cells -= low
    if groups is not None:
        cells += groups * width
    mantissa *= float(1 << 27)
    upper = np.floor(mantissa)
    mantissa -= upper
    mantissa *= float(1 << 26)
    size = width * len(totals)
    uppers: Floats = np.bincount(cells, weights=upper, minlength=size).astype(np.float64, copy=False)
    lowers: Floats = np.bincount(cells, weights=mantissa, minlength=size).astype(np.float64, copy=False)
    _put_together(totals, uppers, lowers, width, low)


def _put_together(totals: list[int], uppers: Floats, lowers: Floats, width: int, low: int) -> None:
    for cell in np.flatnonzero((uppers != 0) | (lowers != 0)).tolist():
        group, offset = divmod(cell, width)
        units = (int(uppers[cell]) << 26) + int(lowers[cell])
        totals[group] += units << (offset + low + _SHIFT - 53)


def add(left: Sequence[int], right: Sequence[int]) -> list[int]:
    """Add sums group by group."""
    return [a + b for a, b in zip(left, right, strict=True)]
