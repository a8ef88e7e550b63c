"""Which distinct values has a column, and how often is each? Exact up to a cap, mergeable in any order."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.features.columns import missing_values

MOST_DISTINCT = 262_144
"""Distinct values that are counted for dictionaries and modes: a few MiB a column and shard."""

FEW_DISTINCT = 1024
"""Distinct numbers that are counted so that quantiles are exact."""


@dataclass(frozen=True, eq=False)
class Counts:
    """Distinct values in order, and how often each was seen.

    Parameters
    ----------
    values : Array
        Sorted, without nulls. Empty after an overflow.
    counts : ndarray of int64
    missing : int
        Nulls.
    overflow : bool
        There were more distinct values than the cap.
    """

    values: pa.Array
    counts: np.ndarray
    missing: int = 0
    overflow: bool = False

    @property
    def total(self) -> int:
        """Values that were counted."""
        return int(self.counts.sum())

    def most_frequent(self) -> int:
        """Place of the value that was seen most often, the smallest one of equals."""
        return int(np.argmax(self.counts))


@dataclass
class Counter:
    """Counts values of one type, up to `cap` distinct ones.

    Whether it overflows depends only on all the values together, not on the order or grouping in which they come.
    """

    type: pa.DataType
    cap: int
    _tables: list[pa.Table] = field(default_factory=list)
    _pending: int = 0
    _distinct: int = 0
    _missing: int = 0
    _overflow: bool = False

    @property
    def overflow(self) -> bool:
        """Whether there certainly were more distinct values than the cap; `result` knows for sure."""
        return self._overflow

    def update(self, values: pa.Array) -> None:
        """Count values of the type, or a dictionary array of them; nulls count as missing."""
        missing = missing_values(values)
        self._missing += 0 if missing is None else int(np.count_nonzero(missing))
        if len(values) == 0 or self._overflow:
            return
        counted = pc.value_counts(values)
        distinct, counts = counted.field(0), counted.field(1)
        if pa.types.is_dictionary(distinct.type):
            distinct = distinct.cast(distinct.type.value_type)
        if distinct.null_count:
            there = distinct.is_valid()
            distinct, counts = distinct.filter(there), counts.filter(there)
        self._add(distinct, counts)

    def merge(self, other: Counts) -> None:
        """Take over what was counted elsewhere."""
        self._missing += other.missing
        if other.overflow:
            self._give_up()
        else:
            self._add(other.values, pa.array(other.counts))

    def result(self) -> Counts:
        """Give what was counted so far."""
        if not self._overflow:
            self._compact()
        if self._overflow or not self._tables:
            return Counts(pa.array([], self.type), np.empty(0, np.int64), self._missing, self._overflow)
        table = self._tables[0].combine_chunks()
        values, counts = table["value"].combine_chunks(), table["count"].to_numpy()
        if pa.types.is_string(self.type):
            # Arrow sorts strings by their bytes: the order of code points on every machine.
            order = pc.array_sort_indices(values)
            return Counts(values.take(order), counts[order.to_numpy()], self._missing)
        order = np.argsort(values.to_numpy(), kind="stable")
        return Counts(values.take(pa.array(order)), counts[order], self._missing)

    def _add(self, values: pa.Array, counts: pa.Array) -> None:
        if self._overflow or len(values) == 0:
            return
        self._tables.append(pa.table({"value": values, "count": counts}))
        self._pending += len(values)
        # Amortised: every compaction at least halves what is pending, or the cap is near.
        if self._pending > 2 * self._distinct + 4096:
            self._compact()

    def _compact(self) -> None:
        if not self._tables:
            return
        joined = pa.concat_tables(self._tables)
        table = joined.group_by("value", use_threads=False).aggregate([("count", "sum")])
        table = table.rename_columns({"count_sum": "count"}).select(["value", "count"])
        self._tables, self._pending, self._distinct = [table], table.num_rows, table.num_rows
        if self._distinct > self.cap:
            self._give_up()

    def _give_up(self) -> None:
        self._overflow, self._tables = True, []
