"""How is a step applied to a batch? A column at a time, over blocks that stay in the cache.

What a row becomes depends on that row only, by elementwise IEEE operations and table look-ups, so results are the same
bits however rows are batched.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

import numpy as np
import pyarrow as pa

from pipelines.data.hashing import hash_values, seed_word
from pipelines.features.columns import (
    BLOCK,
    Columns,
    category_codes,
    category_type,
    is_number,
    is_single,
    missing_values,
)
from pipelines.features.dates import cycle
from pipelines.features.steps import Bins, Category, Cyclic, Dictionaries, Hashed, Layout, Missing, Number


class Applied(Protocol):
    """A step made ready to run."""

    width: int

    def write(self, columns: Columns, out: np.ndarray) -> None:
        """Write the step's output columns, shape (rows, width), float32."""


class AppliedNumber:
    """Scaling and imputation."""

    width = 1

    def __init__(self, step: Number, type_: pa.DataType) -> None:
        self._input = step.input
        self._center, self._scale = step.center, 1.0 / step.scale
        self._plain = step.center == 0.0 and step.scale == 1.0
        with np.errstate(over="ignore"):
            # The centre in two float32 numbers: x - high is all but exact where it matters, near the centre.
            self._high = np.float32(step.center)
            self._low = np.float32(step.center - float(self._high))
            self._single_scale = np.float32(self._scale)
        tiny, largest = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)
        fits = abs(step.center) < largest and tiny <= abs(self._scale) <= largest
        self._single = step.input.part is None and is_single(type_) and fits
        # No integer, scaled, can pass float32's range: then there is nothing to look for.
        self._whole_numbers_fit = abs(self._scale) * (2.0**64 + abs(step.center)) < largest
        self._fill = np.float32(np.nan) if step.fill is None else np.float32((step.fill - step.center) * self._scale)

    def write(self, columns: Columns, out: np.ndarray) -> None:
        """Write the scaled numbers."""
        values, column = columns.numbers(self._input), out[:, 0]
        finite = values.dtype.kind != "f" and self._whole_numbers_fit
        with np.errstate(over="ignore", invalid="ignore"):
            for start in range(0, len(values), BLOCK):
                block, target = values[start : start + BLOCK], column[start : start + BLOCK]
                self._scaled(block, target, columns)
                if finite:
                    continue
                there = np.isfinite(target, out=columns.flags[: len(block)])
                if np.count_nonzero(there) < len(block):
                    target[~there] = self._fill

    def _scaled(self, block: np.ndarray, target: np.ndarray, columns: Columns) -> None:
        if self._plain:
            if block.dtype.kind in "iu" and block.dtype.itemsize == 8:
                # By way of float64, as where there are nulls: rounded once or twice, it must be the same.
                np.copyto(columns.space[: len(block)], block)
                block = columns.space[: len(block)]
            np.copyto(target, block, casting="same_kind")
        elif self._single:
            if block.dtype == np.float32:
                np.subtract(block, self._high, out=target)
            else:
                np.copyto(target, block, casting="same_kind")
                np.subtract(target, self._high, out=target)
            np.subtract(target, self._low, out=target)
            np.multiply(target, self._single_scale, out=target)
        else:
            # One operation at a time: a cast inside an operation goes through NumPy's buffers at a third of the speed.
            space = columns.space[: len(block)]
            np.copyto(space, block)
            np.subtract(space, self._center, out=space)
            np.multiply(space, self._scale, out=space)
            np.copyto(target, space, casting="same_kind")


class AppliedCyclic:
    """Sine and cosine by look-up."""

    width = 2

    def __init__(self, step: Cyclic) -> None:
        self._input = step.input
        self._tables = cycle(step.input.part or "")
        without = np.float32(0.0 if step.centre else np.nan)
        self._fill = [without if step.fill is None else table[step.fill] for table in self._tables]

    def write(self, columns: Columns, out: np.ndarray) -> None:
        """Write sines and cosines."""
        values = columns.numbers(self._input)
        missing = np.isnan(values) if values.dtype.kind == "f" else None
        places = (values if missing is None else np.where(missing, 0, values)).astype(np.int64, copy=False)
        for place, table in enumerate(self._tables):
            np.take(table, places, out=out[:, place], mode="clip")
            if missing is not None:
                out[missing, place] = self._fill[place]


