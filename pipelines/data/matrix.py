"""How do shards become one matrix of numbers? Column by column, straight into its place."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from pipelines.data.reader import MAX_BYTES_IN_FLIGHT, Read, read_batches, read_by_columns
from pipelines.data.shards import Shard, join
from pipelines.data.source import Source
from pipelines.data.split import SplitPlan
from pipelines.errors import UsageError

MOST_COLUMNS_AT_ONCE = 14


def read_matrix(
    source: Source,
    shards: Sequence[Shard],
    columns: Sequence[str],
    *,
    split: SplitPlan | None = None,
    part: str | None = None,
    out: np.ndarray | None = None,
    max_bytes_in_flight: int = MAX_BYTES_IN_FLIGHT,
    threads: int | None = None,
) -> np.ndarray:
    """Read numeric columns into one column-major matrix of float32; nulls become NaN.

    Column-major, because strided writes cost more than decoding the Parquet. Beside the matrix at most
    `max_bytes_in_flight` bytes are held.

    Parameters
    ----------
    source, shards, split, part, max_bytes_in_flight, threads
        See `read_batches`.
    columns : sequence of str
        Of numbers, booleans, dates or times.
    out : ndarray of float32, shape (rows, columns), column-major, optional
        Where to write; at least as many rows as the shards have.

    Returns
    -------
    ndarray of float32, shape (rows that filter and part leave, columns), column-major
        A view of `out` where that was given.

    Raises
    ------
    UsageError
        A column that holds no numbers, an `out` of another kind.
    """
    for name in columns:
        type = source.arrow_schema.field(name).type
        if pa.types.is_nested(type) or pa.types.is_dictionary(type) or not _is_number(type):
            raise UsageError(f"column {name!r} holds no numbers", expected="a number", found=str(type))
    rows = sum(shard.rows for shard in shards)
    if out is None:
        out = np.empty((rows, len(columns)), np.float32, order="F")
    if out.dtype != np.float32 or out.shape[0] < rows or out.shape[1:] != (len(columns),):
        raise UsageError(
            "the matrix does not fit",
            expected=f"float32, at least {rows} rows of {len(columns)}",
            found=f"{out.dtype} {out.shape}",
        )
    reading: dict[str, Any] = {"max_bytes_in_flight": max_bytes_in_flight, "threads": threads}
    joined = [join(shards)]
    if source.filter is None and part is None:
        step = _columns_at_once(joined[0], len(columns), max_bytes_in_flight, threads)
        starts = range(0, len(columns), step)
        read_by_columns(
            [_Place(out, first) for first in starts],
            source,
            joined,
            [columns[first : first + step] for first in starts],
            batch_rows=rows or 1,
            batch_bytes=max_bytes_in_flight // 8,
            **reading,
        )
        return out[:rows]
    at = 0
    with closing(read_batches(source, joined, columns, split=split, part=part, **reading)) as reads:
        for read in reads:
            _write(read.batch, out, at, 0)
            at += read.batch.num_rows
    return out[:at]


@dataclass(frozen=True)
class _Place:
    """Writes batches where all their rows are wanted, so that their place is known: in the threads that decode them."""

    out: np.ndarray
    first: int

    def __call__(self, read: Read) -> None:
        _write(read.batch, self.out, read.offset, self.first)


def _columns_at_once(shard: Shard, columns: int, cap: int, threads: int | None) -> int:
    """Few columns of whole row groups decode faster than many in batches, within the same memory.

    A thread holds, of each column, its chunk as it is stored and decoded, and as much again in its allocator.
    """
    largest = max((piece.bytes for piece in shard.slices), default=0) / max(columns, 1)
    fitting = cap / (7.5 * max(largest, 1) * max(pa.cpu_count() if threads is None else threads, 1))
    return max(1, min(MOST_COLUMNS_AT_ONCE, int(fitting)))


def _write(batch: pa.RecordBatch, out: np.ndarray, at: int, first: int) -> None:
    for number, column in enumerate(batch.columns, first):
        out[at : at + batch.num_rows, number] = _numbers(column)


def _is_number(type: pa.DataType) -> bool:
    types = pa.types
    return (
        types.is_integer(type)
        or types.is_floating(type)
        or types.is_boolean(type)
        or types.is_temporal(type)
        or types.is_decimal(type)
    )


def _numbers(column: pa.Array) -> np.ndarray:
    if pa.types.is_temporal(column.type):
        column = column.cast(pa.int32() if column.type.bit_width == 32 else pa.int64())
    elif pa.types.is_decimal(column.type):
        column = column.cast(pa.float64(), safe=False)
    if not column.null_count:
        return column.to_numpy(zero_copy_only=False)
    # A null's place in Arrow's buffer holds anything.
    return column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
