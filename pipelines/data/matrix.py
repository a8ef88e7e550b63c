"""How do shards become one matrix of numbers? Column by column, straight into its place."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

import numpy as np
import pyarrow as pa

from pipelines.data.reader import BATCH_ROWS, MAX_BYTES_IN_FLIGHT, read_batches
from pipelines.data.shards import Shard
from pipelines.data.source import Source
from pipelines.data.split import SplitPlan
from pipelines.errors import UsageError


def read_matrix(
    source: Source,
    shards: Sequence[Shard],
    columns: Sequence[str],
    *,
    split: SplitPlan | None = None,
    part: str | None = None,
    out: np.ndarray | None = None,
    batch_rows: int = BATCH_ROWS,
    max_bytes_in_flight: int = MAX_BYTES_IN_FLIGHT,
    threads: int | None = None,
) -> np.ndarray:
    """Read numeric columns into one column-major matrix of float32; nulls become NaN.

    Column-major, because strided writes cost more than decoding the Parquet. Beside the matrix at most
    `max_bytes_in_flight` bytes are held.

    Parameters
    ----------
    source, shards, split, part, batch_rows, max_bytes_in_flight, threads
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
    at = 0
    reads = read_batches(
        source,
        shards,
        columns,
        split=split,
        part=part,
        batch_rows=batch_rows,
        max_bytes_in_flight=max_bytes_in_flight,
        threads=threads,
    )
    with closing(reads):
        for read in reads:
            for number, column in enumerate(read.batch.columns):
                out[at : at + len(column), number] = _numbers(column)
            at += read.batch.num_rows
    return out[:at]


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
