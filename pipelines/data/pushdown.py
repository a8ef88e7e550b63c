"""Can a row group hold a row that meets the filter? If not, it is never decoded."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from pipelines.data.bounds import Possible, Range, as_truth, possible
from pipelines.data.opening import OpenFile
from pipelines.data.projection import constant
from pipelines.data.pruning import statistics_range
from pipelines.data.shards import FileRef
from pipelines.data.source import Source, input_columns
from pipelines.data.statistics import plain_type, row_group_statistics


def may_meet(source: Source, file: OpenFile, planned: FileRef, row_group: int) -> bool:
    """Tell from a row group's statistics and the file's partition values whether any of its rows may meet the filter.

    What can't be decided may.
    """
    condition = source.filter_expression
    if condition is None:
        return True
    ranges: dict[str, Possible] = {}
    held_schema = file.footer.schema.to_arrow_schema()
    for name in input_columns(source, ()):
        type = source.stored_schema.field(name).type
        if name in source.partition_columns:
            ranges[name] = _partition_range(planned, name, type)
        else:
            leaves = file.leaves([name]).get(name, ())
            held = held_schema.field(name).type if leaves else None
            found = row_group_statistics(file.footer, row_group, leaves[0] if leaves else None, held, type)
            rows = pa.chunked_array([[file.footer.row_group(row_group).num_rows]])
            ranges[name] = statistics_range(found, rows)
    for name, expression in source.derived.items():
        ranges[name] = possible(expression.operand, ranges, 1)
    return bool(as_truth(possible(condition.operand, ranges, 1)).true[0])


def _partition_range(planned: FileRef, name: str, type: pa.DataType) -> Range:
    values = constant(dict(planned.partition)[name], type, 1)
    values = values.dictionary_decode() if pa.types.is_dictionary(values.type) else values
    values = values.cast(plain_type(type))
    there = values.is_valid().to_numpy(zero_copy_only=False)
    return Range(values, values, there, ~there, there & np.array([pa.types.is_floating(values.type)]))
