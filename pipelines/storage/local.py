"""Objects as files: written beside their place, made durable, then given their name without overwriting.

A crash leaves the object complete or absent, and at most a temporary file, which `list` ignores and clears away once
nobody has written to it for an hour.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

from pipelines.errors import ObjectChangedError, ObjectExistsError, ObjectNotFoundError, StorageError
from pipelines.storage.faults import as_storage_error, storage_errors
from pipelines.storage.protocol import ObjectInfo
from pipelines.storage.urls import TEMPORARY, check_key, check_prefix

_STALE_S = 3600.0
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR)
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


@dataclass(frozen=True)
class LocalStore:
    """An object store in a local folder, which the first write makes. `url` is its absolute path."""

    url: str

    def get(self, key: str) -> bytes:
        path = self._path(key)
        with self._reading(key):
            return path.read_bytes()

    def get_range(self, key: str, start: int, stop: int, *, etag: str = "") -> bytes:
        path = self._path(key)
        with self._reading(key), path.open("rb", buffering=0) as file:
            if etag and self._info(key, os.fstat(file.fileno())).etag != etag:
                raise ObjectChangedError("the object was written again", on=f"{self.url}/{key}", expected=etag)
            return _read_at(file.fileno(), start, stop)

    def get_to_file(self, key: str, path: str | Path) -> None:
        source = self._path(key)
        with written_beside(Path(path)) as temporary, self._reading(key):
            shutil.copyfile(source, temporary)

    def create(self, key: str, data: bytes | Path) -> ObjectInfo:
        path = self._path(key)
        if os.path.lexists(path):
            raise self._exists(key)
        with self._writing(key, path, data) as temporary:
            try:
                os.link(temporary, path)
            except FileExistsError:
                raise self._exists(key) from None
            except OSError as error:
                if error.errno in _NO_LINKS:
                    raise _no_links(path) from error
                raise
        return self._info(key, path.lstat())

    def replace(self, key: str, data: bytes | Path) -> ObjectInfo:
        path = self._path(key)
        with self._writing(key, path, data) as temporary:
            os.replace(temporary, path)
        return self._info(key, path.lstat())

    def list(self, prefix: str = "", *, after: str | None = None, limit: int | None = None) -> Iterator[ObjectInfo]:
        folder = check_prefix(prefix)
        for key, status in islice(self._walk(folder, after), limit):
            yield self._info(key, status)

    def folders(self, prefix: str = "") -> tuple[str, ...]:
        folder = check_prefix(prefix)
        return tuple(name.removesuffix("/") for name in self._names(folder) if name.endswith("/"))

    def head(self, key: str) -> ObjectInfo | None:
        path = self._path(key)
        try:
            status = path.stat()
        except OSError as error:
            if error.errno in _ABSENT:
                return None
            raise as_storage_error(error, str(path), "read") from error
        return self._info(key, status) if stat.S_ISREG(status.st_mode) else None

    def delete(self, key: str) -> None:
        path = self._path(key)
        with storage_errors(str(path), "delete"):
            try:
                path.unlink()
            except FileNotFoundError:
                return
            _sync_folder(path.parent)

    def _path(self, key: str) -> Path:
        return Path(self.url, check_key(key))

    def _info(self, key: str, status: os.stat_result) -> ObjectInfo:
        etag = f"{status.st_ino:x}-{status.st_size:x}-{status.st_mtime_ns:x}"
        return ObjectInfo(key, status.st_size, etag, datetime.fromtimestamp(status.st_mtime, UTC))

    def _exists(self, key: str) -> ObjectExistsError:
        return ObjectExistsError("there is already an object of this name", on=f"{self.url}/{key}")

    @contextlib.contextmanager
    def _reading(self, key: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in _ABSENT and not os.path.isfile(self._path(key)):
                raise ObjectNotFoundError("there is no such object", on=f"{self.url}/{key}") from None
            raise as_storage_error(error, f"{self.url}/{key}", "read") from error

    @contextlib.contextmanager
    def _writing(self, key: str, path: Path, data: bytes | Path) -> Iterator[Path]:
        """Give the complete, durable data under a temporary name, and make the caller's renaming or linking durable."""
        with storage_errors(f"{self.url}/{key}", "write"):
            _make_folders(path.parent)
            temporary = path.parent / f"{TEMPORARY}{uuid.uuid4().hex}"
            try:
                _write(temporary, data)
                yield temporary
            finally:
                temporary.unlink(missing_ok=True)
            _sync_folder(path.parent)

    def _walk(self, folder: str, after: str | None) -> Iterator[tuple[str, os.stat_result]]:
        """Yield keys with their status in the order of the keys: a folder's place is that of its name with a ``/``."""
        for name in self._names(folder):
            key = f"{folder}/{name}" if folder else name
            if name.endswith("/"):
                if after is None or not _wholly_before(key, after):
                    yield from self._walk(key.removesuffix("/"), after)
            elif after is None or key > after:
                with contextlib.suppress(FileNotFoundError):  # deleted since it was listed
                    yield key, os.stat(os.path.join(self.url, key))

    def _names(self, folder: str) -> Sequence[str]:
        path = os.path.join(self.url, folder)
        names = []
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    if entry.name.startswith(TEMPORARY):
                        _clear_if_stale(entry)
                    elif entry.is_dir():
                        names.append(entry.name + "/")
                    elif entry.is_file():
                        names.append(entry.name)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise as_storage_error(error, path, "list") from error
        return sorted(names)


@contextlib.contextmanager
def written_beside(path: Path) -> Iterator[Path]:
    """Give a temporary path beside `path` that takes its name when the block ends well, and vanishes otherwise."""
    temporary = path.parent / f"{TEMPORARY}{uuid.uuid4().hex}"
    with storage_errors(str(path), "write"):
        try:
            yield temporary
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def _read_at(handle: int, start: int, stop: int) -> bytes:
    parts = []
    while start < stop and (part := os.pread(handle, stop - start, start)):
        parts.append(part)
        start += len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _write(path: Path, data: bytes | Path) -> None:
    if isinstance(data, Path):
        shutil.copyfile(data, path)
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
        return
    with open(path, "xb", buffering=0) as file:
        view = memoryview(data)
        while view:
            view = view[file.write(view) :]
        os.fsync(file.fileno())


def _make_folders(path: Path) -> None:
    """Make a folder and its parents, each durable in its own parent."""
    if path.is_dir():
        return
    _make_folders(path.parent)
    with contextlib.suppress(FileExistsError):
        path.mkdir()
        _sync_folder(path.parent)
    if not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))


def _sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _clear_if_stale(entry: os.DirEntry[str]) -> None:
    """Remove a temporary file that a killed writer left; who may not, leaves it to the next."""
    with contextlib.suppress(OSError):
        if time.time() - entry.stat(follow_symlinks=False).st_mtime > _STALE_S:
            os.unlink(entry.path)


def _wholly_before(folder_key: str, after: str) -> bool:
    """Whether every key of a folder (its key ends with ``/``) is at most `after`."""
    return folder_key < after and not after.startswith(folder_key)


def _no_links(path: Path) -> StorageError:
    return StorageError(
        "this file system has no hard links, which publishing without overwriting needs",
        on=str(path.parent),
        remedy="Choose a folder on a local disk or on NFS, or an s3:// URL.",
    )
