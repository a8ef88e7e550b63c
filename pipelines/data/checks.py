"""What is in the rows? Statistics of every column that merge, so that one pass over the shards finds them.

Per column: nulls, not-a-numbers and infinities, the range, mean and standard deviation, how many different values there
are, and the most frequent ones where they are few. The distribution of a label is that of its column.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.data.hashing import hash_values, hashable
from pipelines.data.sketch import ERROR, DistinctSketch

FEW = 256
"""Up to that many different values are counted one by one."""

SAMPLE, SAMPLE_FLOATS = 8, 64
"""Of numbers and times one value in so many enters the sketch, chosen by a cheap hash of the value."""

TOP = 20
_PEEK_ROWS = 1024
_BLOCK = 8192  # dot products of more than 10,000 numbers would wake OpenBLAS's threads


@dataclass
class ColumnChecks:
    """Statistics of one column. `merge` is associative, up to the rounding of mean and deviation."""

    type: pa.DataType
    rows: int = 0
    nulls: int = 0
    nans: int = 0
    negative_infinities: int = 0
    positive_infinities: int = 0
    minimum: Any = None
    maximum: Any = None
    moments: Moments = (0, 0.0, 0.0)
    few: dict[Any, int] | None = field(default_factory=dict)
    sketch: DistinctSketch = field(default_factory=DistinctSketch)

    def __post_init__(self) -> None:
        types = pa.types
        self._floats = types.is_floating(self.type)
        self._numbers = self._floats or types.is_integer(self.type)
        self._opaque = types.is_nested(self.type)
        self._ordered = not (types.is_binary(self.type) or types.is_fixed_size_binary(self.type))
        self._one_in = SAMPLE_FLOATS if self._floats else SAMPLE if self._numbers or types.is_temporal(self.type) else 1

    def update(self, values: pa.Array) -> None:
        """Take in values."""
        self.rows += len(values)
        if values.null_count:
            self.nulls += values.null_count
            values = values.drop_null()
        if self._opaque or not len(values):
            return
        if self._numbers:
            numbers = values.to_numpy(zero_copy_only=False)
            low, high = numbers.min(), numbers.max()  # a twentieth of the time of Arrow's min_max
            if self._floats and not (math.isfinite(low) and math.isfinite(high)):
                numbers = self._finite(numbers)
                low, high = (numbers.min(), numbers.max()) if len(numbers) else (low, high)
            if len(numbers):
                self._bound(low.item(), high.item())
                self.moments = join_moments(self.moments, moments_of(numbers.astype(np.float64)))
                self._count_numbers(numbers)
                self.sketch.update(sampled_words(numbers, self._one_in))
        elif pa.types.is_dictionary(values.type):
            self._update_categories(values)
        else:
            self._update_others(values)

    def merge(self, other: ColumnChecks) -> None:
        """Take in statistics of other rows."""
        self.rows += other.rows
        self.nulls += other.nulls
        self.nans += other.nans
        self.negative_infinities += other.negative_infinities
        self.positive_infinities += other.positive_infinities
        self._bound(other.minimum, other.maximum)
        self.moments = join_moments(self.moments, other.moments)
        self.sketch.merge(other.sketch)
        self._add(other.few)

    def result(self) -> dict[str, Any]:
        """Describe the column in plain JSON values; `distinct_error` is a relative standard error."""
        described: dict[str, Any] = {"type": str(self.type), "nulls": self.nulls}
        if self._opaque:
            return described
        if self._floats:
            described |= {"nan": self.nans, "inf": [self.negative_infinities, self.positive_infinities]}
        described |= {"min": _plain(self.minimum), "max": _plain(self.maximum)}
        count, mean, squares = self.moments
        if count:
            described |= {"mean": _plain(mean), "std": _plain(math.sqrt(squares / count))}
        if self.few is not None:
            ordered = sorted(self.few.items(), key=lambda pair: (-pair[1], str(pair[0])))
            described |= {"distinct": len(self.few), "distinct_error": 0.0}
            described["top"] = [[_plain(value), count] for value, count in ordered[:TOP]]
        elif hashable(self.type):
            distinct = max(FEW + 1, round(self.sketch.estimate() * self._one_in))
            error = math.sqrt(ERROR**2 + (self._one_in - 1) / distinct)
            described |= {"distinct": distinct, "distinct_error": round(error, 4)}
        return described

    def _finite(self, numbers: np.ndarray) -> np.ndarray:
        """Count and leave out what is no finite number."""
        self.nans += int(np.isnan(numbers).sum())
        self.negative_infinities += int((numbers == -np.inf).sum())
        self.positive_infinities += int((numbers == np.inf).sum())
        return numbers[np.isfinite(numbers)]

    def _count_numbers(self, numbers: np.ndarray) -> None:
        """Count values one by one for as long as they are few; −0 is 0."""
        if self.few is None:
            return
        if len(np.unique(numbers[:_PEEK_ROWS])) > FEW:
            self.few = None
            return
        found, counts = np.unique(numbers, return_counts=True)
        self._add(dict(zip((found + found.dtype.type(0)).tolist(), counts.tolist(), strict=True)))

    def _update_others(self, values: pa.Array) -> None:
        """Text, times, booleans, decimals."""
        if pa.types.is_temporal(self.type):  # as integers: Arrow has no range of durations
            whole = pa.int32() if self.type.bit_width == 32 else pa.int64()
            numbers = values.cast(whole).to_numpy(zero_copy_only=False)
            self._bound(*map(_value, pa.array([numbers.min(), numbers.max()], whole).cast(self.type)))
            self.sketch.update(sampled_words(numbers, self._one_in))
        elif self._ordered:
            self._bound(*map(_value, _min_max(values)))
        if pa.types.is_boolean(self.type) or pa.types.is_decimal(self.type):
            numbers = values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
            self.moments = join_moments(self.moments, moments_of(numbers.copy()))
        if self.few is not None:
            if len(pc.unique(values.slice(0, _PEEK_ROWS))) > FEW:
                self.few = None
            else:
                counted = values.value_counts()
                self._add(_counted(counted.field(0), counted.field(1).to_pylist()))
        if hashable(self.type) and not pa.types.is_temporal(self.type):
            self.sketch.update(hash_values(pc.unique(values)))

    def _update_categories(self, values: pa.DictionaryArray) -> None:
        counts = np.bincount(values.indices.to_numpy(zero_copy_only=False), minlength=len(values.dictionary))
        used = np.flatnonzero(counts)
        distinct = values.dictionary.take(pa.array(used))
        if not pa.types.is_binary(distinct.type):
            self._bound(*map(_value, _min_max(distinct)))
        self.sketch.update(hash_values(distinct))
        if self.few is not None:
            self._add(_counted(distinct, counts[used].tolist()))

    def _bound(self, minimum: Any, maximum: Any) -> None:
        if minimum is not None:
            self.minimum = minimum if self.minimum is None else min(self.minimum, minimum)
            self.maximum = maximum if self.maximum is None else max(self.maximum, maximum)

    def _add(self, counts: Mapping[Any, int] | None) -> None:
        if self.few is None or counts is None:
            self.few = None
            return
        for value, count in counts.items():
            self.few[value] = self.few.get(value, 0) + count
        if len(self.few) > FEW:
            self.few = None


class Checks:
    """Statistics of all columns of batches of one schema. Picklable; `merge` in shard order for the same last bits."""

    def __init__(self, schema: pa.Schema) -> None:
        self.rows = 0
        self.columns = {each.name: ColumnChecks(each.type) for each in schema}

    def update(self, batch: pa.RecordBatch) -> None:
        """Take in a batch that has these columns."""
        self.rows += batch.num_rows
        for name, column in self.columns.items():
            column.update(batch[name])

    def merge(self, other: Checks) -> None:
        """Take in statistics of other rows of the same columns."""
        self.rows += other.rows
        for name, column in self.columns.items():
            column.merge(other.columns[name])

    def result(self) -> dict[str, Any]:
        """Describe everything in plain JSON values."""
        return {"rows": self.rows, "columns": {name: column.result() for name, column in self.columns.items()}}


Moments = tuple[int, float, float]
"""Count, mean, sum of squared deviations."""


def moments_of(numbers: np.ndarray) -> Moments:
    """Take the moments of float64 numbers (at least one), which are used up."""
    mean = float(np.add.reduce(numbers)) / len(numbers)
    numbers -= mean
    blocks = (numbers[start : start + _BLOCK] for start in range(0, len(numbers), _BLOCK))
    return len(numbers), mean, sum(float(block @ block) for block in blocks)


def join_moments(one: Moments, other: Moments) -> Moments:
    """Join moments of different rows (Chan, Golub & LeVeque 1979)."""
    if not one[0] or not other[0]:
        return one if one[0] else other
    count = one[0] + other[0]
    delta = other[1] - one[1]
    mean = one[1] + delta * other[0] / count
    return count, mean, one[2] + other[2] + delta * delta * one[0] * other[0] / count


def sampled_words(numbers: np.ndarray, one_in: int) -> np.ndarray:
    """Choose values by a cheap hash of the value, so that equal ones share their fate; as 64-bit words."""
    if numbers.dtype.itemsize < 4:
        numbers = numbers.astype(np.float32 if numbers.dtype.kind == "f" else np.int32)
    words = numbers.view(f"u{numbers.dtype.itemsize}")
    if words.dtype == np.uint32:
        chosen = words[(words * np.uint32(0x9E3779B1)) < np.uint32((1 << 32) // one_in)]
    else:
        chosen = words[(words * np.uint64(0x9E3779B97F4A7C15)) < np.uint64((1 << 64) // one_in)]
    return chosen.astype(np.uint64)


def _counted(values: pa.Array, counts: list[int]) -> dict[Any, int] | None:
    return None if len(values) > FEW else dict(zip(map(_value, values), counts, strict=True))


def _min_max(values: pa.Array) -> tuple[pa.Scalar, pa.Scalar]:
    found = pc.min_max(values)
    return found["min"], found["max"]


def _value(scalar: pa.Scalar) -> Any:
    """A Python value that can be compared and is a key; times beyond Python's as their number."""
    try:
        return scalar.as_py()
    except (ValueError, OverflowError):
        return scalar.value


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
