"""What do footers say about the values of some columns? Bounds and null counts per row group, read when wanted.

Bounds are kept as arrays of the unified type and are null where nothing is known: no statistics, not-a-number in
them, a type whose order a cast would not keep. Text may be cut by its writer: bounds hold all values, but need not be
among them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt

from pipelines.data.badfiles import BadFile
from pipelines.data.ends import Ends
from pipelines.data.footers import footer_at, leaf_starts
from pipelines.data.listing import ListedFile
from pipelines.data.parallel import gather
from pipelines.data.widening import holds
from pipelines.errors import DatasetChangedError
from pipelines.storage import join_url

if TYPE_CHECKING:
    import distributed


@dataclass(frozen=True, eq=False)
class ColumnStatistics:
    """Bounds of one column in each row group; null is unknown.

    Attributes
    ----------
    minimum, maximum : pa.Array
        Of the column's plain type (binary for text); a row group of nulls only has none.
    nulls : pa.Array of int64
        Number of nulls.
    """

    minimum: pa.Array
    maximum: pa.Array
    nulls: pa.Array


def plain_type(type: pa.DataType) -> pa.DataType:
    """Return the type in which bounds of a column are kept: text as its bytes, whose order is the same."""
    plain = type.value_type if pt.is_dictionary(type) else type
    if pt.is_string(plain) or pt.is_string_view(plain):
        return pa.binary()
    return pa.large_binary() if pt.is_large_string(plain) else plain


def read_statistics(
    root: str,
    files: pa.Table,
    row_groups: pa.Table,
    columns: Mapping[str, pa.DataType],
    file_schemas: Sequence[pa.Schema],
    *,
    threads: int | None = None,
    client: distributed.Client | None = None,
) -> dict[str, ColumnStatistics]:
    """Read statistics of columns for all row groups of a manifest, in its order.

    Parameters
    ----------
    root, files, row_groups, file_schemas
        See `dataset.Dataset`.
    columns : mapping of name to the type in the unified schema

    Raises
    ------
    DatasetChangedError
        A file's footer is not the one of the manifest.
    StorageError
        A file can't be read.
    """
    if not files.num_rows or not columns:
        return {name: _concatenated([_unknown(row_groups.num_rows, type)]) for name, type in columns.items()}
    chosen = _chosen_groups(files.num_rows, row_groups)
    told = (files[name].to_pylist() for name in ("path", "size", "etag", "mtime_ns", "footer", "schema"))
    parts = gather(
        _read_chunk,
        root,
        [_Wanted(ListedFile(*each[:4]), *each[4:]) for each in zip(*told, chosen, strict=True)],
        _merge,
        tuple(columns.items()),
        tuple(file_schemas),
        threads=threads,
        client=client,
    )
    return dict(zip(columns, parts, strict=True))


def row_group_statistics(
    metadata: pq.FileMetaData, row_group: int, leaf: int | None, held: pa.DataType | None, type: pa.DataType
) -> ColumnStatistics:
    """Take statistics of one row group from a footer that is at hand.

    Parameters
    ----------
    leaf : int or None
        Number of the column chunk; None where the file lacks the column.
    held : DataType or None
        Its type in the file.
    type : DataType
        Its type in the unified schema.
    """
    collected, groups = _Collected(type), [metadata.row_group(row_group)]
    if leaf is None or held is None or pt.is_null(held):
        collected.add_absent(groups)
    else:
        collected.add(metadata, groups, leaf, held)
    return collected.finish()


@dataclass(frozen=True)
class _Wanted:
    """What is wanted of one file: it must still have this footer."""

    file: ListedFile
    footer: bytes
    schema: int
    row_groups: tuple[int, ...]


def _chosen_groups(count: int, row_groups: pa.Table) -> list[tuple[int, ...]]:
    numbers = row_groups["row_group"].to_pylist()
    ends = np.searchsorted(row_groups["file"].to_numpy(), np.arange(count + 1))
    return [tuple(numbers[begin:end]) for begin, end in pairwise(ends)]


def _merge(parts: Sequence[list[ColumnStatistics]]) -> list[ColumnStatistics]:
    return [_concatenated(column) for column in zip(*parts, strict=True)]


def _concatenated(parts: Sequence[ColumnStatistics]) -> ColumnStatistics:
    return ColumnStatistics(
        pa.concat_arrays([part.minimum for part in parts]),
        pa.concat_arrays([part.maximum for part in parts]),
        pa.concat_arrays([part.nulls for part in parts]),
    )


def _unknown(count: int, type: pa.DataType) -> ColumnStatistics:
    plain = plain_type(type)
    return ColumnStatistics(pa.nulls(count, plain), pa.nulls(count, plain), pa.nulls(count, pa.int64()))


def _read_chunk(
    root: str,
    files: Sequence[_Wanted],
    offset: int,
    columns: Sequence[tuple[str, pa.DataType]],
    file_schemas: Sequence[pa.Schema],
) -> list[ColumnStatistics]:
    ends = Ends(root)
    starts = {number: leaf_starts(file_schemas[number]) for number in {wanted.schema for wanted in files}}
    collected = [_Collected(type) for _, type in columns]
    for wanted in files:
        metadata, schema = _same_footer(ends, wanted), file_schemas[wanted.schema]
        groups = [metadata.row_group(number) for number in wanted.row_groups]
        for (name, _), column in zip(columns, collected, strict=True):
            at = schema.get_field_index(name)
            if at < 0 or pt.is_null(schema.field(at).type):
                column.add_absent(groups)
            else:
                column.add(metadata, groups, int(starts[wanted.schema][at]), schema.field(at).type)
    return [column.finish() for column in collected]


def _same_footer(ends: Ends, wanted: _Wanted) -> pq.FileMetaData:
    found = footer_at(ends, wanted.file)
    if isinstance(found, BadFile) or hashlib.sha256(found[0]).digest() != wanted.footer:
        raise DatasetChangedError(
            "the file was written again since the dataset was opened",
            on=join_url(ends.root, wanted.file.path),
            remedy="Open the dataset again.",
        )
    return found[1]


class _Collected:
    """Raw statistics of one column in row groups one after the other, sorted by how the files hold the column."""

    def __init__(self, type: pa.DataType) -> None:
        self._type = type
        self._target = type.value_type if pt.is_dictionary(type) else type
        self._nulls: list[int | None] = []
        self._raw: dict[tuple[pa.DataType, str | None], tuple[list[int], list[Any], list[Any]]] = {}

    def add_absent(self, groups: Sequence[pq.RowGroupMetaData]) -> None:
        """Add row groups of a file that lacks the column: all their rows are null."""
        self._nulls += [group.num_rows for group in groups]

    def add(
        self, metadata: pq.FileMetaData, groups: Sequence[pq.RowGroupMetaData], leaf: int, held: pa.DataType
    ) -> None:
        """Add row groups of a file that has the column, as the column chunk number `leaf` of type `held`."""
        value = held.value_type if pt.is_dictionary(held) else held
        if pt.is_nested(value):
            self._nulls += [None] * len(groups)
            return
        unit = _unit(metadata.schema.column(leaf)) if pt.is_timestamp(value) or pt.is_time(value) else None
        places, lows, highs = self._raw.setdefault((value, unit), ([], [], []))
        as_number = pt.is_integer(value) or pt.is_floating(value) or pt.is_decimal(value)
        for group in groups:
            found = group.column(leaf).statistics
            if found is not None and found.has_min_max:
                places.append(len(self._nulls))
                # Other bounds are taken raw: Python's dates and times would lose nanoseconds.
                lows.append(found.min if as_number else found.min_raw)
                highs.append(found.max if as_number else found.max_raw)
            self._nulls.append(found.null_count if found is not None and found.has_null_count else None)

    def finish(self) -> ColumnStatistics:
        """Convert what was collected to the unified type; what does not fit there says nothing."""
        parts = [_unknown(1, self._type)]
        order = np.zeros(len(self._nulls), np.int64)  # the place of what is known of each row group; 0 is unknown
        for (value, unit), (places, lows, highs) in self._raw.items():
            try:
                if not holds(self._target, value):
                    continue
                bounds = [_bounds(raw, value, unit, self._type) for raw in (lows, highs)]
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, OverflowError):
                continue
            order[places] = np.arange(len(places)) + sum(len(part.nulls) for part in parts)
            parts.append(_without_nan(bounds[0], bounds[1]))
        known = _concatenated(parts)
        return ColumnStatistics(known.minimum.take(order), known.maximum.take(order), pa.array(self._nulls, pa.int64()))


def _bounds(raw: Sequence[Any], value: pa.DataType, unit: str | None, type: pa.DataType) -> pa.Array:
    """Make an array of the column's plain type from raw bounds of the file's type, or raise what Arrow raises."""
    plain = plain_type(type)
    if pt.is_date(value):
        return pa.array(raw, pa.int32()).cast(pa.date32()).cast(plain)
    if pt.is_timestamp(value):
        return pa.array(raw, pa.int64()).cast(pa.timestamp(unit, plain.tz)).cast(plain)
    if pt.is_time(value):
        whole = pa.int32() if unit == "ms" else pa.int64()
        return pa.array(raw, whole).cast(pa.time32(unit) if unit == "ms" else pa.time64(unit)).cast(plain)
    if pt.is_duration(value):
        return pa.array(raw, pa.int64()).cast(value).cast(plain)
    if pt.is_binary(plain) or pt.is_large_binary(plain) or pt.is_fixed_size_binary(plain) or pt.is_boolean(value):
        return pa.array(raw, plain)
    if pt.is_float16(value):
        return pa.nulls(len(raw), plain)
    return pa.array(raw, value).cast(plain, safe=not pt.is_integer(value))


def _without_nan(low: pa.Array, high: pa.Array) -> ColumnStatistics:
    if pt.is_floating(low.type):
        odd = pc.or_kleene(pc.is_nan(low), pc.is_nan(high))
        low, high = (pc.if_else(odd, pa.scalar(None, low.type), bound) for bound in (low, high))
    return ColumnStatistics(low, high, pa.nulls(len(low), pa.int64()))


def _unit(column: pq.ColumnSchema) -> str | None:
    """The unit that a time or timestamp is stored in; the Arrow type may be a coarser one."""
    name = json.loads(column.logical_type.to_json()).get("timeUnit")
    return {"milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}.get(name)
