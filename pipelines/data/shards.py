"""Which rows does one unit of work read? Shards: contiguous runs of row ranges, balanced by the bytes that are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.codec import canonical, digest
from pipelines.data.balance import cut_evenly
from pipelines.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from pipelines.data.dataset import Dataset

Scalar = str | int | float | bool | None
"""A JSON value of a partition column; dates and timestamps are ISO text, typed again by the schema."""

LEAST_SHARD_BYTES = 16 << 10
"""Below that a shard's description is no longer small against its rows."""
ATOMS_PER_SHARD = 16
"""Row groups are cut into pieces of at most a sixteenth of a shard: balance to 6 %, and small ones stay whole."""


@dataclass(frozen=True)
class FileRef:
    """A file of the dataset as it was when the manifest was made; reading another content is refused.

    Parameters
    ----------
    path : str
        Relative to the dataset's root.
    etag : str
        The store's ETag, or ``mtime:<nanoseconds>`` where the store has none.
    partition : tuple of (column, value)
        The values that the path says.
    """

    path: str
    size: int
    etag: str
    partition: tuple[tuple[str, Scalar], ...] = ()


@dataclass(frozen=True)
class Slice:
    """Rows ``start:stop`` of one row group; `first_row` is the row number in the file of the row group's first row."""

    file: FileRef
    row_group: int
    start: int
    stop: int
    first_row: int
    bytes: int

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.stop - self.start


@dataclass(frozen=True)
class Shard:
    """What one unit of work reads: slices in dataset order. `bytes` are uncompressed, of the projected columns."""

    index: int
    slices: tuple[Slice, ...]
    rows: int
    bytes: int

    @property
    def paths(self) -> tuple[str, ...]:
        """The files it touches, in order, each once."""
        return tuple(dict.fromkeys(piece.file.path for piece in self.slices))


@dataclass(frozen=True)
class ShardPlan:
    """All shards of a dataset, in dataset order: every row exactly once.

    Parameters
    ----------
    columns : tuple of str
        The columns whose bytes were balanced.
    largest_piece : int
        Bytes of the largest piece that is never cut; shards differ by at most as much.
    """

    shards: tuple[Shard, ...]
    columns: tuple[str, ...]
    largest_piece: int

    @cached_property
    def digest(self) -> str:
        """SHA-256 of what is read in which order: paths relative to the root, row groups and ranges, not bytes."""
        ranges = [[[s.file.path, s.row_group, s.start, s.stop] for s in shard.slices] for shard in self.shards]
        return digest(canonical(ranges))

    @property
    def rows(self) -> int:
        """Rows of all shards."""
        return sum(shard.rows for shard in self.shards)

    @property
    def bytes(self) -> int:
        """Uncompressed bytes of the projected columns in all shards."""
        return sum(shard.bytes for shard in self.shards)


