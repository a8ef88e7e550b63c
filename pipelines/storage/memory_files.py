"""The memory store as a pyarrow file system: what `MemoryStore` holds can be read and written as files."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from pipelines.storage.memory import MemoryStore


class MemoryFiles(pafs.FileSystemHandler):
    """Files are the objects of ``memory://``; a folder exists as long as something lies below it.

    fsspec's memory file system won't do: all its readers of one file share one position.
    """

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MemoryFiles)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None  # type: ignore[assignment]  # the base class has none either

    def get_type_name(self) -> str:
        return "mutirao-memory"

    def normalize_path(self, path: str) -> str:
        return path.strip("/")

    def get_file_info(self, paths: list[str]) -> list[Any]:
        return [_file_info(path.strip("/")) for path in paths]

    def get_file_info_selector(self, selector: Any) -> list[Any]:
        base = selector.base_dir.strip("/")
        store, _ = _split(base + "/-")
        keys = [info.key for info in store.list()]
        if not keys and not selector.allow_not_found:
            raise FileNotFoundError(2, "there is no such folder", base)
        depth = None if selector.recursive else 1
        found = {
            "/".join(key.split("/")[:n])
            for key in keys
            for n in range(1, key.count("/") + 2)
            if depth is None or n <= depth
        }
        return [_file_info(f"{base}/{path}") for path in sorted(found)]

    def create_dir(self, path: str, recursive: bool) -> None:
        return None

    def delete_dir(self, path: str) -> None:
        self.delete_dir_contents(path)

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        store, _ = _split(path.strip("/") + "/-")
        for info in list(store.list()):
            store.delete(info.key)

    def delete_root_dir_contents(self) -> None:
        raise NotImplementedError("the whole memory is not deleted at once")

    def delete_file(self, path: str) -> None:
        store, key = _split(path)
        if store.head(key) is None:
            raise FileNotFoundError(2, "there is no such file", path)
        store.delete(key)

    def move(self, src: str, dest: str) -> None:
        self.copy_file(src, dest)
        self.delete_file(src)

    def copy_file(self, src: str, dest: str) -> None:
        store, key = _split(dest)
        store.replace(key, _bytes(src))

    def open_input_stream(self, path: str) -> Any:
        return pa.BufferReader(_bytes(path))

    def open_input_file(self, path: str) -> Any:
        return pa.BufferReader(_bytes(path))

    def open_output_stream(self, path: str, metadata: object) -> Any:
        return pa.PythonFile(_Written(path), mode="w")

    def open_append_stream(self, path: str, metadata: object) -> Any:
        raise NotImplementedError("objects are written whole")


class _Written(io.BytesIO):
    """Becomes an object when it is closed."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._store, self._key = _split(path)

    def close(self) -> None:
        if not self.closed:
            self._store.replace(self._key, self.getvalue())
        super().close()


def _split(path: str) -> tuple[MemoryStore, str]:
    folder, _, name = path.strip("/").rpartition("/")
    return MemoryStore(f"memory://{folder}"), name


def _bytes(path: str) -> bytes:
    store, key = _split(path)
    if store.head(key) is None:
        raise FileNotFoundError(2, "there is no such file", path)
    return store.get(key)


def _file_info(path: str) -> Any:
    store, key = _split(path)
    if "/" in path and (info := store.head(key)) is not None:
        return pafs.FileInfo(path, pafs.FileType.File, size=info.size, mtime=info.modified)
    below = MemoryStore(f"memory://{path}").list(limit=1) if path else iter(())
    kind = pafs.FileType.Directory if next(below, None) is not None else pafs.FileType.NotFound
    return pafs.FileInfo(path, kind)
