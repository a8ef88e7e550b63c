"""How are the first and last bytes of a file read, from any store, and only if it is still the file that was listed?"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

from pipelines.data.badfiles import MAGIC
from pipelines.data.listing import ListedFile
from pipelines.errors import DatasetChangedError, ObjectChangedError, ObjectNotFoundError
from pipelines.storage import join_url, open_filesystem, open_store
from pipelines.storage.faults import storage_errors
from pipelines.storage.urls import parse_url

Read = Callable[[int, int], bytes]
"""Bytes from the first position up to the second."""

_FIRST_READ = 64 * 1024
_HEAD = 40


class Ends:
    """Reads ends of files below one root. Safe to use from several threads."""

    def __init__(self, root: str) -> None:
        self.root, self._scheme = root, parse_url(root).scheme
        self._store = None if self._scheme in ("file", "hdfs") else open_store(root)

    def read(self, file: ListedFile) -> tuple[bytes, bytes]:
        """Read a file's first bytes, where they come for free or matter, and as many last ones as its footer has.

        From object stores this is one request, or two when the footer has more than 64 KiB.

        Raises
        ------
        DatasetChangedError
            The file vanished, or has another ETag by now.
        StorageError
            It may not be read, or the store does not answer.
        """
        url = join_url(self.root, file.path)
        try:
            if self._store is not None:
                return _ends(partial(self._store.get_range, file.path, etag=file.etag), file.size)
            with storage_errors(url, "read"):
                try:
                    return self._read_local(file) if self._scheme == "file" else self._read_by_arrow(file)
                except FileNotFoundError as error:
                    raise ObjectNotFoundError("there is no such file", on=url) from error
        except ObjectNotFoundError as error:
            raise DatasetChangedError("the file vanished while the dataset was opened", on=url) from error
        except ObjectChangedError as error:
            raise DatasetChangedError("the file was written again while the dataset was opened", on=url) from error

    def _read_local(self, file: ListedFile) -> tuple[bytes, bytes]:
        handle = os.open(f"{self.root}/{file.path}", os.O_RDONLY | os.O_CLOEXEC)  # half the cost of open()
        try:
            return _ends(lambda start, stop: os.pread(handle, stop - start, start), file.size)
        finally:
            os.close(handle)

    def _read_by_arrow(self, file: ListedFile) -> tuple[bytes, bytes]:
        location = open_filesystem(self.root)
        with location.filesystem.open_input_file(f"{location.path}/{file.path}") as opened:
            return _ends(lambda start, stop: opened.read_at(stop - start, start), file.size)


def _ends(read: Read, size: int) -> tuple[bytes, bytes]:
    tail = read(max(0, size - _FIRST_READ), size)
    if tail[-4:] != MAGIC:
        return (tail[:_HEAD] if len(tail) == size else read(0, min(_HEAD, size))), tail
    needed = int.from_bytes(tail[-8:-4], "little") + 8
    if len(tail) < needed <= size:
        tail = read(size - needed, size)
    return tail[:4] if len(tail) == size else b"", tail
