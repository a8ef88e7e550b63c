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
from pipelines.data.order import mix
from pipelines.data.sketch import ERROR, DistinctSketch

FEW = 256
"""Up to that many different values are counted one by one."""

SAMPLE, SAMPLE_FLOATS = 8, 64
"""Of numbers and times one value in so many enters the sketch, chosen by a cheap hash of the value."""

TOP = 20
_PEEK_ROWS = 1024


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
    moments: tuple[int, float, float] = (0, 0.0, 0.0)
    few: dict[Any, int] | None = field(default_factory=dict)
    sketch: DistinctSketch = field(default_factory=DistinctSketch)

    def update(self, values: pa.Array) -> None:
        """Take in values."""
        self.rows += len(values)
        self.nulls += values.null_count
        if values.null_count:
            values = values.drop_null()
        if not len(values) or pa.types.is_nested(self.type):
            return
        if pa.types.is_floating(self.type):
            values = self._finite(values)
        if pa.types.is_dictionary(values.type):
            self._count_categories(values)
        elif len(values):
            self._widen(values)
            self._count(values)
            self._distinct(values)

    def merge(self, other: ColumnChecks) -> None:
        """Take in statistics of other rows."""
        self.rows += other.rows
        self.nulls += other.nulls
        self.nans += other.nans
        self.negative_infinities += other.negative_infinities
        self.positive_infinities += other.positive_infinities
        self.minimum = _least(self.minimum, other.minimum)
        self.maximum = _greatest(self.maximum, other.maximum)
        self.moments = join_moments(self.moments, other.moments)
        self.sketch.merge(other.sketch)
        self._add(other.few)

    def result(self) -> dict[str, Any]:
        """Describe the column in plain JSON values; `distinct_error` is a relative standard error."""
        described: dict[str, Any] = {"type": str(self.type), "nulls": self.nulls}
        if pa.types.is_nested(self.type):
            return described
        if pa.types.is_floating(self.type):
            described |= {"nan": self.nans, "inf": [self.negative_infinities, self.positive_infinities]}
        described |= {"min": _plain(self.minimum), "max": _plain(self.maximum)}
        count, mean, squares = self.moments
        if count:
            described |= {"mean": mean, "std": math.sqrt(squares / count)}
        if self.few is not None:
            ordered = sorted(self.few.items(), key=lambda pair: (-pair[1], str(pair[0])))
            described |= {"distinct": len(self.few), "distinct_error": 0.0}
            described["top"] = [[_plain(value), count] for value, count in ordered[:TOP]]
        elif hashable(self.type):
            described |= self._estimate()
        return described

    def _estimate(self) -> dict[str, Any]:
        share = _sampling(self.type)
        distinct = max(FEW + 1, round(self.sketch.estimate() * share))
        return {"distinct": distinct, "distinct_error": round(math.sqrt(ERROR**2 + (share - 1) / distinct), 4)}

    # --- numbers and text ---

    def _finite(self, values: pa.Array) -> pa.Array:
        """Count and leave out what is no finite number, and take the moments of the others."""
        numbers = values.to_numpy(zero_copy_only=False).astype(np.float64)
        total = float(numbers.sum())
        if not math.isfinite(total):
            self.nans += int(np.isnan(numbers).sum())
            self.negative_infinities += int((numbers == -np.inf).sum())
            self.positive_infinities += int((numbers == np.inf).sum())
            finite = np.isfinite(numbers)
            values, numbers = values.filter(pa.array(finite)), numbers[finite]
        self._moments_of(numbers)
        return values

    def _widen(self, values: pa.Array) -> None:
        if pa.types.is_integer(self.type) or pa.types.is_boolean(self.type) or pa.types.is_decimal(self.type):
            self._moments_of(values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False).copy())
        if pa.types.is_integer(self.type) or pa.types.is_floating(self.type):
            numbers = values.to_numpy(zero_copy_only=False)
            self._bound(numbers.min().item(), numbers.max().item())  # a twentieth of Arrow's time
        elif not (pa.types.is_binary(self.type) or pa.types.is_fixed_size_binary(self.type)):
            bounds = pc.min_max(values)
            self._bound(_value(bounds["min"]), _value(bounds["max"]))

    def _bound(self, minimum: Any, maximum: Any) -> None:
        self.minimum, self.maximum = _least(self.minimum, minimum), _greatest(self.maximum, maximum)

    def _moments_of(self, numbers: np.ndarray) -> None:
        """Take the moments of float64 numbers, which are used up."""
        if len(numbers):
            mean = float(numbers.mean())
            numbers -= mean
            np.square(numbers, out=numbers)
            self.moments = join_moments(self.moments, (len(numbers), mean, float(numbers.sum())))

    def _count(self, values: pa.Array) -> None:
        if self.few is None:
            return
        if pa.types.is_floating(self.type):  # −0 is 0
            values = pa.array(values.to_numpy(zero_copy_only=False) + self.type.to_pandas_dtype()(0))
        if len(pc.unique(values.slice(0, _PEEK_ROWS))) > FEW:
            self.few = None
            return
        counted = values.value_counts()
        found, counts = counted.field(0), counted.field(1).to_pylist()
        self._add(None if len(found) > FEW else dict(zip(map(_value, found), counts, strict=True)))

    def _distinct(self, values: pa.Array) -> None:
        if not hashable(self.type):
            return
        if _sampling(self.type) > 1:
            self.sketch.update(_sampled_hashes(values))
        else:
            self.sketch.update(hash_values(pc.unique(values)))

    # --- categories ---

    def _count_categories(self, values: pa.DictionaryArray) -> None:
        counts = np.bincount(values.indices.to_numpy(zero_copy_only=False), minlength=len(values.dictionary))
        used = np.flatnonzero(counts)
        distinct = values.dictionary.take(pa.array(used))
        if not pa.types.is_binary(distinct.type):
            bounds = pc.min_max(distinct)
            self._bound(_value(bounds["min"]), _value(bounds["max"]))
        self.sketch.update(hash_values(distinct))
        if self.few is not None:
            few = len(used) <= FEW
            self._add(dict(zip(map(_value, distinct), counts[used].tolist(), strict=True)) if few else None)

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


