"""How are vectors added so that neither order nor grouping changes a bit? In integers, in bins at fixed places.

The method is that of indexed bins of Demmel and Nguyen ("Fast Reproducible Floating-Point Summation", ARITH 2013;
"Parallel Reproducible Summation", IEEE Transactions on Computers 2015; ReproBLAS). The range of doubles is cut into
bins of ``WIDTH`` bits at fixed places. Every addend is cut into slices, one per bin, each rounded to a multiple of its
bin's unit. Only the topmost bin that any addend reaches and the ``FOLDS - 1`` below it are kept, and the slices of a
bin are added exactly: so the kept sums are a function of the *set* of addends, and no exponent need be agreed upon
beforehand. Letters as in the papers: W width, K folds, u a bin's unit, M the constant that extracts a slice, since
fl(x + M) - M is x rounded to a multiple of u.

Where we depart from the papers: slices are counted in units of their bin, in 64-bit integers (the bits of fl(x + M)
less those of M are that count), which saves passes and needs no carries up to ``MAX_ADDENDS`` addends. An addend's
topmost bin is the lowest above which all bins round it to zero, so that rounding to nearest, ties to even, cuts the
same slices whatever else is added. Infinities and NaN travel as two flags beside the bin's number. A sum of zeros is
+0.

Error for n addends: each loses at most half a unit of the lowest kept bin, and the topmost unit is at most 2·max|x|;
the end rounds to double by less than one unit in the last place:

    |finish - Σx| ≤ n·2^(-W(K-1))·max|x| + 2^-52·|Σx|

With W = 50 and K = 3 the first term is n·2^-100·max|x|; a plain sum's bound is (n - 1)·2^-53·Σ|x|.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipelines.errors import TrainingError
from pipelines.training.gang.context import Array

WIDTH = 50
FOLDS = 3
MAX_ADDENDS = 1 << 13
"""A slice counts at most 2^(WIDTH - 1) units, so the counts of so many addends stay within 2^62, without carries."""

_PLACE, _PLUS, _MINUS = 0x3F, 0x40, 0x80  # an index: the bin; an infinity of that sign was added (NaN: both)
_TOPMOST = (2046 + 52) // WIDTH
# By an addend's exponent bits: |x| < 2^(bits - 1022), and a bin of unit 2^(WIDTH·bin - 1074) rounds to zero what is
# below half of it.
_PLACE_OF = ((np.arange(2048) + 52) // WIDTH).astype(np.uint8)
_EXPONENTS = WIDTH * np.arange(_TOPMOST + 1) - 1074
_UNITS = np.ldexp(1.0, _EXPONENTS)
# The topmost bin's M is beyond the doubles: where it is reached, slices are cut at 2^-128 of the size. What a double
# loses by that is far below the bins kept.
_SHRINK = np.where(np.arange(_TOPMOST + 1) == _TOPMOST, -128, 0)
# By topmost bin: M of every fold. Below bin 0 nothing is left to be cut, whatever the M.
_EXTRACT = [np.ldexp(1.5, 52 + np.maximum(_EXPONENTS - fold * WIDTH, -1074) + _SHRINK) for fold in range(FOLDS)]
_CHUNK = 1 << 13
"""Elements that are worked on at a time: with 4,096 Python's share shows, with 32,768 the caches are left."""
_HEADER = struct.Struct("<I")


@dataclass(frozen=True, eq=False)
class Binned:
    """A sum of vectors, so far.

    index : ndarray of uint8, shape (size,)
        Each element's topmost bin, and flags of what was not finite.
    counts : ndarray of int64, shape (FOLDS, size)
        Units of the topmost bin and of those below it.
    addends : int
    """

    index: Array
    counts: Array
    addends: int

    def part(self, start: int, stop: int) -> Binned:
        """Return some of the elements."""
        return Binned(self.index[start:stop], self.counts[:, start:stop], self.addends)

    def to_bytes(self) -> bytes:
        """Encode: 8·FOLDS + 1 bytes an element."""
        return b"".join((_HEADER.pack(self.addends), self.index.tobytes(), self.counts.tobytes()))

    @classmethod
    def from_bytes(cls, payload: bytes, size: int) -> Binned:
        """Decode a sum of vectors of `size` elements."""
        index = np.frombuffer(payload, np.uint8, size, _HEADER.size)
        counts = np.frombuffer(payload, np.int64, FOLDS * size, _HEADER.size + size)
        return cls(index, counts.reshape(FOLDS, size), *_HEADER.unpack_from(payload))


def deposit(rows: Array) -> Binned:
    """Add vectors, the rows of a matrix.

    Parameters
    ----------
    rows : ndarray of float64, shape (addends, size)

    Raises
    ------
    TrainingError
        There are more than ``MAX_ADDENDS``.
    """
    addends, size = rows.shape
    _check(addends)
    total = Binned(np.empty(size, np.uint8), np.zeros((FOLDS, size), np.int64), addends)
    space = np.empty((2, _CHUNK))
    for start in range(0, size, _CHUNK):
        _deposit_columns(rows[:, start : start + _CHUNK], total.part(start, start + _CHUNK), space)
    return total


