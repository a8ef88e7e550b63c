"""Where are the files of a dataset, and what is known of them before any is opened?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from pipelines.data.commits import VERSIONS, newest_version, open_version
from pipelines.data.config import Versioned
from pipelines.data.listing import ListedFile, Listing, list_source
from pipelines.data.partitions import Values, folder_values
from pipelines.data.tables import LoggedTable, refuse_inside_table, table_of
from pipelines.errors import DataError
from pipelines.storage import absolute_url

_NAMES = {"delta": "Delta table", "iceberg": "Iceberg table", "versioned": "versioned dataset"}

Source = str | tuple[str, ...] | Versioned


@dataclass(frozen=True, eq=False)
class Located:
    """The files of a dataset, sorted by path or as a version orders them, with the partition values of each.

    Attributes
    ----------
    kind, version
        See `dataset.Opened`.
    declared, columns, field_ids
        See `tables.LoggedTable`; nothing for plain files.
    """

    root: str
    files: tuple[ListedFile, ...]
    values: tuple[Values, ...]
    kind: str = "parquet"
    version: str = ""
    declared: Mapping[str, pa.DataType] = field(default_factory=dict)
    columns: tuple[str, ...] | None = None
    field_ids: Mapping[str, int] = field(default_factory=dict)


def absolute_source(source: str | Sequence[str] | Versioned | Mapping[str, str | int]) -> Source:
    """Spell a source so that it means the same in any process."""
    if isinstance(source, Mapping):
        source = Versioned.model_validate(dict(source))
    if isinstance(source, Versioned):
        return source.model_copy(update={"versioned": absolute_url(source.versioned)})
    return absolute_url(source) if isinstance(source, str) else tuple(map(absolute_url, source))


def locate(source: Source) -> Located:
    """Find the current files of a source: one listing, and the log where there is one.

    Raises
    ------
    NotFoundError
        Nothing is there.
    DataError
        A table that can't be honoured, a part of a table, or no files.
    StorageError
        The store can't be reached or read.
    """
    if isinstance(source, Versioned):
        return _versioned(source.versioned, number=source.version)
    listing = list_source(source)
    found = (*listing.files, *listing.hidden)
    whole = isinstance(source, str) and listing.root == source
    if whole and any(each.path.startswith(f"{VERSIONS}/") for each in listing.hidden):
        return _versioned(listing.root, listing)
    log = table_of(listing.root, [each.path for each in found])
    if log is not None and whole:
        return _logged(log, listing.root, found)
    refuse_inside_table(listing.root.rpartition("/")[0] if whole else listing.root)
    if not listing.files:
        hidden = (
            f"{len(listing.hidden)} hidden files (their names start with '.' or '_')" if listing.hidden else "no files"
        )
        raise DataError("there are no Parquet files", on=listing.root, expected="at least one", found=hidden)
    return Located(listing.root, listing.files, _values(listing.files))


def _values(files: Sequence[ListedFile]) -> tuple[Values, ...]:
    folders = [each.path.rpartition("/")[0] for each in files]
    known = {folder: folder_values(folder) for folder in set(folders)}
    return tuple(known[folder] for folder in folders)


def _logged(log: LoggedTable, root: str, listed: Sequence[ListedFile]) -> Located:
    there = {each.path: each for each in listed}
    if gone := [path for path in log.paths if path not in there]:
        raise DataError(
            f"{len(gone)} files of version {log.version} of this {_NAMES[log.kind]} are gone",
            on=root,
            found=f"no {gone[0]}",
            remedy="Restore them, or write it again.",
        )
    if not log.paths:
        raise DataError(f"this {_NAMES[log.kind]} is empty", on=root, expected="at least one file")
    files = tuple(there[path] for path in log.paths)
    return Located(root, files, log.values, log.kind, log.version, log.declared, log.columns, log.field_ids)


def _versioned(url: str, listing: Listing | None = None, number: int | None = None) -> Located:
    """Take the files of a version, the newest by default, in its order: that is the order of the rows."""
    version = newest_version(url) if number is None else open_version(url, number)
    listing = listing or list_source(url)
    log = LoggedTable("versioned", version.version, version.paths, tuple(() for _ in version.paths))
    return _logged(log, listing.root, (*listing.files, *listing.hidden))
