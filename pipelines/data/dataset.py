"""What is in a dataset? The manifest: files, row groups and one schema, read from all Parquet footers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.data import assembling, badfiles
from pipelines.data.config import ColumnCorrection, OnBadFile, OnDrift, Versioned
from pipelines.data.footers import Footers, merge_footers, read_footers
from pipelines.data.listing import ListedFile
from pipelines.data.locating import Located, absolute_source, locate
from pipelines.data.parallel import Progress
from pipelines.data.partitions import type_partitions
from pipelines.data.schema import Drift, unify
from pipelines.data.shadowing import refuse_contradictions
from pipelines.errors import DatasetChangedError

if TYPE_CHECKING:
    import dask.dataframe as dd
    import distributed

    from pipelines.storage import ObjectStore


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
        Sorted by path, or as a version orders them: ``path``, ``size``, ``etag`` (empty where the store has none),
        ``mtime_ns``, ``rows``, ``row_groups``, ``schema`` (index into `file_schemas`), ``footer`` (SHA-256 of the
        footer) and ``partition`` (a struct of the typed values that the path says).
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

    def prune(self, filter_text: str | None, derive: Mapping[str, str] | None = None) -> Pruned:
        """Leave out files and row groups in which no row can meet a filter.

        Partition values decide first; statistics are read, for the filter's columns only, from the footers of the files
        that are left. What can't be decided is kept.

        Parameters
        ----------
        filter_text : str, optional
            An expression (see `expressions`); None leaves all.
        derive : mapping of name to expression, optional
            Derived columns, which the filter may use.

        Raises
        ------
        UsageError, NotFoundError
            The filter can't be parsed, or names a column that does not exist.
        DatasetChangedError, StorageError
            A footer is another one by now, or can't be read.
        """
        from pipelines.data.pruning import prune  # it makes datasets, so it imports this module

        return prune(self, filter_text, derive or {})

    def refresh(
        self,
        *,
        threads: int | None = None,
        client: distributed.Client | None = None,
        progress: Progress | None = None,
    ) -> Dataset:
        """List the whole source again, and read the footers of new and changed files only.

        Raises
        ------
        NotFoundError, DataError, StorageError
            As `open_dataset`.
        """
        return _open(self.opened, self, threads, client, progress)

    def check_unchanged(self) -> None:
        """Compare one listing with the manifest.

        After pruning, files that were added since are not looked at.

        Raises
        ------
        DatasetChangedError
            Files were added, removed or written again since; they are named.
        NotFoundError, StorageError
            The source is gone, or can't be reached.
        """
        listed = {each.path: _identity(each) for each in locate(self.opened.source).files}
        known = dict(zip(self.files["path"].to_pylist(), _identities(self.files), strict=True))
        skipped = {each.path for each in self.skipped}
        changes = {
            "added": [] if self.opened.subset else [p for p in listed if p not in known and p not in skipped],
            "removed": [path for path in known if path not in listed],
            "written again": [path for path, identity in known.items() if listed.get(path, identity) != identity],
        }
        told = [f"{len(paths)} {what} ({_some(paths)})" for what, paths in changes.items() if paths]
        if told:
            raise DatasetChangedError(
                "the dataset is not the one that was planned",
                on=self.root,
                expected=f"{len(known)} files as they were",
                found=", ".join(told),
                remedy="Plan again.",
            )

    def save(self, store: ObjectStore, key: str) -> None:
        """Write the manifest as one Arrow file, over what may be there.

        Raises
        ------
        StorageError
        """
        from pipelines.data.manifest import save_dataset  # it makes datasets, so it imports this module

        save_dataset(self, store, key)

    def describe(self) -> dict[str, Any]:
        """Describe the dataset in plain JSON values: what `mutirao data inspect` shows."""
        from pipelines.data.describing import describe  # it makes no datasets, but belongs to their readers

        return describe(self)

    def to_dask(self, columns: Sequence[str] | None = None) -> dd.DataFrame:
        """Make a Dask DataFrame whose partitions are runs of row groups, read as they are needed.

        Parameters
        ----------
        columns : sequence of str, optional
            By default all.
        """
        from pipelines.data.frames import to_dask  # Dask's DataFrame takes a second to import

        return to_dask(self, columns)


@dataclass(frozen=True, eq=False)
class Pruned:
    """What a filter left of a dataset, in numbers before and after."""

    dataset: Dataset
    files_before: int
    files_after: int
    row_groups_before: int
    row_groups_after: int


def open_dataset(
    source: str | Sequence[str] | Versioned | Mapping[str, str | int],
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
    source : str, sequence of str, Versioned or {"versioned": url, "version": number}
        See `DataConfig.source`. The folder of a Delta or Iceberg table is read through its log.
    columns, on_drift, on_bad_file
        See `DataConfig`.
    threads : int, optional
        How many footers are read at a time; by default as many as there are processors, 32 from remote stores.
    client : distributed.Client, optional
        Footers are read on its workers when there are thousands.
    progress : callable, optional
        Called with (footers read, footers in all) from this thread.

    Raises
    ------
    NotFoundError
        There is nothing at the source; the nearest name is in the remedy.
    DataError
        No Parquet files, bad files (all of them), types that can't be reconciled (all of them), drift when strict,
        folders that contradict each other, a table that can't be honoured.
    DatasetChangedError
        A file vanished meanwhile.
    StorageError
        The store can't be reached or read.
    """
    corrections = {name: ColumnCorrection.model_validate(given) for name, given in (columns or {}).items()}
    opened = Opened(absolute_source(source), corrections, on_drift, on_bad_file)
    return _open(opened, None, threads, client, progress)


