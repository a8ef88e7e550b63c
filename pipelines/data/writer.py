"""How are batches written as Parquet, by one process or by many, so that all of it appears at once or nothing?

Files get unique names and are made durable; the record that names them is published last (`commits`). A writer that is
killed leaves the version before it as it was.
"""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from distributed import Client

from pipelines.data.commits import DatasetVersion, Mode, Write, WrittenFile, begin_write, commit
from pipelines.data.mapping import DEADLINE_S, OnDone, map_shards
from pipelines.data.shards import Shard
from pipelines.errors import DataError
from pipelines.storage import join_url, open_store
from pipelines.storage.faults import storage_errors
from pipelines.storage.urls import parse_url


@dataclass(frozen=True)
class WriteOptions:
    """How Parquet files are written.

    Attributes
    ----------
    file_bytes : int
        A file is ended once it has as many.
    row_group_bytes : int
        Size of a row group, of decoded Arrow data; its memory is held while it is collected.
    compression : str
        As in `pyarrow.parquet.write_table`.
    plain_floats : bool
        Write floats without dictionaries: they have too many values to gain by them (592 MB instead of 866 for five
        million rows of noise).
    """

    file_bytes: int = 256 << 20
    row_group_bytes: int = 32 << 20
    compression: str = "snappy"
    plain_floats: bool = True


def write_dataset(
    batches: Iterable[pa.RecordBatch | pa.Table],
    url: str,
    *,
    schema: pa.Schema | None = None,
    mode: Mode = "overwrite",
    options: WriteOptions | None = None,
    properties: dict[str, str] | None = None,
) -> DatasetVersion:
    """Write batches as a new version of the dataset at `url`, keeping their order.

    Parameters
    ----------
    batches : iterable of RecordBatch or Table
    url : str
        Its folder; made if it is not there.
    schema : Schema, optional
        Of all batches; by default the first one's.
    mode : {"overwrite", "append"}
        Whether readers of the new version see these rows only, or the newest version's rows before them.
    options : WriteOptions, optional
    properties : dict of str to str, optional
        Kept with the version.

    Returns
    -------
    DatasetVersion
        Open it with ``open_dataset({"versioned": url})``.

    Raises
    ------
    DataError
        Batches of different schemas.
    StorageError
        A full disk, a place that can't be written. The version before stays the newest.
    """
    write = begin_write(url)
    iterator = iter(batches)
    if schema is None:
        first = next(iterator, None)
        if first is None:
            raise DataError("there is nothing to write, and no schema", on=url, remedy="Give the schema.")
        schema, iterator = first.schema, _chain(first, iterator)
    files = write_part(write, 0, iterator, schema, options)
    return commit(write, files, mode=mode, properties=properties)


def write_shards(
    client: Client | None,
    function: Callable[..., Iterable[pa.RecordBatch]],
    shards: Sequence[Shard],
    *args: Any,
    url: str,
    schema: pa.Schema,
    mode: Mode = "overwrite",
    options: WriteOptions | None = None,
    properties: dict[str, str] | None = None,
    deadline_s: float = DEADLINE_S,
    on_done: OnDone | None = None,
) -> DatasetVersion:
    """Write what ``function(shard, *args)`` yields for every shard, on the workers, as one version in shard order.

    Parameters
    ----------
    client : distributed.Client or None
    function : callable
        At module level; yields record batches of `schema`. It may run again for a shard whose worker was lost: the
        files of the lost attempt are then named by no version.
    shards : sequence of Shard
    url, schema, mode, options, properties
        See `write_dataset`.
    deadline_s, on_done
        See `map_shards`.
    """
    write = begin_write(url)
    arguments = (function, write, schema, options, args)
    files: list[WrittenFile] = []
    with closing(
        map_shards(client, _write_shard, shards, *arguments, deadline_s=deadline_s, on_done=on_done)
    ) as results:
        for _, written in results:
            files += written
    return commit(write, files, mode=mode, properties=properties)