class AppliedMissing:
    """The indicator of missing values."""

    width = 1

    def __init__(self, step: Missing, type_: pa.DataType) -> None:
        self._input, self._numeric = step.input, is_number(type_) or pa.types.is_boolean(type_)

    def write(self, columns: Columns, out: np.ndarray) -> None:
        """Write ones and zeros."""
        if self._numeric:
            missing = ~np.isfinite(columns.numbers(self._input))
        else:
            missing = missing_values(columns.column(self._input.column))
        np.copyto(out[:, 0], 0.0 if missing is None else missing)


class AppliedCodes(ABC):
    """What bins, categories and hashed values have in common: a code, written as the layout wants it."""

    def __init__(self, layout: Layout, width: int, missing: int) -> None:
        self.layout, self._missing = layout, missing
        self.width = width if layout == "one_hot" else 1

    @abstractmethod
    def codes(self, columns: Columns) -> np.ndarray:
        """Give the code of each row (integers, shape (rows,)), −1 for none."""

    def write(self, columns: Columns, out: np.ndarray) -> None:
        """Write the codes, or a one in the column of each row's code."""
        codes = self.codes(columns)
        if self.layout == "one_hot":
            out[:] = 0.0
            rows = np.flatnonzero(codes >= 0)
            out[rows, codes[rows]] = 1.0
        else:
            column = out[:, 0]
            np.copyto(column, codes, casting="unsafe")
            if self.layout == "native":
                column[codes < 0] = np.nan


class AppliedBins(AppliedCodes):
    """The bin of a number, found in float64 as the edges are."""

    def __init__(self, step: Bins) -> None:
        last = len(step.edges) + 1
        self._edges, self._input = np.array(step.edges), step.input
        fill = -1 if step.fill is None else int(np.searchsorted(self._edges, step.fill, side="right"))
        super().__init__(step.layout, last + step.missing, last if step.missing else fill)

    def codes(self, columns: Columns) -> np.ndarray:
        """Find bins."""
        values = columns.numbers(self._input)
        codes = np.searchsorted(self._edges, values, side="right")
        there = np.isfinite(values)
        if not there.all():
            codes[~there] = self._missing
        return codes


class AppliedCategory(AppliedCodes):
    """The place of a value in its dictionary."""

    def __init__(self, step: Category, dictionaries: Dictionaries) -> None:
        self._dictionary, self._input = dictionaries[step.dictionary], step.input
        count = len(self._dictionary) + step.other
        self._other = len(self._dictionary) if step.other else -1
        fill = -1 if step.fill is None else step.fill
        super().__init__(step.layout, count + step.missing, count if step.missing else fill)

    def codes(self, columns: Columns) -> np.ndarray:
        """Look values up."""
        codes, missing = category_codes(columns.categories(self._input, self._dictionary.type), self._dictionary)
        if self._other >= 0 and (codes < 0).any():
            codes = np.where(codes < 0, np.int32(self._other), codes)
        if missing is not None:
            codes = np.where(missing, np.int32(self._missing), codes)
        return codes


class AppliedHash(AppliedCodes):
    """The bucket of a value."""

    def __init__(self, step: Hashed, type_: pa.DataType) -> None:
        self._input, self._buckets = step.input, step.buckets
        self._type = pa.int64() if step.input.part is not None else category_type(type_)
        super().__init__(step.layout, step.buckets, -1 if step.fill is None else step.fill)

    def codes(self, columns: Columns) -> np.ndarray:
        """Hash values."""
        values = columns.categories(self._input, self._type)
        codes = hash_buckets(values, self._buckets)
        missing = missing_values(values)
        if missing is not None:
            codes[missing] = self._missing
        return codes


_HASH_SEED = seed_word("features", "hash")


def hash_buckets(values: pa.Array, buckets: int) -> np.ndarray:
    """Put values into buckets by a hash that is the same on every machine and for every width of a type.

    Multiply-shift on the hash's upper half: even to one in 2**32 / buckets.

    Returns
    -------
    ndarray of int32, shape (rows,)
    """
    words = hash_values(values, _HASH_SEED) >> np.uint64(32)
    return ((words * np.uint64(buckets)) >> np.uint64(32)).astype(np.int32)
