"""What do the footers of many Parquet files say? Read in parallel, kept as columns.

A footer costs one or two reads at the end of its file and its decoding; what Python does per column chunk is to take
one number while the footer is at hand.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from pipelines.data import badfiles
from pipelines.data.badfiles import BadFile
from pipelines.data.ends import Ends
from pipelines.data.listing import ListedFile
from pipelines.data.parallel import Progress, gather

if TYPE_CHECKING:
    import distributed


@dataclass(frozen=True, eq=False)
class Footers:
    """What the footers of some files say. Picklable.

    Attributes
    ----------
    files : pa.Table
        One row per good file, in order: ``index`` (its place among the files that were asked for), ``rows``,
        ``row_groups``, ``schema`` (index into `schemas`), ``footer`` (SHA-256).
    row_groups : pa.Table
        One row per row group that has rows, in order: ``index``, ``row_group``, ``first_row``, ``rows``, ``bytes``,
        ``column_bytes`` (a list: one number per field of the file's schema).
    schemas : tuple of pa.Schema
    bad : tuple of BadFile
    """

    files: pa.Table
    row_groups: pa.Table
    schemas: tuple[pa.Schema, ...]
    bad: tuple[BadFile, ...]


FILES = pa.schema(
    {
        "index": pa.int64(),
        "rows": pa.int64(),
        "row_groups": pa.int32(),
        "schema": pa.int32(),
        "footer": pa.binary(32),
    }.items()
)
ROW_GROUPS = pa.schema(
    {
        "index": pa.int64(),
        "row_group": pa.int32(),
        "first_row": pa.int64(),
        "rows": pa.int64(),
        "bytes": pa.int64(),
        "column_bytes": pa.list_(pa.int64()),
    }.items()
)


def read_footers(
    root: str,
    files: Sequence[ListedFile],
    *,
    threads: int | None = None,
    client: distributed.Client | None = None,
    progress: Progress | None = None,
) -> Footers:
    """Read the footers of files; bad ones are described, not raised.

    Parameters
    ----------
    root : str
        URL or path that the files' paths are relative to.
    files : sequence of ListedFile
    threads : int, optional
        By default the number of processors for local files, 32 for others.
    client : distributed.Client, optional
        Used when there are many files.
    progress : callable, optional

    Raises
    ------
    StorageError
        A file that may not be read, a store that does not answer.
    DatasetChangedError
        A file that vanished.
    """
    return gather(_read_chunk, root, files, merge_footers, threads=threads, client=client, progress=progress)


def footer_at(ends: Ends, file: ListedFile) -> tuple[memoryview, pq.FileMetaData] | BadFile:
    """Read one footer: its bytes (with the 8 that follow it) and what they say; or why that can't be done."""
    path, size = file.path, file.size
    if size == 0:
        return badfiles.empty(path)
    head, tail = ends.read(file)
    if len(tail) < 8 or tail[-4:] != badfiles.MAGIC or head[:4] not in (badfiles.MAGIC, b""):
        return badfiles.not_parquet(path, size, head, tail[-8:])
    length = int.from_bytes(tail[-8:-4], "little")
    if length + 12 > size:
        found = f"a length of {length:,} bytes in a file of {size:,}"
        return badfiles.damaged(path, found, "a footer that fits into the file")
    footer = memoryview(tail)[-8 - length :]
    try:
        metadata = pq.read_metadata(pa.BufferReader(footer))
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        return badfiles.damaged(path, str(error).splitlines()[0])
    if length - metadata.serialized_size == badfiles.SIGNATURE_BYTES:
        # Looking at an encrypted column's chunk would abort the process.
        return badfiles.encrypted(path)
    return footer, metadata


# --- one run of files ------------------------------------------------------------------------------------------------


class _Columns:
    """Collects what footers say, as lists that become Arrow columns at the end."""

    def __init__(self) -> None:
        self.files: list[tuple[int, int, int, int, bytes]] = []
        self.groups: list[tuple[int, int, int, int]] = []
        self.sizes: list[np.ndarray] = []
        self.schemas = _Schemas()
        self.bad: list[BadFile] = []

    def add(self, index: int, path: str, footer: memoryview, metadata: pq.FileMetaData) -> None:
        try:
            known = self.schemas.find(metadata)
        except (pa.ArrowException, UnicodeDecodeError, ValueError) as error:
            self.bad.append(badfiles.damaged(path, str(error).splitlines()[0]))
            return
        if known.doubled:
            self.bad.append(badfiles.doubled(path, known.arrow.names))
            return
        width, first, groups, sizes = metadata.num_columns, 0, [], []
        for i in range(metadata.num_row_groups):
            group = metadata.row_group(i)
            rows = group.num_rows
            if rows:
                groups.append((index, i, first, rows))
                sizes.append([group.column(j).total_uncompressed_size for j in range(width)])
            first += rows
        if first != metadata.num_rows:
            found = f"{metadata.num_rows:,} rows in the footer, {first:,} in its row groups"
            self.bad.append(badfiles.damaged(path, found))
        elif not first:
            self.bad.append(badfiles.without_rows(path))
        else:
            self.files.append((index, first, len(groups), known.number, hashlib.sha256(footer).digest()))
            self.groups += groups
            held = np.array(sizes, np.int64)
            self.sizes.append(held if known.flat else np.add.reduceat(held, known.starts, axis=1))

    def finish(self) -> Footers:
        files = pa.Table.from_arrays(
            [pa.array(c, f.type) for c, f in zip(_turned(self.files, 5), FILES, strict=True)], schema=FILES
        )
        index, number, first, rows = _turned(self.groups, 4)
        flat = np.concatenate([block.ravel() for block in self.sizes]) if self.sizes else np.empty(0, np.int64)
        widths = (
            np.concatenate([np.full(len(b), b.shape[1]) for b in self.sizes]) if self.sizes else np.empty(0, np.int64)
        )
        offsets = pa.array(np.concatenate([[0], np.cumsum(widths)]), pa.int32())
        per_column = pa.ListArray.from_arrays(offsets, pa.array(flat))
        totals = np.concatenate([block.sum(axis=1) for block in self.sizes]) if self.sizes else flat
        columns = [index, number, first, rows, totals, per_column]
        arrays = [pa.array(c, f.type) for c, f in zip(columns, ROW_GROUPS, strict=True)]
        row_groups = pa.Table.from_arrays(arrays, schema=ROW_GROUPS)
        return Footers(files, row_groups, self.schemas.arrow, tuple(self.bad))


@dataclass(frozen=True, eq=False)
class _Known:
    """A schema that was met: as Parquet and Arrow have it, and where the column chunks of each field start."""

    parquet: Any
    extra: bytes | None
    number: int
    arrow: pa.Schema
    starts: np.ndarray
    flat: bool
    doubled: bool


class _Schemas:
    """The distinct schemas met so far; files of one writer share one, so comparing with the last nearly always does."""

    def __init__(self) -> None:
        self._known: list[_Known] = []

    @property
    def arrow(self) -> tuple[pa.Schema, ...]:
        return tuple(known.arrow for known in self._known)

    def find(self, metadata: pq.FileMetaData) -> _Known:
        parquet, extra = metadata.schema, (metadata.metadata or {}).get(b"ARROW:schema")
        for known in reversed(self._known):
            if extra == known.extra and known.parquet.equals(parquet):
                return known
        arrow = parquet.to_arrow_schema()
        if not len(arrow) or sum(_leaves(field.type) for field in arrow) != metadata.num_columns:
            raise ValueError(f"{metadata.num_columns} column chunks a row group for {len(arrow)} columns")
        plain = pa.schema([pa.field(field.name, field.type, metadata=field.metadata) for field in arrow])
        for known in self._known:  # pandas notes the number of rows in the schema's metadata
            if known.arrow.equals(plain, check_metadata=True):
                return known
        flat, doubled = len(arrow) == metadata.num_columns, len(set(arrow.names)) < len(arrow)
        self._known.append(_Known(parquet, extra, len(self._known), plain, leaf_starts(arrow), flat, doubled))
        return self._known[-1]


def _read_chunk(root: str, files: Sequence[ListedFile], offset: int) -> Footers:
    ends, columns = Ends(root), _Columns()
    for index, file in enumerate(files, offset):
        found = footer_at(ends, file)
        if isinstance(found, BadFile):
            columns.bad.append(found)
        else:
            columns.add(index, file.path, *found)
    return columns.finish()


def merge_footers(parts: Sequence[Footers]) -> Footers:
    """Put runs of footers together, schemas that are the same counted once."""
    schemas: dict[str, tuple[int, pa.Schema]] = {}
    tables = []
    for part in parts:
        numbers = [schemas.setdefault(_key(schema), (len(schemas), schema))[0] for schema in part.schemas]
        numbering = pa.array(numbers, pa.int32())
        at = part.files.schema.get_field_index("schema")
        tables.append(part.files.set_column(at, FILES.field("schema"), numbering.take(part.files["schema"])))
    return Footers(
        pa.concat_tables(tables or [FILES.empty_table()]).combine_chunks(),
        pa.concat_tables([part.row_groups for part in parts] or [ROW_GROUPS.empty_table()]).combine_chunks(),
        tuple(schema for _, schema in schemas.values()),
        tuple(bad for part in parts for bad in part.bad),
    )


def _key(schema: pa.Schema) -> str:
    return repr([(field.name, str(field.type), sorted((field.metadata or {}).items())) for field in schema])


def leaf_starts(schema: pa.Schema) -> np.ndarray:
    """Return for each field the number of its first column chunk; nested fields have several."""
    leaves = [_leaves(field.type) for field in schema]
    return np.cumsum([0, *leaves[:-1]])


def _turned(rows: list[Any], width: int) -> list[Sequence[Any]]:
    return list(zip(*rows, strict=True)) if rows else [()] * width


def _leaves(type: pa.DataType) -> int:
    if isinstance(type, pa.ExtensionType):
        return _leaves(type.storage_type)
    if pt.is_struct(type):
        return sum(_leaves(field.type) for field in type)
    if pt.is_map(type):
        return _leaves(type.key_type) + _leaves(type.item_type)
    if pt.is_nested(type):
        return _leaves(type.value_type)
    return 1
