"""How do shards become Arrow batches?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.data.rows import Position, RowIds
from pipelines.data.shards import Shard, Slice
from pipelines.data.source import Source, input_columns
from pipelines.data.split import PARTS, SplitPlan
from pipelines.storage import open_filesystem

BATCH_ROWS = 65_536
MAX_BYTES_IN_FLIGHT = 64 << 20


@dataclass(frozen=True, eq=False)
class Read:
    """A batch and where it came from.

    Parameters
    ----------
    batch : RecordBatch
        The columns that were asked for, in that order. Never empty.
    position : Position
        After this batch: reading again from there gives exactly the rows that were not yielded.
    shard : int
        Place in the sequence of shards.
    rows : RowIds, optional
        With ``row_ids=True``.
    parts : ndarray of int8, optional
        0 train, 1 validation, 2 test for each row; with a split and without a part.
    """

    batch: pa.RecordBatch
    position: Position
    shard: int
    rows: RowIds | None = None
    parts: np.ndarray | None = None


def read_batches(
    source: Source,
    shards: Sequence[Shard],
    columns: Sequence[str],
    *,
    split: SplitPlan | None = None,
    part: str | None = None,
    position: Position | None = None,
    batch_rows: int = BATCH_ROWS,
    max_bytes_in_flight: int = MAX_BYTES_IN_FLIGHT,
    threads: int | None = None,
    row_ids: bool = False,
) -> Iterator[Read]:
    """Stream the rows of shards, in order, as Arrow batches.

    Parameters
    ----------
    source : Source
    shards : sequence of Shard
    columns : sequence of str
        Of ``source.arrow_schema``; partition columns and derived columns too.
    split : SplitPlan, optional
        With `part`: only the rows of that part. Without: all rows, and ``Read.parts``.
    part : {"train", "validation", "test"}, optional
    position : Position, optional
        Where to go on: the `Read.position` of an earlier reading of the same shards.
    batch_rows : int
        Most rows of a batch. Batches never span two slices and are cut at multiples of it within a row group.
    max_bytes_in_flight : int
        Cap on the decoded bytes that are held ahead of the caller.
    threads : int, optional
        Threads that read ahead; by default as many as Arrow's pool has.
    row_ids : bool
        Whether to give each row's identity.

    Yields
    ------
    Read

    Raises
    ------
    DatasetChangedError
        A file is gone, or is not the one that was planned.
    DataError
        A file that can't be decoded, a value that does not fit the unified schema.
    StorageError
        The store can't be read.
    """
    start = position or Position()
    inputs = input_columns(source, (*columns, *(split.columns if split else ())))
    stored = [name for name in inputs if name not in source.partition_columns]
    location = open_filesystem(source.root)
    for at in range(start.shard, len(shards)):
        slices = shards[at].slices
        for piece in range(start.piece if at == start.shard else 0, len(slices)):
            one = slices[piece]
            first = start.row if (at, piece) == (start.shard, start.piece) else 0
            path = f"{location.path}/{one.file.path}"
            with location.filesystem.open_input_file(path) as file:
                table = pq.ParquetFile(file).read_row_group(one.row_group, columns=stored)
            row = max(one.start, first)
            while row < one.stop:
                stop = min(one.stop, (row // batch_rows + 1) * batch_rows)
                cut = table.slice(row, stop - row)
                rows = RowIds(one.file.path, one.row_group, np.arange(row, stop), one.first_row)
                done = _next(shards, at, piece, stop)
                row = stop
                read = _finish(source, one, cut, rows, columns, inputs, split, part, done, at, row_ids)
                if read.batch.num_rows:
                    yield read


def _next(shards: Sequence[Shard], at: int, piece: int, row: int) -> Position:
    if row < shards[at].slices[piece].stop:
        return Position(at, piece, row)
    return Position(at, piece + 1, 0) if piece + 1 < len(shards[at].slices) else Position(at + 1, 0, 0)


def _finish(
    source: Source,
    one: Slice,
    cut: pa.Table,
    rows: RowIds,
    columns: Sequence[str],
    inputs: Sequence[str],
    split: SplitPlan | None,
    part: str | None,
    done: Position,
    at: int,
    row_ids: bool,
) -> Read:
    held: dict[str, pa.Array] = {}
    for name in inputs:
        type = source.stored_schema.field(name).type
        if name in source.partition_columns:
            value = pa.scalar(dict(one.file.partition)[name])
            held[name] = pa.repeat(value.cast(type), cut.num_rows)
        elif name in cut.column_names:
            column = cut[name].combine_chunks()
            held[name] = column if column.type == type else column.cast(type)
        else:
            held[name] = pa.nulls(cut.num_rows, type)
    for name, expression in source.derived.items():
        if all(each in held for each in expression.columns):
            held[name] = expression.evaluate(held, cut.num_rows)
    schema = pa.schema([pa.field(name, array.type) for name, array in held.items()])
    batch = pa.RecordBatch.from_arrays(list(held.values()), schema=schema)
    keep = np.ones(batch.num_rows, bool)
    if source.filter_expression is not None:
        keep &= source.filter_expression.evaluate(batch).fill_null(False).to_numpy(zero_copy_only=False)
    parts = None
    if split is not None:
        parts = split.assign(batch, rows)
        if part is not None:
            keep &= parts == PARTS.index(part)
    if not keep.all():
        batch = batch.filter(pa.array(keep))
        rows = RowIds(rows.path, rows.row_group, rows.rows[keep], rows.first_row)
        parts = None if parts is None else parts[keep]
    return Read(batch.select(list(columns)), done, at, rows if row_ids else None, parts if part is None else None)
