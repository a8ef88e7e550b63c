"""What every object store promises: complete bytes at a key, or nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True)
class ObjectInfo:
    """One stored object.

    Attributes
    ----------
    key : str
        Relative to the store's URL, segments separated by ``/``.
    size : int
        Bytes.
    etag : str
        Changes whenever the object does (a local file's holds inode, size and modification time). May be empty right
        after a write to a store that does not answer with one.
    modified : datetime
        When it was last written, in UTC.
    """

    key: str
    size: int
    etag: str
    modified: datetime


class ObjectStore(Protocol):
    """Objects under one URL; small, picklable by that URL, and safe to use from several threads.

    Keys are relative, their segments separated by ``/``. Every call is bounded by deadlines; what can't be done raises
    a `StorageError` that names the URL, the cause and the remedy. All calls may be tried again, except that a `create`
    tried again may meet its own first attempt: see `create_once`.
    """

    @property
    def url(self) -> str:
        """The URL from which `open_store` opens this store again, in any process."""
        ...

    def get(self, key: str) -> bytes:
        """Return an object's bytes.

        Raises
        ------
        ObjectNotFoundError
        """
        ...

    def get_range(self, key: str, start: int, stop: int, *, etag: str = "") -> bytes:
        """Return the bytes from `start` up to, not including, `stop`; fewer where the object ends before.

        Parameters
        ----------
        etag : str, optional
            Read only if the object still has this one, as `head` or `list` told it.

        Raises
        ------
        ObjectNotFoundError
        ObjectChangedError
            The object has another ETag.
        """
        ...

    def get_to_file(self, key: str, path: str | Path) -> None:
        """Stream an object into a local file, which appears complete or not at all.

        Raises
        ------
        ObjectNotFoundError
        """
        ...

    def create(self, key: str, data: bytes | Path) -> ObjectInfo:
        """Publish complete bytes (or a local file's) at a key that is absent; durable when this returns.

        Of any number of writers exactly one succeeds, and nobody ever sees a part of the object.

        Raises
        ------
        ObjectExistsError
            The key is taken. After a reply that was lost on the way, it may be this very call that took it.
        """
        ...

    def replace(self, key: str, data: bytes | Path) -> ObjectInfo:
        """Write complete bytes at a key, over what may be there; the last writer wins, readers see old or new."""
        ...

    def list(self, prefix: str = "", *, after: str | None = None, limit: int | None = None) -> Iterator[ObjectInfo]:
        """Yield the objects below a folder, in lexicographic order of their keys, at any depth.

        Parameters
        ----------
        prefix : str
            A folder, with or without its last ``/``; empty for the whole store.
        after : str, optional
            Yield only keys greater than this one (it need not exist).
        limit : int, optional
            Stop after so many.

        Notes
        -----
        With `after` or `limit` remote stores read a flat folder lazily, a page at a time. Servers disagree on where
        ``a/b`` stands beside ``a-b``: keep no folder ``x`` beside an object ``x-…`` or ``x.…`` where `after` is used.
        """
        ...

    def folders(self, prefix: str = "") -> tuple[str, ...]:
        """Return the names of the folders directly in a folder, sorted, without reading what is below them.

        Local folders may be empty: a local store does not remove the folder of its last object.
        """
        ...

    def head(self, key: str) -> ObjectInfo | None:
        """Describe an object without reading it; None when there is none."""
        ...

    def delete(self, key: str) -> None:
        """Remove an object; an absent one is fine."""
        ...
