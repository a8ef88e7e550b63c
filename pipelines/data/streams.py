"""How is one row group decoded, once, piece by piece, and what does that cost in memory?"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pipelines.data.opening import BUFFER_BYTES, REMOTE_BUFFER_BYTES, OpenFile
from pipelines.data.projection import width
from pipelines.errors import DatasetChangedError

_PAGE_BYTES, _PAGE_ROWS = 1 << 20, 20_000  # what today's writers end a page at
_NESTED_OR_TEXT = 3.0  # decoded bytes per uncompressed byte of dictionary-encoded text, as a first guess


@dataclass(frozen=True)
class Cost:
    """What decoding a row group of `rows` holds: `stream_bytes` for pages and buffers, `row_bytes` for each row.

    `whole` says whether its column chunks are read as a whole, rather than buffer by buffer.
    """

    rows: int
    stream_bytes: int
    row_bytes: float
    whole: bool


def cost(file: OpenFile, row_group: int, schema: pa.Schema, whole_bytes: int) -> Cost:
    """Estimate what decoding some columns of a row group holds.

    Parameters
    ----------
    file : OpenFile
    row_group : int
    schema : Schema
        The columns, and what they become.
    whole_bytes : int
        Column chunks are read as a whole when they have no more than that.
    """
    group = file.footer.row_group(row_group)
    rows, pages, buffers, chunks, row = max(group.num_rows, 1), 0, 0, 0, 0.0
    buffer = REMOTE_BUFFER_BYTES if file.is_remote else BUFFER_BYTES
    for name, numbers in file.leaves(schema.names).items():
        size = 0
        for number in numbers:
            chunk = group.column(number)
            size += chunk.total_uncompressed_size
            page = min(_PAGE_BYTES, chunk.total_uncompressed_size * min(1.0, _PAGE_ROWS / rows))
            pages += 2 * int(page)
            if chunk.has_dictionary_page:  # as it is stored, and decoded
                pages += 2 * min(_PAGE_BYTES, chunk.total_uncompressed_size)
            buffers += min(buffer, chunk.total_compressed_size)
            chunks += chunk.total_compressed_size
        type = schema.field(name).type
        known = width(type.index_type if pa.types.is_dictionary(type) else type)
        row += known + 0.125 if known is not None else 8 + _NESTED_OR_TEXT * size / rows
    whole = chunks <= whole_bytes
    return Cost(group.num_rows, pages + (chunks if whole else buffers), row, whole)


class RowGroupStream:
    """Decodes a row group from its start on; rows can be left out, but not gone back to.

    Parameters
    ----------
    file : OpenFile
        Closed with the stream.
    row_group : int
    columns : sequence of str
        Those that the file has.
    dictionaries : sequence of str
        Text columns to read as dictionaries.
    whole : bool
        Read column chunks as a whole; remote ones are fetched in few requests.
    batch_rows : int
        Rows are decoded, and given, in blocks cut at multiples of it.
    threads : bool
        Whether Arrow decodes columns side by side.
    """

    def __init__(
        self,
        file: OpenFile,
        row_group: int,
        columns: Sequence[str],
        *,
        dictionaries: Sequence[str],
        whole: bool,
        batch_rows: int,
        threads: bool,
    ) -> None:
        self._file, self._row_group = file, row_group
        if whole and file.is_remote:
            file.fetch(row_group, file.leaves(columns))
        with file.explained("open"):
            reader = file.reader(dictionaries, whole=whole)
        self._batches: Iterator[pa.RecordBatch]
        if file.footer.row_group(row_group).num_rows <= batch_rows:  # a quarter faster than batch by batch
            with file.explained("decode", row_group):
                table = reader.read_row_group(row_group, columns=list(columns), use_threads=threads)
            self._batches = iter(table.to_batches())
        else:
            self._batches = reader.iter_batches(
                batch_rows, row_groups=[row_group], columns=list(columns), use_threads=threads
            )
        self._batch: pa.RecordBatch | None = None
        self._start = self._stop = self.row = 0

    @property
    def file(self) -> OpenFile:
        """The file."""
        return self._file

    def close(self) -> None:
        """Forget what was decoded, and close the file."""
        self._batch, self._batches = None, iter(())
        self._file.close()

    def read(self, row: int, stop: int) -> pa.RecordBatch:
        """Decode the rows from `row` on, up to `stop` at most; at least one.

        Raises
        ------
        DataError
            They can't be decoded.
        DatasetChangedError
            The row group has fewer rows than were planned.
        """
        while row >= self._stop:
            self._batch = None
            with self._file.explained("decode", self._row_group):
                self._batch = next(self._batches, None)
            if self._batch is None:
                raise DatasetChangedError(
                    "the row group is shorter than planned",
                    on=f"{self._file.url}, row group {self._row_group}",
                    expected=f"more than {row} rows",
                    found=str(self._stop),
                    remedy="Plan again.",
                )
            self._start, self._stop = self._stop, self._stop + self._batch.num_rows
        assert self._batch is not None
        cut = self._batch.slice(row - self._start, min(stop, self._stop) - row)
        self.row = row + cut.num_rows
        if self.row == self._stop:
            self._batch = None
        return cut


class SharedStreams:
    """Keeps the stream that was used last open, for a later reading that goes on in the same row group."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._key: Any = None
        self._stream: RowGroupStream | None = None

    def take(self, key: Any, row: int) -> RowGroupStream | None:
        """Take the stream with this key if it has not passed `row`; the caller then owns it."""
        with self._lock:
            if self._stream is None or self._key != key or self._stream.row > row:
                return None
            stream, self._stream = self._stream, None
            return stream

    def put(self, key: Any, stream: RowGroupStream | None) -> None:
        """Leave a stream here, in place of the one that was here."""
        with self._lock:
            before, self._key, self._stream = self._stream, key, stream
        if before is not None:
            before.close()


_shared: ContextVar[SharedStreams | None] = ContextVar("shared_streams", default=None)


@contextmanager
def shared_streams() -> Iterator[SharedStreams]:
    """Let readings inside the block, one after the other, share the decoding of row groups that they part."""
    streams = SharedStreams()
    token = _shared.set(streams)
    try:
        yield streams
    finally:
        _shared.reset(token)
        streams.put(None, None)


def current_streams() -> SharedStreams | None:
    """The streams shared where the caller is."""
    return _shared.get()
