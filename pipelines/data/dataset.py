"""What is in a dataset? The manifest: files, row groups and one schema, read from all Parquet footers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.data.config import ColumnCorrection, OnBadFile, OnDrift, Versioned
from pipelines.data.schema import Drift

if TYPE_CHECKING:
    import dask.dataframe as dd
    import distributed

    from pipelines.storage import ObjectStore

Progress = Callable[[int, int], None]
"""Called with (footers read, footers in all) from the thread that opens the dataset."""


@dataclass(frozen=True)
class SkippedFile:
    """A file that was left out of a dataset, and why."""

    path: str
    reason: str


@dataclass(frozen=True)
class Opened:
    """How a dataset was opened: what `Dataset.refresh` needs to do it again. JSON-able.

    Attributes
    ----------
    source : str, tuple of str or Versioned
    kind : {"parquet", "delta", "iceberg", "versioned"}
        What the files were listed from.
    version : str
        The version of the table or of the versioned dataset; empty for plain files.
    subset : bool
        Whether files or row groups were pruned away since.
    """

    source: str | tuple[str, ...] | Versioned
    columns: dict[str, ColumnCorrection]
    on_drift: OnDrift = "widen"
    on_bad_file: OnBadFile = "fail"
    kind: str = "parquet"
    version: str = ""
    subset: bool = False


@dataclass(frozen=True, eq=False)
class Dataset:
    """A dataset's manifest. Frozen, picklable, a few bytes per column chunk; two are the same when their digests are.

    Attributes
    ----------
    root : str
        URL or absolute path that all file paths are relative to.
    schema : pa.Schema
        Unified over all files; partition columns last; every field nullable, without metadata.
    files : pa.Table
        Sorted by path: ``path``, ``size``, ``etag`` (empty where the store has none), ``mtime_ns``, ``rows``,
        ``row_groups``, ``schema`` (index into `file_schemas`), ``footer`` (SHA-256 of the footer) and ``partition``
        (a struct of the typed values that the path says).
    row_groups : pa.Table
        In file order: ``file`` (row in `files`), ``row_group`` (its number in the file), ``first_row`` (row in the
        file of its first row), ``rows``, ``bytes`` (uncompressed) and ``column_bytes`` (uncompressed, one number per
        field of `schema`; 0 for partition columns and columns that the file lacks).
    partition_columns : tuple of str
    drift : tuple of Drift
        How files differ from `schema`, for humans.
    skipped : tuple of SkippedFile
    content_digest : str
        Of relative paths, footers and chosen row groups: the same for a copy of the data elsewhere.
    location_digest : str
        Of sizes and ETags or modification times: changes whenever a file is written again.
    opened : Opened
    file_schemas : tuple of pa.Schema
        The distinct schemas of the files as they are.
    """

    root: str
    schema: pa.Schema
    files: pa.Table
    row_groups: pa.Table
    partition_columns: tuple[str, ...]
    drift: tuple[Drift, ...]
    skipped: tuple[SkippedFile, ...]
    content_digest: str
    location_digest: str
    opened: Opened
    file_schemas: tuple[pa.Schema, ...]

    @cached_property
    def rows(self) -> int:
        """Rows of all row groups."""
        return pc.sum(self.row_groups["rows"]).as_py() or 0

    @cached_property
    def bytes(self) -> int:
        """Uncompressed bytes of all row groups."""
        return pc.sum(self.row_groups["bytes"]).as_py() or 0

    def prune(self, filter_text: str | None) -> Pruned:
        """Leave out files and row groups in which no row can meet a filter.

        Partition values decide first; statistics are read, for the filter's columns only, from the footers of the files
        that are left. What can't be decided is kept.
        """
        raise NotImplementedError

    def refresh(self, *, threads: int | None = None, client: distributed.Client | None = None) -> Dataset:
        """List the dataset again and read the footers of new and changed files only."""
        raise NotImplementedError

    def check_unchanged(self) -> None:
        """Compare one listing with the manifest.

        Raises
        ------
        DatasetChangedError
            Files were added, removed or written again since; they are named.
        """
        raise NotImplementedError

    def save(self, store: ObjectStore, key: str) -> None:
        """Write the manifest as one Arrow file, over what may be there."""
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        """Describe the dataset in plain JSON values."""
        raise NotImplementedError

    def to_dask(self, columns: Sequence[str] | None = None) -> dd.DataFrame:
        """Make a Dask DataFrame whose partitions are runs of row groups, read as they are needed."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Pruned:
    """What a filter left of a dataset, in numbers before and after."""

    dataset: Dataset
    files_before: int
    files_after: int
    row_groups_before: int
    row_groups_after: int


def open_dataset(
    source: str | Sequence[str] | Versioned | Mapping[str, str],
    *,
    columns: Mapping[str, ColumnCorrection | Mapping[str, str]] | None = None,
    on_drift: OnDrift = "widen",
    on_bad_file: OnBadFile = "fail",
    threads: int | None = None,
    client: distributed.Client | None = None,
    progress: Progress | None = None,
) -> Dataset:
    """Open a dataset: list its files, read every footer, unify the schema.

    Parameters
    ----------
    source : str, sequence of str, Versioned or {"versioned": url}
        See `DataConfig.source`.
    columns, on_drift, on_bad_file
        See `DataConfig`.
    threads : int, optional
        How many footers are read at a time; default by kind of store.
    client : distributed.Client, optional
        Footers are read on its workers when there are many.
    progress : callable, optional
        Called with (footers read, footers in all).

    Raises
    ------
    NotFoundError
        There is nothing at the source; the nearest name is in the remedy.
    DataError
        No Parquet files, bad files (all of them), types that can't be reconciled (all of them), drift when strict.
    StorageError
        The store can't be reached or read.
    """
    raise NotImplementedError


def load_dataset(store: ObjectStore, key: str) -> Dataset:
    """Read a manifest that `Dataset.save` wrote, without touching the data."""
    raise NotImplementedError
