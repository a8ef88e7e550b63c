"""What is there to tell of a dataset? Plain JSON values for `mutirao data inspect`."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.codec import to_plain
from pipelines.data.assembling import column_matrix
from pipelines.data.shadowing import shadowed_columns

if TYPE_CHECKING:
    from pipelines.data.dataset import Dataset

_SHOWN = 20


def describe(dataset: Dataset) -> dict[str, Any]:
    """Describe a dataset: columns, files, rows, row groups, bytes, partitions, drift, skipped files."""
    rows = dataset.row_groups["rows"]
    return {
        "root": dataset.root,
        "opened": to_plain(dataset.opened),
        "rows": dataset.rows,
        "files": dataset.files.num_rows,
        "row_groups": dataset.row_groups.num_rows,
        "bytes": dataset.bytes,
        "file_bytes": pc.sum(dataset.files["size"]).as_py() or 0,
        "rows_per_row_group": {"min": pc.min(rows).as_py(), "max": pc.max(rows).as_py()},
        "columns": _columns(dataset),
        "partitions": _partitions(dataset),
        "drift": [to_plain(each) for each in dataset.drift],
        "skipped": [to_plain(each) for each in dataset.skipped],
        "content_digest": dataset.content_digest,
        "location_digest": dataset.location_digest,
    }


def plain(value: object) -> object:
    """Make a JSON value of what Arrow gives: dates and times as ISO text, decimals and bytes as text."""
    if isinstance(value, date | datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return str(value) if isinstance(value, Decimal) else repr(value)


def _columns(dataset: Dataset) -> list[dict[str, Any]]:
    held = column_matrix(dataset.row_groups, dataset.schema).sum(axis=0)
    return [
        {
            "name": field.name,
            "type": str(field.type),
            "bytes": int(size),
            "partition": field.name in dataset.partition_columns,
            "nested": pa.types.is_nested(field.type),
        }
        for field, size in zip(dataset.schema, held, strict=True)
    ]


def _partitions(dataset: Dataset) -> list[dict[str, Any]]:
    shadowed = shadowed_columns(dataset)
    found = []
    for name in dataset.partition_columns:
        values = pc.struct_field(dataset.files["partition"].combine_chunks(), name)
        distinct = pc.unique(values)
        distinct = distinct.take(pc.sort_indices(distinct))
        found.append(
            {
                "column": name,
                "type": str(dataset.schema.field(name).type),
                "distinct": len(distinct),
                "values": [plain(value) for value in distinct[:_SHOWN].to_pylist()],
                "also_in_files": name in shadowed,
            }
        )
    return found
