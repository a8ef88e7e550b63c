"""How do shards become Arrow batches: ahead of the caller, in order, within a cap on memory?"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import pyarrow as pa

from pipelines.data.opening import Files, OpenFile
from pipelines.data.prefetch import Allowance, prefetch
from pipelines.data.projection import Projection
from pipelines.data.pushdown import may_meet
from pipelines.data.rows import Position, RowIds
from pipelines.data.shards import Shard
from pipelines.data.source import Source
from pipelines.data.split import SplitPlan
from pipelines.data.streams import Cost, RowGroupStream, cost, current_streams
from pipelines.data.units import Piece, Unit, units_of

T = TypeVar("T")

BATCH_ROWS = 65_536
MAX_BYTES_IN_FLIGHT = 64 << 20
_BATCHES_AHEAD = 16
_LEAST_COST = 4096
_WHOLE = 8  # column chunks are read as a whole when they take no more than this part of the cap
_RESIDENT = 2
"""Bytes that the process holds for each that Arrow does: freed pages go back late, from another thread too.

Measured as growth of the resident set over the pool's own peak, with 28 columns: 1.3 to 2.2 (mimalloc and jemalloc).
"""


@dataclass(frozen=True, eq=False)
class Read:
    """A batch and where it came from.

    Parameters
    ----------
    batch : RecordBatch
        The columns that were asked for, in that order. Never without rows.
    position : Position
        After this batch: reading again from there gives exactly the rows that were not yielded.
    shard : int
        Place in the sequence of shards.
    offset : int
        Rows that this reading has before the batch's first, filter and split aside.
    rows : RowIds, optional
        With ``row_ids=True``.
    parts : ndarray of int8, optional
        0 train, 1 validation, 2 test for each row; with a split and without a part.
    """

    batch: pa.RecordBatch
    position: Position
    shard: int
    offset: int = 0
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
) -> Generator[Read, None, None]:
    """Stream the rows of shards, in order, as Arrow batches.

    Neighbouring slices of one row group are decoded in one go. Threads read ahead; they end when the iterator does or
    is closed, so a caller that may leave early wraps it in ``contextlib.closing``.

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
        Most rows of a batch. Batches lie within a slice and are cut at multiples of this within the row group; rows so
        wide that sixteen batches would not fit into the cap are cut finer.
    max_bytes_in_flight : int
        Cap on what is held ahead of the caller, its current batch included: decoded batches, pages, read buffers.
        Only a row group whose pages alone are larger passes it.
    threads : int, optional
        Threads that decode; by default as many as Arrow's pool has. 0: in the caller's thread.
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
        A file that can't be decoded, a value that does not fit the unified schema or can't be computed.
    StorageError
        The store can't be read.
    """
    yield from map_batches(
        _unchanged,
        source,
        shards,
        columns,
        split=split,
        part=part,
        position=position,
        batch_rows=batch_rows,
        max_bytes_in_flight=max_bytes_in_flight,
        threads=threads,
        row_ids=row_ids,
    )


def map_batches(
    function: Callable[[Read], T | None],
    source: Source,
    shards: Sequence[Shard],
    columns: Sequence[str],
    *,
    split: SplitPlan | None = None,
    part: str | None = None,
    position: Position | None = None,
    batch_rows: int = BATCH_ROWS,
    batch_bytes: int | None = None,
    max_bytes_in_flight: int = MAX_BYTES_IN_FLIGHT,
    threads: int | None = None,
    row_ids: bool = False,
) -> Generator[T, None, None]:
    """Run a function on every batch, in the thread that decoded it; stream its results in order.

    What it gives is charged with the bytes of its batch; None is not yielded and holds nothing. It runs for several
    batches at a time. For all else see `read_batches`.

    Parameters
    ----------
    function : callable
    batch_bytes : int, optional
        Most bytes of a batch; by default a sixteenth of the cap.
    """
    projection = Projection(source, columns, split, part)
    units = units_of(shards, position or Position())
    size = max_bytes_in_flight // _BATCHES_AHEAD if batch_bytes is None else batch_bytes
    reading = _Reading(function, source, projection, shards, units, batch_rows, size, max_bytes_in_flight, row_ids)
    yield from _run([reading], units, max_bytes_in_flight, threads)


def read_by_columns(
    functions: Sequence[Callable[[Read], None]],
    source: Source,
    shards: Sequence[Shard],
    groups: Sequence[Sequence[str]],
    *,
    batch_rows: int,
    batch_bytes: int,
    max_bytes_in_flight: int = MAX_BYTES_IN_FLIGHT,
    threads: int | None = None,
) -> None:
    """Read groups of columns one by one, row group after row group, each batch into its group's function.

    Few columns of many rows are decoded faster than many columns of few. For all else see `map_batches`.

    Parameters
    ----------
    functions : sequence of callable
        For each group what takes in its batches.
    groups : sequence of sequence of str
    """
    units = units_of(shards, Position())
    readings: list[_Reading[None]] = [
        _Reading(
            function, source, Projection(source, columns, None, None), shards, units, batch_rows, batch_bytes,
            max_bytes_in_flight, False,
        )
        for function, columns in zip(functions, groups, strict=True)
    ]  # fmt: skip
    for _ in _run(readings, units, max_bytes_in_flight, threads):
        pass


def _run(readings: Sequence[_Reading[T]], units: list[Unit], cap: int, threads: int | None) -> Generator[T, None, None]:
    """Read every unit by each of the readings, which all have these units."""
    total = len(units) * len(readings)
    if not total:
        return
    wanted = pa.cpu_count() if threads is None else threads
    need = max(reading.need(units[0]) for reading in readings) if total > 1 and wanted > 1 else 0
    streams = max(min(wanted, 1), min(wanted, total, cap // max(need, 1)))
    for reading in readings:
        reading.side_by_side = streams < wanted

    def produce(number: int, allowance: Allowance) -> Iterator[tuple[int, T]]:
        unit, turn = divmod(number, len(readings))
        return readings[turn].produce(unit, allowance)

    yield from prefetch(total, produce, threads=streams, cap=cap, reserve=need)


def _unchanged(read: Read) -> Read:
    return read


class _Reading(Generic[T]):
    """One call of `map_batches`; `produce` runs in the reading threads."""

    side_by_side = False

    def __init__(
        self,
        function: Callable[[Read], T | None],
        source: Source,
        projection: Projection,
        shards: Sequence[Shard],
        units: list[Unit],
        batch_rows: int,
        batch_bytes: int,
        cap: int,
        row_ids: bool,
    ) -> None:
        self._function, self._source, self._files = function, source, Files(source.root)
        self._projection, self._shards, self._units = projection, shards, units
        self._batch_rows, self._batch_bytes, self._cap, self._row_ids = batch_rows, batch_bytes, cap, row_ids
        self._shared = current_streams()

    def need(self, unit: Unit) -> int:
        """Bytes that a unit holds at once at most: its stream and one batch."""
        if not self._projection.stored:
            return _LEAST_COST
        with self._open(unit) as file:
            found = self._cost(file, unit)
            return self._stream_held(found) + int(_RESIDENT * found.row_bytes * self._rows_at_once(found)) + _LEAST_COST

    def produce(self, number: int, allowance: Allowance) -> Iterator[tuple[int, T]]:
        """Read one unit."""
        unit = self._units[number]
        if not self._projection.stored:
            yield from self._without_file(unit, allowance)
            return
        with ExitStack() as stack:
            file = stack.enter_context(self._open(unit))
            if self._skips(file, unit):
                return
            found = self._cost(file, unit)
            rows = self._rows_at_once(found)
            held = self._stream_held(found)
            allowance.take(held)
            stack.callback(allowance.give, held)
            key = (file.url, unit[0].slice.row_group, self._projection.stored, self._projection.dictionaries, rows)
            stream = self._shared.take(key, unit[0].start) if self._shared else None
            if stream is not None:
                file.close()
            else:
                stream = self._stream(file, unit, found, rows)
            stack.callback(stream.close)
            for piece in unit:
                yield from self._decode(stream, piece, rows, found.row_bytes, allowance)
            stream.file.check()
            if self._shared and stream.row < found.rows:
                stack.pop_all()
                self._shared.put(key, stream)
                allowance.give(held)

    def _stream(self, file: OpenFile, unit: Unit, found: Cost, rows: int) -> RowGroupStream:
        return RowGroupStream(
            file,
            unit[0].slice.row_group,
            list(file.leaves(self._projection.stored)),
            dictionaries=self._projection.dictionaries,
            whole=found.whole,
            batch_rows=rows,
            threads=self.side_by_side,
        )

    def _decode(
        self, stream: RowGroupStream, piece: Piece, rows: int, row_bytes: float, allowance: Allowance
    ) -> Iterator[tuple[int, T]]:
        row, stop = piece.start, piece.slice.stop
        while row < stop:
            estimate = int(_RESIDENT * min(rows, stop - row) * row_bytes) + _LEAST_COST
            allowance.take(estimate)
            batch = stream.read(row, min(stop, (row // rows + 1) * rows))
            read = self._finish(batch, piece, row, row + batch.num_rows)
            row += batch.num_rows
            actual = self._held(read.batch)
            result = self._function(read) if read.batch.num_rows else None
            del batch, read
            allowance.give(estimate - actual if result is not None else estimate)
            if result is not None:
                yield actual, result
            del result

    def _without_file(self, unit: Unit, allowance: Allowance) -> Iterator[tuple[int, T]]:
        """Rows of which only partition values or identities are wanted."""
        for piece in unit:
            row, stop = piece.start, piece.slice.stop
            while row < stop:
                end = min(stop, (row // self._batch_rows + 1) * self._batch_rows)
                read = self._finish(None, piece, row, end)
                row = end
                result = self._function(read) if read.batch.num_rows else None
                if result is not None:
                    actual = self._held(read.batch)
                    allowance.take(actual)
                    yield actual, result

    def _stream_held(self, found: Cost) -> int:
        """What a stream is charged with: pages, buffers, and the batch that it is collecting."""
        return int(_RESIDENT * (found.stream_bytes + found.row_bytes * self._rows_at_once(found)))

    def _held(self, batch: pa.RecordBatch) -> int:
        """What a batch is charged with; counting the bytes of many columns would cost a tenth of decoding them."""
        if not batch.num_rows:
            return 0
        width = self._projection.row_bytes
        size = batch.nbytes if width is None else int(width * batch.num_rows)
        return _RESIDENT * size + _LEAST_COST

    def _finish(self, batch: pa.RecordBatch | None, piece: Piece, row: int, stop: int) -> Read:
        one, rows = piece.slice, None
        if self._row_ids or self._projection.splits:
            rows = RowIds(one.file.path, one.row_group, np.arange(row, stop), one.first_row)
        result, left, parts = self._projection.apply(batch, one.file, stop - row, rows)
        offset = piece.offset + row - piece.start
        return Read(result, self._after(piece, stop), piece.at, offset, left if self._row_ids else None, parts)

    def _after(self, piece: Piece, row: int) -> Position:
        if row < piece.slice.stop:
            return Position(piece.at, piece.piece, row)
        last = piece.piece + 1 == len(self._shards[piece.at].slices)
        return Position(piece.at + 1, 0, 0) if last else Position(piece.at, piece.piece + 1, 0)

    def _open(self, unit: Unit) -> OpenFile:
        return self._files.open(unit[0].slice.file)

    def _skips(self, file: OpenFile, unit: Unit) -> bool:
        """Whether no row of the unit's row group can meet the filter."""
        with file.explained("read the statistics of"):
            return not may_meet(self._source, file, unit[0].slice.file, unit[0].slice.row_group)

    def _cost(self, file: OpenFile, unit: Unit) -> Cost:
        with file.explained("read the footer of"):
            return cost(file, unit[0].slice.row_group, self._projection.stored_schema, self._cap // _WHOLE)

    def _rows_at_once(self, found: Cost) -> int:
        return max(1, min(self._batch_rows, found.rows, int(self._batch_bytes / max(found.row_bytes, 1.0))))
