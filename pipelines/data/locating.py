"""Where are the files of a dataset, and what is known of them before any is opened?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from pipelines.data.config import Versioned
from pipelines.data.listing import ListedFile, list_source
from pipelines.data.partitions import Values, folder_values
from pipelines.data.tables import LoggedTable, refuse_inside_table, table_of
from pipelines.errors import DataError
from pipelines.storage import absolute_url

Source = str | tuple[str, ...] | Versioned


@dataclass(frozen=True, eq=False)
class Located:
    """The files of a dataset, sorted by path, with the partition values of each.

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


def absolute_source(source: str | Sequence[str] | Versioned | Mapping[str, str]) -> Source:
    """Spell a source so that it means the same in any process."""
    if isinstance(source, Mapping):
        source = Versioned.model_validate(dict(source))
    if isinstance(source, Versioned):
        return Versioned(versioned=absolute_url(source.versioned))
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
        return _versioned(source.versioned)
    listing = list_source(source)
    log = None
    if isinstance(source, str) and listing.root == source:
        log = table_of(source, [each.path for each in (*listing.files, *listing.hidden)])
        if log is None:
            refuse_inside_table(source.rpartition("/")[0] or "/")
    else:
        refuse_inside_table(listing.root)
        table_of(listing.root, [each.path for each in (*listing.files, *listing.hidden)])
    if log is not None:
        return _logged(log, listing.root, (*listing.files, *listing.hidden))
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
            f"{len(gone)} files of the {log.kind.capitalize()} table's version {log.version} are gone",
            on=root,
            found=f"no {gone[0]}",
            remedy="Restore them, or write the table again.",
        )
    if not log.paths:
        raise DataError(f"the {log.kind.capitalize()} table is empty", on=root, expected="at least one file")
    files = tuple(there[path] for path in log.paths)
    return Located(root, files, log.values, log.kind, log.version, log.declared, log.columns, log.field_ids)


def _versioned(url: str) -> Located:
    raise NotImplementedError(url)
