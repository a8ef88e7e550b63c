"""How do many small files become few good ones? Written again in order, as a new version of a dataset."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import pyarrow as pa
from distributed import Client

from pipelines.data.commits import DatasetVersion, Write, WrittenFile, begin_write, commit, is_versioned, newest_version
from pipelines.data.dataset import Dataset, subset
from pipelines.data.mapping import OnDone, map_shards
from pipelines.data.reader import read_batches
from pipelines.data.shards import Shard, plan_shards
from pipelines.data.source import Source, make_source
from pipelines.data.writer import WriteOptions, write_part
from pipelines.errors import DataError, UsageError
from pipelines.storage import absolute_url

TARGET_BYTES = 256 << 20
_SMALL = 0.5


@dataclass(frozen=True)
class Compaction:
    """What a compaction does, or would do.

    Attributes
    ----------
    url : str
        Where the new version is, or would be.
    files_before, files_after : int
        Before a compaction `files_after` is an estimate: compression is not known yet.
    files_kept : int
        Files that are good as they are and that the new version names again.
    bytes_before : int
    rewritten_bytes, rewritten_rows : int
        What is read and written again.
    row_groups_before : int
    version : DatasetVersion, optional
        The new version; None for a dry run, or where there was nothing to do.
    """

    url: str
    files_before: int
    files_after: int
    files_kept: int
    bytes_before: int
    rewritten_bytes: int
    rewritten_rows: int
    row_groups_before: int
    version: DatasetVersion | None = None


def compact(
    dataset: Dataset,
    url: str,
    *,
    target_bytes: int = TARGET_BYTES,
    dry_run: bool = True,
    client: Client | None = None,
    options: WriteOptions | None = None,
    on_done: OnDone | None = None,
) -> Compaction:
    """Rewrite a dataset's files into files of about `target_bytes`, keeping the order of rows.

    At the same place (a versioned dataset, at its newest version) only runs of small files are written again, and
    files of half the target and more are kept. At another place everything is written; partition columns become columns
    of the files. Readers see the version before, then the new one; nothing is deleted (see `commits.collect`).

    Parameters
    ----------
    dataset : Dataset
    url : str
        A versioned dataset, or a folder that does not exist yet.
    target_bytes : int
        Size of the new files.
    dry_run : bool
        Only tell what would be done.
    client : distributed.Client, optional
        Its workers write side by side.
    options : WriteOptions, optional
        Row groups and compression; `file_bytes` is `target_bytes` here.

    Raises
    ------
    UsageError
        A plain dataset can't be compacted in its own folder, nor a part of a dataset anywhere.
    DataError
        Somebody wrote a version meanwhile.
    """
    url = absolute_url(url)
    base = _base(dataset, url)
    runs = _runs(dataset, target_bytes, in_place=base is not None)
    plan = _describe(dataset, url, runs, target_bytes)
    if dry_run or not plan.rewritten_rows:
        return plan
    # Parts are cut before they are compressed, so a file may pass the target: cutting it again would leave a small one.
    options = replace(options or WriteOptions(), file_bytes=2 * target_bytes)
    write = begin_write(url)
    files = _rewrite(dataset, runs, write, options, target_bytes, client, on_done)
    properties = {"compacted": str(plan.files_before - plan.files_kept)}
    version = commit(write, files, replaces=base, properties=properties)
    return replace(plan, files_after=len(version.files), version=version)


@dataclass(frozen=True)
class _Run:
    """Neighbouring files (rows of `Dataset.files`): kept as they are, or written again together."""

    begin: int
    end: int
    keep: bool


def _base(dataset: Dataset, url: str) -> DatasetVersion | None:
    """The version that is compacted in place, None where the result goes elsewhere."""
    if dataset.opened.subset:
        raise UsageError("a pruned dataset can't be compacted: the other rows would be lost", on=dataset.root)
    if dataset.root != url:
        return None
    if not is_versioned(url):
        raise UsageError(
            "a plain folder can't be compacted where it is: readers would see half of it",
            on=url,
            remedy="Give another folder; its versions are then compacted where they are.",
        )
    version = newest_version(url)
    if tuple(dataset.files["path"].to_pylist()) != version.paths:
        raise DataError("this is not the newest version", on=url, remedy="Open the dataset again.")
    return version


def _runs(dataset: Dataset, target_bytes: int, *, in_place: bool) -> list[_Run]:
    sizes = dataset.files["size"].to_pylist()
    if not in_place:
        return [_Run(0, len(sizes), keep=False)]
    good = [size >= _SMALL * target_bytes for size in sizes]
    runs: list[_Run] = []
    for at, keep in enumerate(good):
        if runs and runs[-1].keep == keep:
            runs[-1] = _Run(runs[-1].begin, at + 1, keep)
        else:
            runs.append(_Run(at, at + 1, keep))
    # A small file alone has nobody to be joined with.
    return [_Run(run.begin, run.end, run.keep or run.end - run.begin == 1) for run in runs]


def _describe(dataset: Dataset, url: str, runs: Sequence[_Run], target_bytes: int) -> Compaction:
    sizes, rows = dataset.files["size"].to_pylist(), dataset.files["rows"].to_pylist()
    again = [run for run in runs if not run.keep]
    kept = sum(run.end - run.begin for run in runs if run.keep)
    return Compaction(
        url=url,
        files_before=len(sizes),
        files_after=kept + sum(_parts(sum(sizes[run.begin : run.end]), target_bytes) for run in again),
        files_kept=kept,
        bytes_before=sum(sizes),
        rewritten_bytes=sum(sum(sizes[run.begin : run.end]) for run in again),
        rewritten_rows=sum(sum(rows[run.begin : run.end]) for run in again),
        row_groups_before=dataset.row_groups.num_rows,
    )


def _parts(size: int, target_bytes: int) -> int:
    return max(1, round(size / target_bytes))


def _rewrite(
    dataset: Dataset,
    runs: Sequence[_Run],
    write: Write,
    options: WriteOptions,
    target_bytes: int,
    client: Client | None,
    on_done: OnDone | None,
) -> list[WrittenFile]:
    """Write all runs in one map; give the files of the new version in their order."""
    names, sizes = dataset.schema.names, dataset.files["size"].to_pylist()
    shards: list[Shard] = []
    owner: list[int] = []
    for number, run in enumerate(runs):
        if not run.keep:
            parts = _parts(sum(sizes[run.begin : run.end]), target_bytes)
            for shard in plan_shards(_files(dataset, run), names, shards=parts).shards:
                shards.append(Shard(len(shards), shard.slices, shard.rows, shard.bytes))
                owner.append(number)
    written: list[list[WrittenFile]] = [_kept(dataset, run) if run.keep else [] for run in runs]
    arguments = (make_source(dataset), write, dataset.schema, options)
    with closing(map_shards(client, _write_shard, shards, *arguments, on_done=on_done)) as results:
        for at, files in results:
            written[owner[at]] += files
    return [file for files in written for file in files]


def _write_shard(
    shard: Shard, source: Source, write: Write, schema: pa.Schema, options: WriteOptions
) -> tuple[WrittenFile, ...]:
    return write_part(write, shard.index, _batches(shard, source, schema.names), schema, options)


def _batches(shard: Shard, source: Source, names: Sequence[str]) -> Generator[pa.RecordBatch, None, None]:
    with closing(read_batches(source, [shard], names)) as reads:
        for read in reads:
            yield read.batch


def _files(dataset: Dataset, run: _Run) -> Dataset:
    file = dataset.row_groups["file"].to_numpy()
    return subset(dataset, (file >= run.begin) & (file < run.end))


def _kept(dataset: Dataset, run: _Run) -> list[WrittenFile]:
    chosen = dataset.files.slice(run.begin, run.end - run.begin)
    columns = (chosen[name].to_pylist() for name in ("path", "size", "rows"))
    return [WrittenFile(path, size, rows) for path, size, rows in zip(*columns, strict=True)]
