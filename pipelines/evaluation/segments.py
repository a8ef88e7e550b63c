"""Which segment does each row belong to?"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.errors import DataError
from pipelines.evaluation.result import Scalar
from pipelines.evaluation.sums import Codes


def encoded(column: pa.Array, name: str) -> pa.Array:
    """Dictionary-encode a segment column of a batch; null is a value.

    Raises
    ------
    DataError
        The column is nested.
    """
    if pa.types.is_nested(column.type):
        raise DataError(
            "a nested column can't be a segment", on=f"column {name}", found=str(column.type),
            remedy="Derive a plain column from it.",
        )  # fmt: skip
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    return pc.dictionary_encode(column, null_encoding="encode")


def coded(pieces: Sequence[pa.Array]) -> tuple[Codes, list[Scalar]]:
    """Bring encoded pieces of one column to common codes: each row's code, and the value of each code."""
    column = pa.chunked_array([piece.dictionary_decode() for piece in pieces])
    whole = pc.dictionary_encode(column, null_encoding="encode").combine_chunks()
    places: dict[Scalar, int] = {}  # values that look the same, as the two zeros, are one segment
    places_of = [places.setdefault(scalar(value), len(places)) for value in whole.dictionary.to_pylist()]
    return np.asarray(places_of, np.intp)[whole.indices.to_numpy(zero_copy_only=False)], list(places)


def scalar(value: object) -> Scalar:
    """Write a segment's value as JSON can: dates, decimals and the like as their text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)
