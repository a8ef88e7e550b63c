"""Where does an evaluation spill? In a folder of its own, which is gone afterwards whatever happens."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow.fs as pafs

from pipelines.storage import Location, join_url, open_filesystem, open_store
from pipelines.storage.faults import storage_errors

_PREFIX = "mutirao-evaluation-"


@contextmanager
def scratch_folder(url: str) -> Iterator[Location]:
    """Make a folder for runs below `url`, and remove it whatever happens; leftovers of others below `url` go first."""
    base = open_filesystem(url)
    files = _Objects(base) if base.url.startswith(_OBJECT_STORES) else _Folders(base)
    with storage_errors(url, "clear scratch files of"):
        files.remove(lambda name: name.startswith(_PREFIX))
    name = _PREFIX + uuid.uuid4().hex
    with storage_errors(url, "make a scratch folder in"):
        files.make(name)
    try:
        yield open_filesystem(join_url(base.url, name))
    finally:
        with storage_errors(url, "clear scratch files of"):
            files.remove(lambda found: found == name)


_OBJECT_STORES = ("s3://", "gs://", "az://", "memory://")


class _Objects:
    """Scratch folders on an object store: names that share a beginning. pyarrow would leave markers for folders."""

    def __init__(self, base: Location) -> None:
        self._store = open_store(base.url)

    def make(self, name: str) -> None:
        """Nothing is to be made."""

    def remove(self, which: Callable[[str], bool]) -> None:
        for info in list(self._store.list()):
            if which(info.key.split("/")[0]):
                self._store.delete(info.key)


class _Folders:
    """Scratch folders on a file system."""

    def __init__(self, base: Location) -> None:
        self._base = base

    def make(self, name: str) -> None:
        self._base.filesystem.create_dir(f"{self._base.path}/{name}", recursive=True)

    def remove(self, which: Callable[[str], bool]) -> None:
        filesystem = self._base.filesystem
        for info in filesystem.get_file_info(pafs.FileSelector(self._base.path, allow_not_found=True)):
            if which(info.base_name):
                filesystem.delete_dir(info.path)
