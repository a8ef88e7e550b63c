"""Objects in this process's memory: the trusted model of a store, for tests and for trying things out."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pipelines.errors import ObjectChangedError, ObjectExistsError, ObjectNotFoundError
from pipelines.storage.faults import storage_errors
from pipelines.storage.local import written_beside
from pipelines.storage.protocol import ObjectInfo
from pipelines.storage.urls import check_key, check_prefix, parse_url


@dataclass(frozen=True)
class _Stored:
    data: bytes
    modified: datetime


_lock = threading.RLock()
_objects: dict[str, _Stored] = {}  # by "name/key": every memory:// URL of the process looks into the same one


@dataclass(frozen=True)
class MemoryStore:
    """An object store in memory. In another process the same URL is another, empty store."""

    url: str

    def get(self, key: str) -> bytes:
        try:
            return _objects[self._path(key)].data
        except KeyError:
            raise ObjectNotFoundError("there is no such object", on=f"{self.url}/{key}") from None

    def get_range(self, key: str, start: int, stop: int, *, etag: str = "") -> bytes:
        data = self.get(key)
        if etag and (found := _etag(data)) != etag:
            raise ObjectChangedError("the object was written again", on=f"{self.url}/{key}", expected=etag, found=found)
        return data[start:stop]

    def get_to_file(self, key: str, path: str | Path) -> None:
        data = self.get(key)
        with written_beside(Path(path)) as temporary:
            temporary.write_bytes(data)

    def create(self, key: str, data: bytes | Path) -> ObjectInfo:
        stored = _read(data)
        with _lock:
            if self._path(key) in _objects:
                raise ObjectExistsError("there is already an object of this name", on=f"{self.url}/{key}")
            _objects[self._path(key)] = stored
        return _info(key, stored)

    def replace(self, key: str, data: bytes | Path) -> ObjectInfo:
        stored = _read(data)
        with _lock:
            _objects[self._path(key)] = stored
        return _info(key, stored)

    def list(self, prefix: str = "", *, after: str | None = None, limit: int | None = None) -> Iterator[ObjectInfo]:
        folder = check_prefix(prefix)
        keys = [key for key in self._below(folder) if after is None or key > after]
        for key in keys[:limit]:
            if (stored := _objects.get(self._path(key))) is not None:
                yield _info(key, stored)

    def folders(self, prefix: str = "") -> tuple[str, ...]:
        folder = check_prefix(prefix)
        start = len(folder) + 1 if folder else 0
        return tuple(sorted({key[start:].split("/", 1)[0] for key in self._below(folder) if "/" in key[start:]}))

    def head(self, key: str) -> ObjectInfo | None:
        stored = _objects.get(self._path(key))
        return None if stored is None else _info(key, stored)

    def delete(self, key: str) -> None:
        with _lock:
            _objects.pop(self._path(key), None)

    def _path(self, key: str) -> str:
        return f"{self._root}/{check_key(key)}"

    @property
    def _root(self) -> str:
        url = parse_url(self.url)
        return f"{url.authority}/{url.path}" if url.path else url.authority

    def _below(self, folder: str) -> Sequence[str]:
        start = len(self._root) + 1
        beginning = f"{self._root}/{folder}/" if folder else f"{self._root}/"
        with _lock:
            return sorted(path[start:] for path in _objects if path.startswith(beginning))


def _read(data: bytes | Path) -> _Stored:
    if isinstance(data, Path):
        with storage_errors(str(data), "read"):
            data = data.read_bytes()
    return _Stored(bytes(data), datetime.now(UTC))


def _info(key: str, stored: _Stored) -> ObjectInfo:
    return ObjectInfo(key, len(stored.data), _etag(stored.data), stored.modified)


def _etag(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()