def default_shards(
    dataset: Dataset, columns: Sequence[str], *, max_workers: int, least_bytes: int = LEAST_SHARD_BYTES
) -> int:
    """How many shards to cut: at least 32 × `max_workers`, unless the data are too small for it.

    256 at least, so that one number serves all clusters of up to eight workers; rounded up to a power of two
    beyond; shards between `least_bytes` and 256 MiB.
    """
    weight = int(_projected_bytes(dataset, columns).sum())
    wanted = max(256, 1 << (32 * max_workers - 1).bit_length())
    return max(1, -(-weight // (256 << 20)), min(wanted, weight // least_bytes))


def plan_shards(dataset: Dataset, columns: Sequence[str], *, shards: int) -> ShardPlan:
    """Cut a dataset into `shards` contiguous shards, balanced by uncompressed bytes of the projected columns.

    Row groups larger than a sixteenth of a shard are cut into equal pieces; pieces are never cut, and the heaviest
    and the lightest shard differ by at most the largest piece. The result depends on the arguments only. There are
    fewer shards than asked for where there are fewer pieces.

    Parameters
    ----------
    dataset : Dataset
    columns : sequence of str
        Columns of the files that will be read (see `source.input_columns`); partition columns weigh nothing.
    shards : int ≥ 1

    Raises
    ------
    UsageError
        Without columns that exist, or with a number of shards below one.
    """
    if shards < 1:
        raise UsageError("a plan needs at least one shard", found=str(shards))
    groups = dataset.row_groups
    rows, weights = groups["rows"].to_numpy(), _projected_bytes(dataset, columns)
    if not weights.sum():
        weights = rows.copy()
    first_rows = groups["first_row"].to_numpy()
    limit = max(1, int(weights.sum()) // (shards * ATOMS_PER_SHARD))
    counts = np.minimum(np.maximum(1, -(-weights // limit)), np.maximum(rows, 1))
    pieces = _Pieces(rows, weights, counts)
    sizes = pieces.weights()
    cuts = cut_evenly(sizes, min(shards, len(sizes))) if sizes else [0]
    files, file_of, group_of = _file_refs(dataset), groups["file"].to_pylist(), groups["row_group"].to_pylist()
    result: list[Shard] = []
    for begin, end in pairwise(cuts):
        slices = tuple(
            Slice(files[file_of[g]], group_of[g], start, stop, int(first_rows[g]), weight)
            for g, start, stop, weight in pieces.ranges(begin, end)
        )
        if slices:
            result.append(Shard(len(result), slices, sum(s.rows for s in slices), sum(s.bytes for s in slices)))
    return ShardPlan(tuple(result), tuple(columns), max(sizes, default=0))


def deal(shards: Sequence[Shard], ranks: int) -> tuple[tuple[int, ...], ...]:
    """Deal whole shards to ranks or lanes: for each a contiguous run of positions in `shards`, balanced by bytes.

    Runs are contiguous because neighbours often share a row group, which a rank then decodes once.
    """
    if ranks < 1:
        raise UsageError("shards can only be dealt to at least one rank", found=str(ranks))
    cuts = cut_evenly([shard.bytes for shard in shards], ranks)
    return tuple(tuple(range(begin, end)) for begin, end in pairwise(cuts))


class _Pieces:
    """Row groups cut into equal pieces, by number: piece `p` is piece ``p - offsets[g]`` of row group `g`."""

    def __init__(self, rows: np.ndarray, weights: np.ndarray, counts: np.ndarray) -> None:
        counts = np.where(rows > 0, counts, 0)
        self._group = np.repeat(np.arange(len(rows)), counts)
        place = np.arange(len(self._group)) - np.repeat(np.cumsum(counts) - counts, counts)
        of, total = counts[self._group], rows[self._group]
        self._start, self._stop = total * place // of, total * (place + 1) // of
        group_weight = weights[self._group]
        # Python integers: rows × bytes may pass 2**63.
        self._begin = [int(w) * int(s) // int(t) for w, s, t in zip(group_weight, self._start, total, strict=True)]
        self._end = [int(w) * int(s) // int(t) for w, s, t in zip(group_weight, self._stop, total, strict=True)]

    def weights(self) -> list[int]:
        return [end - begin for begin, end in zip(self._begin, self._end, strict=True)]

    def ranges(self, begin: int, end: int) -> list[tuple[int, int, int, int]]:
        """Pieces ``begin:end`` joined per row group: (row group's number, start row, stop row, weight)."""
        found = []
        while begin < end:
            group = self._group[begin]
            last = min(end, int(np.searchsorted(self._group, group, side="right"))) - 1
            weight = self._end[last] - self._begin[begin]
            found.append((int(group), int(self._start[begin]), int(self._stop[last]), weight))
            begin = last + 1
        return found


def _projected_bytes(dataset: Dataset, columns: Sequence[str]) -> np.ndarray:
    """Uncompressed bytes of `columns`, per row group (int64)."""
    names = dataset.schema.names
    for column in columns:
        if column not in names:
            raise NotFoundError.among("column", column, names, on=dataset.root)
    held = dataset.row_groups["column_bytes"].combine_chunks()
    matrix = pc.list_flatten(held).to_numpy().reshape(dataset.row_groups.num_rows, len(names))
    return matrix[:, [names.index(column) for column in dict.fromkeys(columns)]].sum(axis=1, dtype=np.int64)


def _file_refs(dataset: Dataset) -> list[FileRef]:
    files, names = dataset.files, dataset.partition_columns
    partitions = _partition_values(files, names)
    columns = (files[name].to_pylist() for name in ("path", "size", "etag", "mtime_ns"))
    return [
        FileRef(path, size, etag or f"mtime:{mtime_ns}", values)
        for path, size, etag, mtime_ns, values in zip(*columns, partitions, strict=True)
    ]


def _partition_values(files: pa.Table, names: Sequence[str]) -> list[tuple[tuple[str, Scalar], ...]]:
    if not names:
        return [()] * files.num_rows
    held = files["partition"].combine_chunks()
    texts = []
    for name in names:
        values = pc.struct_field(held, name)
        plain = pa.types.is_boolean(values.type) or pa.types.is_integer(values.type)
        texts.append((values if plain else pc.cast(values, pa.string())).to_pylist())
    return [tuple(zip(names, row, strict=True)) for row in zip(*texts, strict=True)]


def join(shards: Sequence[Shard], index: int = 0) -> Shard:
    """Make one shard of neighbours; slices that follow each other in a row group become one."""
    slices: list[Slice] = []
    for piece in (piece for shard in shards for piece in shard.slices):
        last = slices[-1] if slices else None
        if last and (last.file, last.row_group, last.stop) == (piece.file, piece.row_group, piece.start):
            slices[-1] = replace(last, stop=piece.stop, bytes=last.bytes + piece.bytes)
        else:
            slices.append(piece)
    return Shard(index, tuple(slices), sum(shard.rows for shard in shards), sum(shard.bytes for shard in shards))