def merge(sums: Sequence[Binned]) -> Binned:
    """Add sums of vectors of one size: to the same counts in whatever order and grouping.

    Raises
    ------
    TrainingError
        They have more than ``MAX_ADDENDS`` addends together.
    """
    addends = sum(each.addends for each in sums)
    _check(addends)
    place, flags = sums[0].index & _PLACE, sums[0].index & ~np.uint8(_PLACE)
    for each in sums[1:]:
        np.maximum(place, each.index & _PLACE, out=place)
        flags |= each.index & ~np.uint8(_PLACE)
    counts = _aligned(sums[0], place).copy()
    for each in sums[1:]:
        counts += _aligned(each, place)
    return Binned(place | flags, counts, addends)


def finish(total: Binned) -> Array:
    """Round a sum of vectors to float64; infinite where the exact sum is beyond the doubles."""
    result = np.empty(len(total.index))
    for start in range(0, len(result), _CHUNK):
        result[start : start + _CHUNK] = _rounded(total.part(start, start + _CHUNK))
    return result


def _check(addends: int) -> None:
    if addends > MAX_ADDENDS:
        raise TrainingError(
            "a reproducible sum can't take so many addends",
            expected=f"at most {MAX_ADDENDS:,}",
            found=f"{addends:,}",
            remedy="Train with fewer lanes.",
        )


def _deposit_columns(rows: Array, total: Binned, space: Array) -> None:
    """Fill `total`, with as many rows at a time as fill `space`: long ones one by one, short ones share NumPy's calls.

    The constants are written out for each of them: operands that are common to rows halve the speed.
    """
    width = rows.shape[1]
    together = max(1, min(len(rows), _CHUNK // width))
    groups = [rows[first : first + together] for first in range(0, len(rows), together)]
    largest = _largest(groups, width)
    finite = bool(np.isfinite(largest.max()))
    if not finite:
        flags = _flags(rows)
        groups = [np.where(np.isfinite(group), group, 0.0) for group in groups]
        largest = _largest(groups, width)
    place = _PLACE_OF.take(largest.view(np.int64) >> 52)
    total.index[:] = place if finite else place | flags
    if place.max() == _TOPMOST:
        shrink = np.ldexp(1.0, _SHRINK).take(place)
        groups = [group * shrink for group in groups]
    constants = [np.repeat(table.take(place)[None], together, axis=0) for table in _EXTRACT]  # M of each fold
    counts = list(total.counts)
    rest, cut = space[:, : together * width].reshape(2, together, width)
    bits = cut.view(np.int64)
    for left in groups:
        if len(left) < len(cut):  # the last ones
            rest, cut, bits, *constants = (each[: len(left)] for each in (rest, cut, bits, *constants))
        for fold in range(FOLDS):
            np.add(left, constants[fold], out=cut)
            np.add(counts[fold], _reduced(np.add, bits), out=counts[fold])
            if fold < FOLDS - 1:
                np.subtract(cut, constants[fold], out=cut)
                left = np.subtract(left, cut, out=rest)
    for fold in range(FOLDS):
        # The bits of all the M's together overflow, as the counts have: what is left is exact, modulo 2^64.
        counts[fold] -= constants[fold][0].view(np.int64) * np.int64(len(rows))


def _largest(groups: Sequence[Array], width: int) -> Array:
    """Return max|x| of every column; not finite where an element is not."""
    high, low = np.zeros(width), np.zeros(width)
    for group in groups:
        np.maximum(high, _reduced(np.maximum, group), out=high)
        np.minimum(low, _reduced(np.minimum, group), out=low)
    return np.maximum(high, np.negative(low, out=low), out=high)


def _reduced(operation: np.ufunc, rows: Array) -> Array:
    """Reduce to one row, at no cost where there is but one."""
    found: Array = rows[0] if len(rows) == 1 else operation.reduce(rows, axis=0)
    return found


def _flags(rows: Array) -> Array:
    nan = np.isnan(rows).any(axis=0)
    plus, minus = (rows == np.inf).any(axis=0) | nan, (rows == -np.inf).any(axis=0) | nan
    flags: Array = np.where(plus, _PLUS, 0) | np.where(minus, _MINUS, 0)
    return flags.astype(np.uint8)


def _aligned(each: Binned, place: Array) -> Array:
    """Counts of the bins from `place` on downwards; what is below them is dropped."""
    behind = place - (each.index & _PLACE)
    if not behind.any():
        return each.counts
    moved = np.flatnonzero(behind)
    counts = each.counts.copy()
    source = np.arange(FOLDS)[:, None] - behind[moved].astype(np.intp)
    counts[:, moved] = np.where(source < 0, 0, each.counts[np.maximum(source, 0), moved])
    return counts


def _rounded(total: Binned) -> Array:
    counts = total.counts.copy()
    for fold in range(FOLDS - 1, 0, -1):  # so that each bin below the topmost holds at most half a unit of the next
        carry = (counts[fold] + (1 << (WIDTH - 1))) >> WIDTH
        counts[fold - 1] += carry
        counts[fold] -= carry << WIDTH
    below = np.zeros(counts.shape[1])
    for fold in range(FOLDS - 1, 0, -1):
        below = (below + counts[fold]) * 2.0**-WIDTH
    top = counts[0].astype(np.float64)
    below += counts[0] - top.astype(np.int64)
    with np.errstate(over="ignore"):
        # Subnormal results are exact: a sum that is below 2^-1022 has few enough bits.
        result: Array = (top + below) * _UNITS.take(total.index & _PLACE)
    if total.index.max() > _PLACE:
        plus, minus = (total.index & _PLUS) > 0, (total.index & _MINUS) > 0
        result[plus], result[minus], result[plus & minus] = np.inf, -np.inf, np.nan
    return result