def join_moments(one: tuple[int, float, float], other: tuple[int, float, float]) -> tuple[int, float, float]:
    """Join counts, means and sums of squared deviations (Chan, Golub & LeVeque 1979)."""
    if not one[0] or not other[0]:
        return one if one[0] else other
    count = one[0] + other[0]
    delta = other[1] - one[1]
    mean = one[1] + delta * other[0] / count
    return count, mean, one[2] + other[2] + delta * delta * one[0] * other[0] / count


def _sampled_hashes(values: pa.Array) -> np.ndarray:
    """Hashes of a sample of the values, chosen by a cheap hash of the value; equal values share their fate."""
    plain, one_in = values, _sampling(values.type)
    if pa.types.is_temporal(values.type):
        plain = values.cast(pa.int32() if values.type.bit_width == 32 else pa.int64())
    elif pa.types.is_decimal(values.type):
        plain = values.cast(pa.float64(), safe=False)
    numbers = plain.to_numpy(zero_copy_only=False)
    if numbers.dtype.kind == "f":
        numbers = numbers + numbers.dtype.type(0)  # −0 is 0
    if numbers.dtype.itemsize < 4:
        numbers = numbers.astype(np.float32 if numbers.dtype.kind == "f" else np.int32)
    words = numbers.view(f"u{numbers.dtype.itemsize}")
    if words.dtype == np.uint32:
        chosen = words[(words * np.uint32(0x9E3779B1)) < np.uint32((1 << 32) // one_in)]
    else:
        chosen = words[(words * np.uint64(0x9E3779B97F4A7C15)) < np.uint64((1 << 64) // one_in)]
    return mix(chosen.astype(np.uint64) + np.uint64(0x2545F4914F6CDD1D))


def _sampling(type: pa.DataType) -> int:
    if pa.types.is_floating(type):
        return SAMPLE_FLOATS
    numeric = pa.types.is_integer(type) or pa.types.is_temporal(type) or pa.types.is_decimal(type)
    return SAMPLE if numeric else 1


def _value(scalar: pa.Scalar) -> Any:
    """A Python value that can be compared and is a key; times beyond Python's as text."""
    try:
        return scalar.as_py()
    except (ValueError, OverflowError):
        return str(scalar.cast(pa.string()))


def _least(one: Any, other: Any) -> Any:
    return other if one is None else one if other is None else min(one, other)


def _greatest(one: Any, other: Any) -> Any:
    return other if one is None else one if other is None else max(one, other)


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
