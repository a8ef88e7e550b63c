"""Do a dataset's columns fit what a model reads? All mismatches at once, before anything is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches

import pyarrow as pa

from pipelines.errors import DataError
from pipelines.features.columns import conform, is_text


def check_signature(
    schema: pa.Schema, expected: pa.Schema, *, on: str, model: str, derive: Mapping[str, str] | None = None
) -> None:
    """Compare the columns there are with those that a model was fitted on.

    Numbers of any width stand for each other, text of any layout too, and an all-null column for anything; what the
    model could only read by guessing (text as numbers) is a mismatch.

    Parameters
    ----------
    schema : Schema
        The columns there are, derived ones too.
    expected : Schema
        What the model reads.
    on, model : str
        The dataset and the model, for messages.
    derive : mapping of str to str, optional
        How training derived columns, for messages.

    Raises
    ------
    DataError
        With every column that is missing or of another kind, and the nearest names.
    """
    faults = [fault for field in expected if (fault := _fault(schema, field, derive or {}))]
    if faults:
        count = "1 column does" if len(faults) == 1 else f"{len(faults)} columns do"
        raise DataError(
            f"{count} not fit what {model} reads:\n  " + "\n  ".join(faults),
            on=on,
            remedy="Correct the types under `data.columns`, or derive the columns.",
        )


def _fault(schema: pa.Schema, expected: pa.Field, derive: Mapping[str, str]) -> str:
    name = expected.name
    if name not in schema.names and name in derive:
        return f"{name}: missing, and what it is derived from too ({derive[name]})"
    if name not in schema.names:
        near = get_close_matches(name, schema.names, n=1)
        return f"{name}: missing (expected {expected.type})" + (f"; is it {near[0]!r}?" if near else "")
    found = schema.field(name).type
    return "" if _fits(found, expected.type, name) else f"{name}: expected {expected.type}, found {found}"


def _fits(found: pa.DataType, expected: pa.DataType, name: str) -> bool:
    plain = [type_.value_type if pa.types.is_dictionary(type_) else type_ for type_ in (found, expected)]
    if is_text(plain[0]) and not is_text(plain[1]):
        return False
    try:
        conform(pa.array([], found), expected, name)
    except DataError:
        return False
    return True


def unique_columns(*names: Sequence[str]) -> tuple[str, ...]:
    """Join lists of columns, each name once, in order."""
    return tuple(dict.fromkeys(name for each in names for name in each))
