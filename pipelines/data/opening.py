"""How is a file opened so that only the content that was planned is read, and what do its failures mean?"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import pairwise
from typing import Self

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.data.footers import leaf_starts
from pipelines.data.objectfile import ObjectFile
from pipelines.data.shards import FileRef
from pipelines.errors import DataError, DatasetChangedError, MutiraoError, ObjectChangedError, ObjectNotFoundError
from pipelines.storage import Location, absolute_url, join_url, open_filesystem, open_store
from pipelines.storage.faults import as_storage_error

BUFFER_BYTES = 64 << 10
"""What is read of a column chunk at a time, where it is not read as a whole."""

REMOTE_BUFFER_BYTES = 1 << 20

_PLAN_AGAIN = "Plan again."
_FOOTERS_BYTES = 32 << 20
_DECODING = re.compile("stream|thrift|corrupt|decompress|decod|page|parquet|magic|unexpected", re.IGNORECASE)


class Files:
    """Opens the files of one root. Safe to use from several threads."""

    def __init__(self, root: str) -> None:
        self._root = absolute_url(root)

    @cached_property
    def _location(self) -> Location:
        return open_filesystem(self._root)

    def open(self, file: FileRef) -> OpenFile:
        """Open a file, check that it is the one that was planned, and read its footer.

        Raises
        ------
        DatasetChangedError
            It is gone or another one.
        DataError
            It is no readable Parquet file.
        StorageError
            The store can't be read.
        """
        local = file.etag.startswith("mtime:")
        return OpenFile(self._root, file, self._location if local else None)


class OpenFile:
    """A Parquet file that was checked when it was opened, and can be checked again.

    Where the store has ETags every single read is conditional on it; elsewhere size and modification time are compared.
    """

    def __init__(self, root: str, file: FileRef, location: Location | None) -> None:
        self._location, self._file = location, file
        self.url = join_url(root, file.path)
        self._object: ObjectFile | None = None
        with self.explained("open"):
            if location is not None:
                self._handle = location.filesystem.open_input_file(f"{location.path}/{file.path}")
            else:
                self._object = ObjectFile(open_store(root), file.path, file.size, file.etag)
                self._handle = pa.PythonFile(self._object, mode="r")
            try:
                self.check()
                self.footer, self._leaves = self._read_footer()
            except BaseException:
                self._handle.close()
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._handle.close()

    @property
    def is_remote(self) -> bool:
        """Whether reading small pieces costs a request each: `fetch` them."""
        return self._object is not None

    def leaves(self, columns: Iterable[str]) -> dict[str, tuple[int, ...]]:
        """Of those `columns` that the file has, the numbers of their column chunks (several where nested)."""
        return {name: self._leaves[name] for name in columns if name in self._leaves}

    def reader(self, dictionaries: Sequence[str], *, whole: bool) -> pq.ParquetFile:
        """Make a decoder.

        Parameters
        ----------
        dictionaries : sequence of str
            Text columns to read as dictionaries.
        whole : bool
            Read column chunks as a whole, rather than buffer by buffer.
        """
        return pq.ParquetFile(
            self._handle,
            metadata=self.footer,
            read_dictionary=[name for name in dictionaries if self._is_bytes(name)] or None,
            buffer_size=0 if whole else REMOTE_BUFFER_BYTES if self.is_remote else BUFFER_BYTES,
            pre_buffer=False,
        )

    def fetch(self, row_group: int, leaves: Mapping[str, Sequence[int]]) -> None:
        """Get the column chunks of a row group at once, where the file is remote; they are held until it is closed."""
        if self._object is None:
            return
        group = self.footer.row_group(row_group)
        chunks = [group.column(number) for numbers in leaves.values() for number in numbers]
        with self.explained("read", row_group):
            self._object.fetch(_span(chunk) for chunk in chunks)

    def check(self) -> None:
        """Compare with what was planned; cheap, and to be done after reading too: files may be written over.

        Raises
        ------
        DatasetChangedError
        """
        if self._location is None:
            return
        info = self._location.filesystem.get_file_info(f"{self._location.path}/{self._file.path}")
        if info.type.name == "NotFound":
            raise self._gone()
        self._compare(info.size, f"mtime:{info.mtime_ns}")

    @contextmanager
    def explained(self, doing: str, row_group: int | None = None) -> Iterator[None]:
        """Turn what Arrow and the store raise inside the block into errors that name the file and the cause."""
        try:
            yield
        except (FileNotFoundError, ObjectNotFoundError) as error:
            raise self._gone() from error
        except ObjectChangedError as error:
            raise self._changed(error.found) from error
        except MutiraoError:
            raise
        except (pa.ArrowException, OSError, ValueError) as error:
            raise self._explain(error, doing, row_group) from error

    def _gone(self) -> DatasetChangedError:
        return DatasetChangedError("the file is gone since the dataset was opened", on=self.url, remedy=_PLAN_AGAIN)

    def _changed(self, found: str) -> DatasetChangedError:
        return DatasetChangedError(
            "the file is another one since the dataset was opened",
            on=self.url,
            expected=f"{self._file.size} bytes, {self._file.etag}",
            found=found,
            remedy=_PLAN_AGAIN,
        )

    def _compare(self, size: int, etag: str) -> None:
        if (size, etag) != (self._file.size, self._file.etag):
            raise self._changed(f"{size} bytes, {etag}")

    def _explain(self, error: Exception, doing: str, row_group: int | None) -> MutiraoError:
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        if isinstance(error, OSError) and (error.errno or not _DECODING.search(text)):
            return as_storage_error(error, self.url, doing)
        try:
            self.check()
        except MutiraoError as changed:
            return changed
        except OSError:
            pass  # the first error says more
        what = "the file can't be read as Parquet" if row_group is None else f"row group {row_group} can't be decoded"
        return DataError(what, on=self.url, found=text, remedy="The file is damaged: write it again, or leave it out.")

    def _read_footer(self) -> _Footer:
        key = (self.url, self._file.size, self._file.etag)
        known = _footers.get(key)
        if known is None:
            footer = pq.read_metadata(self._handle)
            known = footer, _leaves(footer.schema)
            _footers.put(key, known)
        return known

    def _is_bytes(self, column: str) -> bool:
        kinds = (self.footer.schema.column(leaf).physical_type for leaf in self._leaves.get(column, ()))
        return "BYTE_ARRAY" in kinds


def _span(chunk: pq.ColumnChunkMetaData) -> tuple[int, int]:
    """Where a column chunk lies in its file."""
    start = chunk.data_page_offset
    if chunk.has_dictionary_page and 0 < (chunk.dictionary_page_offset or 0) < start:
        start = chunk.dictionary_page_offset
    return start, start + chunk.total_compressed_size


def _leaves(schema: pq.ParquetSchema) -> dict[str, tuple[int, ...]]:
    """Numbers of each column's chunks. Not by their paths: a plain column's name may hold dots."""
    arrow = schema.to_arrow_schema()
    starts = [*map(int, leaf_starts(arrow))]
    return {
        name: tuple(range(*span)) for name, span in zip(arrow.names, pairwise([*starts, len(schema)]), strict=False)
    }


_Footer = tuple[pq.FileMetaData, dict[str, tuple[int, ...]]]


class _Footers:
    """The last footers of this process, so that a file's slices parse it once."""

    def __init__(self, limit_bytes: int) -> None:
        self._held: OrderedDict[tuple[str, int, str], _Footer] = OrderedDict()
        self._bytes, self._limit = 0, limit_bytes
        self._lock = threading.Lock()

    def get(self, key: tuple[str, int, str]) -> _Footer | None:
        with self._lock:
            if key in self._held:
                self._held.move_to_end(key)
            return self._held.get(key)

    def put(self, key: tuple[str, int, str], footer: _Footer) -> None:
        with self._lock:
            if key in self._held:
                return
            self._held[key] = footer
            self._bytes += footer[0].serialized_size
            while self._bytes > self._limit and len(self._held) > 1:
                self._bytes -= self._held.popitem(last=False)[1][0].serialized_size


_footers = _Footers(_FOOTERS_BYTES)
