"""What becomes of a file's batch? One schema, partition values, derived columns, filter, split."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.data.expressions import Expression
from pipelines.data.rows import RowIds
from pipelines.data.shards import FileRef, Scalar
from pipelines.data.source import Source, input_columns
from pipelines.data.split import PARTS, SplitPlan
from pipelines.errors import DataError, NotFoundError, UsageError


class Projection:
    """Turns batches as files have them into the columns that were asked for. Immutable, safe for several threads."""

    def __init__(self, source: Source, columns: Sequence[str], split: SplitPlan | None, part: str | None) -> None:
        if part is not None and (split is None or part not in PARTS):
            expected = "a split" if split is None else ", ".join(PARTS)
            raise UsageError(f"there is no part {part!r} to read", expected=expected)
        known = set(source.arrow_schema.names)
        for name in (*columns, *(split.columns if split else ())):
            if name not in known:
                raise NotFoundError.among("column", name, source.arrow_schema.names, on=source.root)
        self._columns, self._split, self._part = tuple(columns), split, part
        self._filter = source.filter_expression
        wanted = {*columns, *(split.columns if split else ())}
        self.inputs = input_columns(source, wanted)
        self._types = {name: source.stored_schema.field(name).type for name in self.inputs}
        self._partition = frozenset(name for name in self.inputs if name in source.partition_columns)
        self._derived = _needed(source, wanted)
        self.splits = split is not None
        self._plain = split is None and self._filter is None
        self.stored = tuple(name for name in self.inputs if name not in source.partition_columns)
        self.stored_schema = pa.schema([pa.field(name, self._types[name]) for name in self.stored])
        self.schema = pa.schema([source.arrow_schema.field(name) for name in columns])

    @cached_property
    def row_bytes(self) -> float | None:
        """Bytes of a row of the columns asked for, with a bit each for nulls; None where they differ."""
        widths = [width(each.type) for each in self.schema]
        return None if None in widths else sum(each + 0.125 for each in widths if each is not None)

    @property
    def dictionaries(self) -> tuple[str, ...]:
        """Stored text columns that are categories: best decoded as dictionaries."""
        return tuple(
            name
            for name in self.stored
            if pa.types.is_dictionary(self._types[name]) and _is_text(self._types[name].value_type)
        )

    def apply(
        self, batch: pa.RecordBatch | None, file: FileRef, count: int, rows: RowIds | None
    ) -> tuple[pa.RecordBatch, RowIds | None, np.ndarray | None]:
        """Apply it to rows of a file.

        Parameters
        ----------
        batch : RecordBatch or None
            The stored columns that the file has; None where none are needed.
        file : FileRef
        count : int
            Rows of the batch.
        rows : RowIds or None
            Their identities; needed with a split.

        Returns
        -------
        batch : RecordBatch
            The columns asked for, of the rows that filter and part leave.
        rows : RowIds or None
        parts : ndarray of int8 or None
        """
        if self._plain and batch is not None and batch.schema.equals(self.schema):
            return batch.replace_schema_metadata(), rows, None
        held = self._unified(batch, file, count)
        for name, expression in self._derived.items():
            held[name] = expression.evaluate(held, count)
        keep = self._keep(held, count)
        parts = None
        if self._split is not None:
            parts = self._split.assign(_batch(held, self._split.columns, count), rows)
            if self._part is not None:
                mine = parts == PARTS.index(self._part)
                keep, parts = mine if keep is None else keep & mine, None
        result = pa.RecordBatch.from_arrays([held[name] for name in self._columns], schema=self.schema)
        if not self._columns:
            result = _without_columns(count if keep is None else int(keep.sum()))
        if keep is None or keep.all():
            return result, rows, parts
        if self._columns:
            result = result.filter(pa.array(keep))
        left = None if rows is None else RowIds(rows.path, rows.row_group, rows.rows[keep], rows.first_row)
        return result, left, None if parts is None else parts[keep]

    def _unified(self, batch: pa.RecordBatch | None, file: FileRef, rows: int) -> dict[str, pa.Array]:
        held = {}
        stored = {} if batch is None else dict(zip(batch.schema.names, batch.columns, strict=True))
        for name, type in self._types.items():
            if name in self._partition:
                held[name] = constant(dict(file.partition)[name], type, rows)
            elif name in stored:
                held[name] = conform(stored[name], type, name, file.path)
            else:
                held[name] = pa.nulls(rows, type)
        return held

    def _keep(self, held: dict[str, pa.Array], rows: int) -> np.ndarray | None:
        if self._filter is None:
            return None
        return pc.fill_null(self._filter.evaluate(held, rows), False).to_numpy(zero_copy_only=False)


def conform(values: pa.Array, type: pa.DataType, column: str, path: str) -> pa.Array:
    """Cast a file's values to the dataset's type.

    Raises
    ------
    DataError
        A value that does not fit.
    """
    if values.type == type:
        return values
    try:
        if pa.types.is_dictionary(type):
            return _categories(values, type)
        if pa.types.is_dictionary(values.type):
            values = values.dictionary_decode()
        return values if values.type == type else values.cast(type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise DataError(
            f"column {column!r} does not fit the dataset's type",
            on=path,
            expected=str(type),
            found=f"{values.type}: {str(error).splitlines()[0]}",
            remedy=f"Correct the type under data.columns.{column}, or the file.",
        ) from error


def constant(value: Scalar, type: pa.DataType, rows: int) -> pa.Array:
    """A partition column: the value that the path says, for every row."""
    if pa.types.is_dictionary(type):
        held = pa.array([value]).cast(type.value_type)
        codes = pa.repeat(pa.scalar(0 if value is not None else None, type.index_type), rows)
        return pa.DictionaryArray.from_arrays(codes, held, ordered=type.ordered)
    return pa.repeat(pa.scalar(value).cast(type) if value is not None else pa.scalar(None, type), rows)


def width(type: pa.DataType) -> float | None:
    """Bytes of a value in Arrow's memory; None where they differ."""
    try:
        return None if pa.types.is_dictionary(type) else type.bit_width / 8
    except ValueError:
        return None


def _categories(values: pa.Array, type: pa.DictionaryType) -> pa.Array:
    if not pa.types.is_dictionary(values.type):
        values = values.cast(type.value_type).dictionary_encode()
    indices = values.indices.cast(type.index_type)
    return pa.DictionaryArray.from_arrays(indices, values.dictionary.cast(type.value_type), ordered=type.ordered)


def _needed(source: Source, wanted: set[str]) -> dict[str, Expression]:
    """Derived columns that are asked for, or that others or the filter need; in their order."""
    names = set(wanted) | set(source.filter_expression.columns if source.filter_expression else ())
    for name, expression in reversed(source.derived.items()):
        if name in names:
            names |= set(expression.columns)
    return {name: expression for name, expression in source.derived.items() if name in names}


def _batch(held: dict[str, pa.Array], names: Sequence[str], rows: int) -> pa.RecordBatch:
    if not names:
        return _without_columns(rows)
    return pa.RecordBatch.from_arrays([held[name] for name in names], names=list(names))


def _without_columns(rows: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))


def _is_text(type: pa.DataType) -> bool:
    return pa.types.is_string(type) or pa.types.is_large_string(type) or pa.types.is_binary(type)
