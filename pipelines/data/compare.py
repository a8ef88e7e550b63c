"""How do two datasets differ? Schema, files, rows and statistics, for `mutirao data diff`."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from pipelines.data.dataset import Dataset
from pipelines.data.describing import plain
from pipelines.data.statistics import read_statistics

Scalar = str | int | float | bool | None


@dataclass(frozen=True)
class ColumnDifference:
    """A column of another type, or of one dataset only (the other type is then empty)."""

    column: str
    before: str
    after: str


@dataclass(frozen=True)
class FilesDifference:
    """Files by path relative to each dataset's root; the same path with another footer is a changed file."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]
    same: int


@dataclass(frozen=True)
class ColumnSummary:
    """A column's statistics over all row groups; None where some row group does not tell.

    Text may have been cut by the writer: it is a bound then, not a value.
    """

    minimum: Scalar
    maximum: Scalar
    nulls: int | None


@dataclass(frozen=True)
class StatisticsDifference:
    """A column whose statistics differ."""

    column: str
    before: ColumnSummary
    after: ColumnSummary


@dataclass(frozen=True)
class DatasetDiff:
    """All differences; JSON-able. `same_content` means the same paths and footers, whatever the place."""

    before: str
    after: str
    same_content: bool
    schema: tuple[ColumnDifference, ...]
    files: FilesDifference
    rows: tuple[int, int]
    row_groups: tuple[int, int]
    bytes: tuple[int, int]
    statistics: tuple[StatisticsDifference, ...]


def compare(before: Dataset, after: Dataset, *, statistics: bool = True, threads: int | None = None) -> DatasetDiff:
    """Compare two datasets.

    Parameters
    ----------
    statistics : bool
        Whether to read both datasets' footers again, for minima, maxima and nulls of their common columns.
    threads : int, optional

    Raises
    ------
    DatasetChangedError, StorageError
        While footers are read.
    """
    return DatasetDiff(
        before=before.root,
        after=after.root,
        same_content=before.content_digest == after.content_digest,
        schema=_schemas(before.schema, after.schema),
        files=_files(before.files, after.files),
        rows=(before.rows, after.rows),
        row_groups=(before.row_groups.num_rows, after.row_groups.num_rows),
        bytes=(before.bytes, after.bytes),
        statistics=_statistics(before, after, threads) if statistics else (),
    )


def summarise(dataset: Dataset, columns: list[str], *, threads: int | None = None) -> dict[str, ColumnSummary]:
    """Put the statistics of all row groups together, for flat columns of the files."""
    types = {name: dataset.schema.field(name).type for name in columns}
    found = read_statistics(
        dataset.root, dataset.files, dataset.row_groups, types, dataset.file_schemas, threads=threads
    )
    rows = dataset.row_groups["rows"].combine_chunks()
    summaries = {}
    for name, each in found.items():
        silent = pc.and_(pc.is_null(each.minimum), pc.fill_null(pc.less(each.nulls, rows), True))
        known = not pc.any(silent).as_py()
        nulls = None if each.nulls.null_count else pc.sum(each.nulls).as_py()
        type = types[name].value_type if pt.is_dictionary(types[name]) else types[name]
        low, high = (_value(bound, type) if known else None for bound in (pc.min(each.minimum), pc.max(each.maximum)))
        summaries[name] = ColumnSummary(low, high, nulls)
    return summaries


def _schemas(before: pa.Schema, after: pa.Schema) -> tuple[ColumnDifference, ...]:
    types = [{field.name: str(field.type) for field in schema} for schema in (before, after)]
    pairs = ((name, types[0].get(name, ""), types[1].get(name, "")) for name in dict.fromkeys([*types[0], *types[1]]))
    return tuple(ColumnDifference(*each) for each in pairs if each[1] != each[2])


def _files(before: pa.Table, after: pa.Table) -> FilesDifference:
    old, new = (dict(zip(t["path"].to_pylist(), t["footer"].to_pylist(), strict=True)) for t in (before, after))
    changed = tuple(path for path in old if path in new and old[path] != new[path])
    return FilesDifference(
        added=tuple(path for path in new if path not in old),
        removed=tuple(path for path in old if path not in new),
        changed=changed,
        same=sum(path in new for path in old) - len(changed),
    )


def _statistics(before: Dataset, after: Dataset, threads: int | None) -> tuple[StatisticsDifference, ...]:
    partitions = {*before.partition_columns, *after.partition_columns}
    common = [
        field.name
        for field in before.schema
        if field.name in after.schema.names and field.name not in partitions and not pt.is_nested(field.type)
    ]
    old, new = (summarise(dataset, common, threads=threads) for dataset in (before, after))
    return tuple(StatisticsDifference(name, old[name], new[name]) for name in common if old[name] != new[name])


def _value(bound: pa.Scalar, type: pa.DataType) -> Scalar:
    value = plain(bound.cast(type).as_py() if bound.type != type and not pt.is_binary(bound.type) else bound.as_py())
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no infinities
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)
