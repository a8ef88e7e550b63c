"""Which files and row groups can hold rows that meet a filter?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from pipelines.codec import schema_to_text
from pipelines.data.bounds import Possible, Range, as_truth, possible
from pipelines.data.dataset import Dataset, Pruned, subset
from pipelines.data.source import Source, input_columns
from pipelines.data.statistics import ColumnStatistics, plain_type, read_statistics

if TYPE_CHECKING:
    import distributed


def prune(
    dataset: Dataset,
    filter_text: str | None,
    derive: Mapping[str, str],
    *,
    threads: int | None = None,
    client: distributed.Client | None = None,
) -> Pruned:
    """Leave out files and row groups in which no row can meet a filter; see `Dataset.prune`."""
    left = dataset
    if filter_text is not None:
        source = Source(
            root=dataset.root,
            schema=schema_to_text(dataset.schema),
            filter=filter_text,
            derive=tuple(derive.items()),
            partition_columns=dataset.partition_columns,
        )
        wanted = input_columns(source, ())
        left = _keep(left, _may_meet(source, left, _partition_ranges(left, wanted)))
        stored = {name: left.schema.field(name).type for name in wanted if name not in left.partition_columns}
        if stored and left.row_groups.num_rows:
            found = read_statistics(
                left.root, left.files, left.row_groups, stored, left.file_schemas, threads=threads, client=client
            )
            ranges = _partition_ranges(left, wanted)
            ranges |= {name: statistics_range(each, left.row_groups["rows"]) for name, each in found.items()}
            left = _keep(left, _may_meet(source, left, ranges))
    return Pruned(
        left, dataset.files.num_rows, left.files.num_rows, dataset.row_groups.num_rows, left.row_groups.num_rows
    )


def statistics_range(found: ColumnStatistics, rows: pa.ChunkedArray) -> Range:
    """Read statistics as what a column may be: values, nulls, not-a-numbers."""
    some = pc.fill_null(pc.greater(found.nulls, 0), True).to_numpy(zero_copy_only=False)
    bounded = pc.is_valid(found.minimum).to_numpy(zero_copy_only=False)
    values = pc.fill_null(pc.less(found.nulls, rows.combine_chunks()), True).to_numpy(zero_copy_only=False) | bounded
    return Range(found.minimum, found.maximum, values, some, values & pt.is_floating(found.minimum.type))


def _may_meet(source: Source, dataset: Dataset, ranges: dict[str, Possible]) -> np.ndarray:
    count = dataset.row_groups.num_rows
    known = dict(ranges)
    for name, expression in source.derived.items():
        known[name] = possible(expression.operand, known, count)
    condition = source.filter_expression
    return np.ones(count, bool) if condition is None else as_truth(possible(condition.operand, known, count)).true


def _partition_ranges(dataset: Dataset, wanted: tuple[str, ...]) -> dict[str, Possible]:
    held, file = dataset.files["partition"].combine_chunks(), dataset.row_groups["file"].combine_chunks()
    ranges: dict[str, Possible] = {}
    for name in wanted:
        if name in dataset.partition_columns:
            values = pc.struct_field(held, name)
            values = values.cast(plain_type(values.type)).take(file)
            there = pc.is_valid(values).to_numpy(zero_copy_only=False)
            ranges[name] = Range(values, values, there, ~there, there & pt.is_floating(values.type))
    return ranges


def _keep(dataset: Dataset, kept: np.ndarray) -> Dataset:
    return dataset if kept.all() else subset(dataset, kept)
