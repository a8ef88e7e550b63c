"""How is a column of a batch read as numbers or as category codes, in whatever form it arrives?

A *missing* value is a null, a NaN or an infinity, here and in every module of this room.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.errors import DataError, NotFoundError
from pipelines.features.dates import date_part, is_temporal
from pipelines.features.steps import Input

BLOCK = 16_384
"""Rows at once: 64 KiB of float32 in, as much out and 128 KiB between stay in the second-level cache, and NumPy's one
or two microseconds a call hardly count."""

_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def is_text(type_: pa.DataType) -> bool:
    """Whether a type is a string of any layout."""
    return pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_string_view(type_)


def is_number(type_: pa.DataType) -> bool:
    """Whether a type reads as numbers: integers, floats, decimals, durations; not booleans."""
    numeric = pa.types.is_integer(type_) or pa.types.is_floating(type_)
    return numeric or pa.types.is_decimal(type_) or pa.types.is_duration(type_)


def is_single(type_: pa.DataType) -> bool:
    """Whether all values of a type are float32 numbers, so that float32 arithmetic loses nothing before it starts."""
    if pa.types.is_floating(type_) or pa.types.is_integer(type_):
        return type_.bit_width <= (32 if pa.types.is_floating(type_) else 16)
    return pa.types.is_boolean(type_)


def category_type(type_: pa.DataType) -> pa.DataType | None:
    """Give the type in which values of a categorical column are kept, None for types that can't be categories.

    Booleans are kept as the strings ``false`` and ``true``.
    """
    if pa.types.is_dictionary(type_):
        return category_type(type_.value_type)
    if is_text(type_) or pa.types.is_boolean(type_):
        return pa.string()
    if pa.types.is_integer(type_):
        return pa.uint64() if pa.types.is_uint64(type_) else pa.int64()
    if pa.types.is_floating(type_) or pa.types.is_decimal(type_):
        return pa.float64()
    return None


class Columns:
    """The columns of one batch, read as the types that a plan was fitted on, and room to work in."""

    def __init__(self, batch: pa.RecordBatch, schema: pa.Schema) -> None:
        self.rows = batch.num_rows
        self._batch, self._schema = batch, schema
        self._places = {name: place for place, name in enumerate(batch.schema.names)}
        missing = [name for name in schema.names if name not in self._places]
        if missing:
            raise _columns_missing(missing, batch.schema.names)

    @cached_property
    def space(self) -> np.ndarray:
        """Room for a block of float64."""
        return np.empty(BLOCK)

    @cached_property
    def flags(self) -> np.ndarray:
        """Room for a block of booleans."""
        return np.empty(BLOCK, bool)

    def numbers(self, source: Input) -> np.ndarray:
        """Read as numbers of any real dtype, shape (rows,); NaN where null. May be a view of the batch."""
        return as_numbers(self._read(source))

    def categories(self, source: Input, type_: pa.DataType) -> pa.Array:
        """Read as category values of `type_`, or as a dictionary array of them."""
        values = self._read(source)
        if source.part is None and pa.types.is_boolean(self._schema.field(source.column).type):
            values = _cast(values, pa.bool_(), source.column)
        return as_categories(values, type_, source.name)

    def column(self, name: str) -> pa.Array:
        """Read as the fitted type, numbers as they come; may be a dictionary array."""
        return self._read(Input(name))

    def _read(self, source: Input) -> pa.Array:
        values = self._batch.column(self._places[source.column])
        values = conform(values, self._schema.field(source.column).type, source.column)
        return values if source.part is None else date_part(values, source.part, source.timezone)


def conform(values: pa.Array, fitted: pa.DataType, column: str) -> pa.Array:
    """Read values as the fitted type if they are not it already.

    Numbers of any width stand for each other (the caller decides on the arithmetic), and a dictionary for its values.

    Raises
    ------
    DataError
        Values that do not cast without loss.
    """
    if values.type.equals(fitted):
        return values
    if pa.types.is_dictionary(fitted):
        fitted = fitted.value_type
        if pa.types.is_dictionary(values.type) and category_type(values.type.value_type) is not None:
            return values
    if pa.types.is_null(values.type):
        return pa.nulls(len(values), fitted)
    both_numbers = _is_plain_number(values.type) and _is_plain_number(fitted)
    if both_numbers or (is_text(values.type) and is_text(fitted)):
        return values
    if pa.types.is_dictionary(values.type):
        if is_text(fitted) and is_text(values.type.value_type):
            return values
        return conform(values.cast(values.type.value_type), fitted, column)
    return _cast(values, fitted, column)


def as_numbers(values: pa.Array) -> np.ndarray:
    """Turn numbers or booleans into a NumPy array of any real dtype, NaN where null; a view where there is none."""
    type_ = values.type
    if pa.types.is_boolean(type_):
        values = pc.cast(values, pa.uint8())
    elif pa.types.is_decimal(type_):
        values = pc.cast(values, pa.float64())
    elif pa.types.is_duration(type_):
        seconds = pc.cast(pc.cast(values, pa.int64()), pa.float64(), safe=False)
        values = pc.divide(seconds, float(_PER_SECOND[type_.unit]))
    if values.null_count == 0:
        return values.to_numpy()
    if pa.types.is_integer(values.type):
        values = pc.cast(values, pa.float64(), safe=False)
    return values.to_numpy(zero_copy_only=False)


def as_categories(values: pa.Array, type_: pa.DataType, name: str) -> pa.Array:
    """Turn values into those of a dictionary: of its type, missing ones null, and −0 as 0."""
    if pa.types.is_dictionary(values.type):
        held = as_categories(values.dictionary, type_, name)
        return pa.DictionaryArray.from_arrays(values.indices, held)
    if pa.types.is_floating(values.type):
        numbers = pc.add(pc.cast(values, pa.float64()), 0.0)
        values = pc.if_else(pc.is_finite(numbers), numbers, None)
    return values if values.type.equals(type_) else _cast(values, type_, name)


def category_codes(values: pa.Array, dictionary: pa.Array) -> tuple[np.ndarray, np.ndarray | None]:
    """Look category values up.

    Returns
    -------
    codes : ndarray of int32, shape (rows,)
        Place in the dictionary, −1 where it is not there or missing.
    missing : ndarray of bool, shape (rows,), or None
        Which are missing; None if none is.
    """
    if not pa.types.is_dictionary(values.type):
        codes = pc.index_in(values, dictionary)
        if codes.null_count == 0:
            return codes.to_numpy(), None
        return codes.fill_null(-1).to_numpy(zero_copy_only=False), missing_values(values)
    held = pc.index_in(values.dictionary, dictionary).fill_null(-1).to_numpy(zero_copy_only=False)
    codes = _take(held, values.indices, np.int32(-1))
    return codes, missing_values(values)


def missing_values(values: pa.Array) -> np.ndarray | None:
    """Mask of the nulls (bool, shape (rows,)); those of a dictionary too. None if there is none."""
    if not pa.types.is_dictionary(values.type):
        return values.is_null().to_numpy(zero_copy_only=False) if values.null_count else None
    if values.dictionary.null_count:
        return _take(values.dictionary.is_null().to_numpy(zero_copy_only=False), values.indices, np.True_)
    return values.indices.is_null().to_numpy(zero_copy_only=False) if values.indices.null_count else None


def _take(held: np.ndarray, indices: pa.Array, null: np.generic) -> np.ndarray:
    """Values of a dictionary by index, `null` where the index is null."""
    if indices.null_count == 0:
        return held[indices.to_numpy()]
    places = indices.fill_null(0).to_numpy(zero_copy_only=False)
    result = held[places] if len(held) else np.full(len(places), null)
    result[indices.is_null().to_numpy(zero_copy_only=False)] = null
    return result


def _is_plain_number(type_: pa.DataType) -> bool:
    whole = pa.types.is_integer(type_) or pa.types.is_boolean(type_)
    return whole or pa.types.is_floating(type_) or pa.types.is_decimal(type_)


def _cast(values: pa.Array, type_: pa.DataType, column: str) -> pa.Array:
    # A timestamp may lose precision that the fitted type never had; anything else must cast without loss.
    safe = not (pa.types.is_timestamp(values.type) and is_temporal(type_))
    cause: Exception | None = None
    if _may_cast(values.type, type_):
        try:
            return pc.cast(values, type_, safe=safe)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            cause = error
    raise DataError(
        "a feature has values that can't be read as the type it was fitted on", on=f"column {column}",
        expected=str(type_), found=str(values.type) + (f" ({cause})" if cause else ""),
        remedy="Give the column the type that training had",
    ) from cause  # fmt: skip


def _may_cast(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a cast means something: Arrow would also read integers as days and write floats as texts."""
    if is_temporal(wanted):
        return is_temporal(given) or is_text(given)
    return not is_temporal(given) and not (is_text(wanted) and pa.types.is_floating(given))


def _columns_missing(missing: list[str], there: list[str]) -> DataError:
    near = [str(NotFoundError.among("column", name, there).remedy) for name in missing[:1]]
    return DataError(
        f"{len(missing)} input {'column is' if len(missing) == 1 else 'columns are'} missing",
        on="features", expected=", ".join(missing), found=", ".join(there[:20]) + (", …" if len(there) > 20 else ""),
        remedy=near[0] if near else "",
    )  # fmt: skip