def write_part(
    write: Write,
    number: int,
    batches: Iterable[pa.RecordBatch | pa.Table],
    schema: pa.Schema,
    options: WriteOptions | None = None,
) -> tuple[WrittenFile, ...]:
    """Write one part of a dataset: files that `commit` can publish, none where there are no rows.

    Parameters
    ----------
    write : Write
    number : int
        The part's place among the others: files are read in the order of their names.
    batches : iterable
    schema : Schema
    options : WriteOptions, optional
    """
    options = options or WriteOptions()
    files: list[WrittenFile] = []
    row_groups = _row_groups(batches, schema, options.row_group_bytes)
    first = next(row_groups, None)
    while first is not None:
        path = f"{write.folder}/part-{number:06d}-{len(files):03d}-{uuid.uuid4().hex[:8]}.parquet"
        with _new_file(write.url, path) as target:
            rows, size, first = _write_file(target, first, row_groups, schema, options)
        files.append(WrittenFile(path, size, rows))
    return tuple(files)


def _write_shard(
    shard: Shard,
    function: Callable[..., Iterable[pa.RecordBatch]],
    write: Write,
    schema: pa.Schema,
    options: WriteOptions | None,
    args: tuple[Any, ...],
) -> tuple[WrittenFile, ...]:
    return write_part(write, shard.index, function(shard, *args), schema, options)


def _write_file(
    target: Path, first: pa.Table, row_groups: Iterator[pa.Table], schema: pa.Schema, options: WriteOptions
) -> tuple[int, int, pa.Table | None]:
    """Write row groups until the file is large enough; return its rows and bytes, and the row group that is left."""
    rows = 0
    group: pa.Table | None = first
    with pa.OSFile(str(target), "wb") as sink:
        dictionary: bool | list[str] = [field.name for field in schema if not pa.types.is_floating(field.type)]
        if not options.plain_floats:
            dictionary = True
        with pq.ParquetWriter(
            sink, schema, compression=options.compression, use_dictionary=dictionary or False
        ) as writer:
            while group is not None and (not rows or sink.tell() < options.file_bytes):
                writer.write_table(group, row_group_size=group.num_rows)
                rows += group.num_rows
                group = next(row_groups, None)
        sink.flush()
        os.fsync(sink.fileno())
        return rows, sink.tell(), group


def _row_groups(batches: Iterable[pa.RecordBatch | pa.Table], schema: pa.Schema, size: int) -> Iterator[pa.Table]:
    """Join and cut batches into tables of about `size` bytes, in order; none is empty."""
    held: list[pa.Table] = []
    held_bytes = 0
    for batch in batches:
        table = pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch
        if not table.schema.equals(schema):
            raise DataError("a batch has another schema", expected=str(schema), found=str(table.schema))
        while table.num_rows:
            weight = _weight(table)
            fit = max(1, min(table.num_rows, int(table.num_rows * (size - held_bytes) / max(weight, 1))))
            held.append(table.slice(0, fit))
            held_bytes += weight * fit // table.num_rows
            table = table.slice(fit)
            if table.num_rows or held_bytes >= size:
                yield pa.concat_tables(held).unify_dictionaries()
                held, held_bytes = [], 0
    if held:
        yield pa.concat_tables(held).unify_dictionaries()


def _weight(table: pa.Table) -> int:
    """Bytes of the rows themselves: a dictionary is there once, however few rows are cut out."""
    chunks = (chunk for column in table.columns for chunk in column.chunks)
    return sum((chunk.indices if pa.types.is_dictionary(chunk.type) else chunk).nbytes for chunk in chunks)


@contextmanager
def _new_file(url: str, path: str) -> Iterator[Path]:
    """A local path to write to; what is there at the end becomes the object `path`, durable, or vanishes on failure."""
    parts = parse_url(url)
    if parts.scheme == "file":
        target = Path(parts.path) / path
        with storage_errors(join_url(url, path), "write"):
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                yield target
            except BaseException:
                with suppress(OSError):
                    target.unlink(missing_ok=True)
                raise
            _sync_folders(target.parent, Path(parts.path))
        return
    with tempfile.TemporaryDirectory(prefix="mutirao-part-") as folder:
        target = Path(folder) / "part.parquet"
        with storage_errors(str(target), "write"):
            yield target
        open_store(url).replace(path, target)


def _sync_folders(folder: Path, root: Path) -> None:
    """Make the names of new folders and files durable, up to the dataset's folder."""
    while True:
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
        if folder == root or root not in folder.parents:
            return
        folder = folder.parent


def _chain(first: pa.RecordBatch | pa.Table, rest: Iterator[pa.RecordBatch | pa.Table]) -> Iterator[Any]:
    yield first
    yield from rest