def load_dataset(store: ObjectStore, key: str) -> Dataset:
    """Read a manifest that `Dataset.save` wrote, without touching the data.

    Raises
    ------
    ObjectNotFoundError, StorageError
        There is none, or it was written by a later release.
    CorruptArtifactError
        It is damaged.
    """
    from pipelines.data.manifest import load_dataset as load  # it makes datasets, so it imports this module

    return load(store, key)


def subset(dataset: Dataset, kept: np.ndarray) -> Dataset:
    """Keep some row groups of a dataset; files without any go too, and files are numbered anew.

    Parameters
    ----------
    kept : ndarray of bool, one per row group
    """
    file = dataset.row_groups["file"].to_numpy()[kept]
    used = np.zeros(dataset.files.num_rows, bool)
    used[file] = True
    places = np.cumsum(used, dtype=np.int32) - 1
    row_groups = dataset.row_groups.filter(pa.array(kept))
    row_groups = row_groups.set_column(0, row_groups.schema.field("file"), pa.array(places[file], pa.int32()))
    files = dataset.files.filter(pa.array(used))
    return replace(
        dataset,
        files=files,
        row_groups=row_groups,
        content_digest=assembling.content_digest(files, row_groups),
        location_digest=assembling.location_digest(files),
        opened=replace(dataset.opened, subset=True),
    )


# --- opening ---------------------------------------------------------------------------------------------------------


def _open(
    opened: Opened,
    before: Dataset | None,
    threads: int | None,
    client: distributed.Client | None,
    progress: Progress | None,
) -> Dataset:
    located = locate(opened.source)
    known = _known(before, located.files) if before is not None and before.root == located.root else None
    have = set() if known is None else set(known.files["index"].to_pylist())
    new = [i for i in range(len(located.files)) if i not in have]
    read = read_footers(
        located.root,
        [located.files[i] for i in new],
        threads=threads,
        client=client,
        progress=progress,
    )
    read = assembling.placed(read, new)
    footers = read if known is None else assembling.sorted_by_place(merge_footers([known, read]))
    if located.kind != "parquet" and footers.files.num_rows:  # a log names files without rows on purpose
        footers = replace(footers, bad=tuple(each for each in footers.bad if not each.rows_missing))
    if footers.bad and (opened.on_bad_file == "fail" or not footers.files.num_rows):
        raise badfiles.refuse(footers.bad, on=located.root)
    return _build(replace(opened, kind=located.kind, version=located.version, subset=False), located, footers)


def _build(opened: Opened, located: Located, footers: Footers) -> Dataset:
    root, good = located.root, footers.files["index"].to_pylist()
    paths = [located.files[i].path for i in good]
    partitions = type_partitions(
        paths, [located.values[i] for i in good], corrections=opened.columns, declared=located.declared, on=root
    )
    found = assembling.file_schemas(footers, [each.path for each in located.files])
    unified = unify(
        assembling.restrict(found, located.columns, located.field_ids, root),
        partitions=partitions.fields,
        corrections=opened.columns,
        on_drift=opened.on_drift,
        on=root,
    )
    files = assembling.files_table(located.files, footers, partitions.values)
    row_groups = assembling.row_groups_table(footers, unified.schema)
    dataset = Dataset(
        root=root,
        schema=unified.schema,
        files=files,
        row_groups=row_groups,
        partition_columns=partitions.names,
        drift=unified.drift,
        skipped=tuple(SkippedFile(each.path, each.reason) for each in footers.bad),
        content_digest=assembling.content_digest(files, row_groups),
        location_digest=assembling.location_digest(files),
        opened=opened,
        file_schemas=footers.schemas,
    )
    refuse_contradictions(dataset)
    return dataset


def _known(before: Dataset, listed: Sequence[ListedFile]) -> Footers | None:
    """What is known of files that are still the same."""
    if before.opened.subset:
        return None
    identities = dict(zip(before.files["path"].to_pylist(), _identities(before.files), strict=True))
    places = {each.path: i for i, each in enumerate(listed) if identities.get(each.path) == _identity(each)}
    return assembling.known_footers(before.files, before.row_groups, before.file_schemas, before.schema, places)


def _identity(file: ListedFile) -> tuple[int, str | int]:
    return file.size, file.etag or file.mtime_ns


def _identities(files: pa.Table) -> list[tuple[int, str | int]]:
    columns = (files[name].to_pylist() for name in ("size", "etag", "mtime_ns"))
    return [(size, etag or mtime_ns) for size, etag, mtime_ns in zip(*columns, strict=True)]


def _some(paths: Sequence[str]) -> str:
    return ", ".join([*paths[:4], *["…"] * (len(paths) > 4)])
