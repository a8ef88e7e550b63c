"""Which files make up a version of a dataset? One small record per version, published when all its files are complete.

A versioned dataset is a folder with ``data/`` (files under names that are never used twice) and ``_versions/`` (the
records). The record of version n has the key 10¹⁰ − n, so that a listing of one key gives the newest. It is created,
never replaced: of two writers who both want n one wins, and the other commits on top of it. Files that no record names
belong to writers that are at work, lost a race, or died; they hurt nobody and are collected.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from typing import Literal

from pipelines import codec
from pipelines.errors import DataError, NotFoundError, StorageError, UsageError
from pipelines.storage import ObjectStore, absolute_url, create_once, open_store

log = logging.getLogger(__name__)

VERSIONS = "_versions"
DATA = "data"
_TOP = 10**10
_MOST_RACES = 100

Mode = Literal["overwrite", "append"]


@dataclass(frozen=True)
class WrittenFile:
    """A complete Parquet file; `path` is relative to the dataset's folder."""

    path: str
    size: int
    rows: int


@dataclass(frozen=True)
class DatasetVersion:
    """A version of a dataset: exactly these files, in this order.

    Attributes
    ----------
    number : int
        From 1 on, without gaps.
    write_id : str
        Unique to the write, so that a lost reply can be told from a lost race.
    created : datetime
        In UTC, by the writer's clock.
    """

    number: int
    write_id: str
    created: datetime
    files: tuple[WrittenFile, ...]
    properties: dict[str, str] = field(default_factory=dict)
    schema: int = 1

    @property
    def version(self) -> str:
        """The number as text."""
        return str(self.number)

    @property
    def paths(self) -> tuple[str, ...]:
        """The files' paths, relative to the dataset's folder."""
        return tuple(file.path for file in self.files)

    @property
    def rows(self) -> int:
        """Rows of all files."""
        return sum(file.rows for file in self.files)


@dataclass(frozen=True)
class Write:
    """A write that has begun: where its files go. Small and picklable, for the workers that write them."""

    url: str
    folder: str
    write_id: str
    base: int


def begin_write(url: str) -> Write:
    """Begin to write a version of the dataset at `url`: choose a folder for its files that nobody else uses."""
    url = absolute_url(url)
    newest = _newest(open_store(url))
    base, write_id = newest.number if newest else 0, uuid.uuid4().hex
    return Write(url, f"{DATA}/{base + 1:06d}-{write_id[:12]}", write_id, base)


def commit(
    write: Write,
    files: Sequence[WrittenFile],
    *,
    mode: Mode = "overwrite",
    replaces: DatasetVersion | None = None,
    properties: dict[str, str] | None = None,
) -> DatasetVersion:
    """Publish a version. Before this nothing of the write can be seen; after it all of it.

    Parameters
    ----------
    write : Write
    files : sequence of WrittenFile
    mode : {"overwrite", "append"}
        Whether the version has these files only, or those of the newest version before them.
    replaces : DatasetVersion, optional
        Commit only on top of this version.
    properties : dict of str to str, optional
        Kept with the version.

    Raises
    ------
    DataError
        `replaces` is no longer the newest version.
    StorageError
        The record can't be written. The version may be tried again with the same files.
    """
    store = open_store(write.url)
    for version in takewhile(lambda version: version.number > write.base, list_versions(write.url)):
        if version.write_id == write.write_id:
            return version  # an earlier call committed it, though its reply was lost
    for _ in range(_MOST_RACES):
        newest = _newest(store)
        if replaces is not None and (newest is None or newest.write_id != replaces.write_id):
            raise DataError(
                "somebody else wrote a version meanwhile",
                on=write.url,
                expected=f"version {replaces.number} to be the newest",
                found=f"version {newest.number if newest else 0}",
                remedy="Do it again on the newest version.",
            )
        kept = newest.files if newest is not None and mode == "append" else ()
        number = (newest.number if newest is not None else 0) + 1
        version = DatasetVersion(
            number, write.write_id, datetime.now(UTC), (*kept, *files), {**(properties or {}), "mode": mode}
        )
        if create_once(store, _key(number), codec.dump(version)):
            log.info("commit version %d of %s: %d files, %d rows", number, write.url, len(version.files), version.rows)
            return version
    raise StorageError(f"lost {_MOST_RACES} races to commit a version", on=write.url, remedy="Try again later.")


def newest_version(url: str) -> DatasetVersion:
    """Read the newest version of a dataset: one listing of one key, one small read.

    Raises
    ------
    NotFoundError
        There is none.
    """
    version = _newest(open_store(url))
    if version is None:
        raise NotFoundError("there is no versioned dataset here", on=url, remedy="Check the place, or write one first.")
    return version


def open_version(url: str, number: int) -> DatasetVersion:
    """Read a version by its number.

    Raises
    ------
    NotFoundError
        It does not exist, or was collected.
    """
    store = open_store(url)
    if number >= 1 and store.head(_key(number)) is not None:
        return codec.load(DatasetVersion, store.get(_key(number)))
    known = [str(version.number) for version in list_versions(url)]
    raise NotFoundError.among("version", str(number), known, on=url)


def list_versions(url: str) -> Iterator[DatasetVersion]:
    """Read all versions, the newest first."""
    store = open_store(url)
    for info in store.list(VERSIONS):
        yield codec.load(DatasetVersion, store.get(info.key))


def is_versioned(url: str) -> bool:
    """Whether a folder holds a versioned dataset."""
    return next(iter(open_store(url).list(VERSIONS, limit=1)), None) is not None


@dataclass(frozen=True)
class Collected:
    """What a collection deleted, or would delete: version numbers, paths of files, their bytes."""

    versions: tuple[int, ...]
    paths: tuple[str, ...]
    bytes: int


def collect(
    url: str, *, keep: int | None = None, older_than: timedelta = timedelta(days=1), dry_run: bool = True
) -> Collected:
    """Delete files that no version needs.

    Parameters
    ----------
    url : str
    keep : int, optional
        Keep only that many newest versions; None: all of them.
    older_than : timedelta
        Younger files and versions stay: a writer may be about to commit them, a reader be reading them.
    dry_run : bool
        Only tell what would go.
    """
    if keep is not None and keep < 1:
        raise UsageError("at least the newest version is kept", found=f"keep={keep}")
    store, limit = open_store(url), datetime.now(UTC) - older_than
    # Files are listed before the versions: what is committed in between is seen as needed.
    data = list(store.list(DATA))
    versions = list(list_versions(url))
    gone = [version for version in versions[keep:] if version.created < limit] if keep is not None else []
    needed = {path for version in versions if version not in gone for path in version.paths}
    orphans = [info for info in data if info.key not in needed and info.modified < limit]
    if not dry_run:
        for version in reversed(gone):
            store.delete(_key(version.number))
        for info in orphans:
            store.delete(info.key)
    numbers = tuple(version.number for version in gone)
    return Collected(numbers, tuple(info.key for info in orphans), sum(info.size for info in orphans))


def _newest(store: ObjectStore) -> DatasetVersion | None:
    for info in store.list(VERSIONS, limit=1):
        return codec.load(DatasetVersion, store.get(info.key))
    return None


def _key(number: int) -> str:
    return f"{VERSIONS}/{_TOP - number:010d}.json"
