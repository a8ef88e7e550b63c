"""What can a spec say about its data? The key ``data:``."""

from __future__ import annotations

import re
from typing import Annotated, Literal

import pyarrow as pa
from pydantic import AfterValidator, Discriminator, Field, Tag

from pipelines.config import Config

OnDrift = Literal["widen", "strict"]
OnBadFile = Literal["fail", "skip"]

CATEGORY = "category"
"""The correction that makes a column categorical, whatever its type in the files."""


def arrow_type(name: str) -> pa.DataType:
    """Parse an Arrow type as users write it: ``float32``, ``timestamp[us, tz=UTC]``, ``decimal128(10, 2)``.

    Raises
    ------
    ValueError
        No such type.
    """
    text = name.strip()
    if zoned := re.fullmatch(r"timestamp\[(s|ms|us|ns),\s*(?:tz=)?([^\]]+)\]", text):
        return pa.timestamp(zoned[1], zoned[2].strip())
    try:
        if decimal := re.fullmatch(r"decimal(?:128)?\((\d+),\s*(\d+)\)", text):
            return pa.decimal128(int(decimal[1]), int(decimal[2]))
        if text != "null":
            return pa.type_for_alias(text)
    except ValueError:
        pass
    raise ValueError(
        f"there is no type {name!r}; write {CATEGORY!r} or an Arrow type like 'int64', 'float32', 'string', 'date32', "
        "'timestamp[us]', 'timestamp[us, tz=UTC]' or 'decimal128(10, 2)'"
    )


def _type_name(name: str) -> str:
    if name != CATEGORY:
        arrow_type(name)
    return name


class ColumnCorrection(Config):
    """What a column is, where its files disagree or do not know better.

    Attributes
    ----------
    type : str
        ``category``, or an Arrow type which values are cast to while they are read.
    """

    type: Annotated[str, AfterValidator(_type_name)]


class Versioned(Config):
    """A dataset with versions, as our own writer makes it: its newest committed version is read, or the one named."""

    versioned: str
    version: int | None = None


def _source_kind(source: object) -> str:
    """Choose one form of a source by its looks, so that a fault is told once and not once per form."""
    if isinstance(source, list | tuple):
        return "paths"
    return "dataset" if isinstance(source, dict | Versioned) else "path"


class DataConfig(Config):
    """Which data, and what to do where its files differ.

    Attributes
    ----------
    source : str, list of str or Versioned
        A folder, a file, a glob (``*``, ``?``, ``[…]`` within a folder, ``**`` across folders) or a URL; or several.
    columns : dict of str to ColumnCorrection
        Corrections by column.
    on_drift : {"widen", "strict"}
        Widen columns to one type and read missing ones as null, or refuse any difference between files.
    on_bad_file : {"fail", "skip"}
        Refuse unreadable files, all in one error, or leave them out and record them.
    filter : str, optional
        Only rows for which this expression is true.
    derive : dict of str to str
        New columns by name, each an expression.

    Notes
    -----
    Expressions are written as in Python and computed by Arrow: columns by name, numbers, texts, ``+ - * /``,
    comparisons (``1 < x <= 2`` too), ``and``, ``or``, ``not``, ``x in (1, 2)``, ``x is None``, and the functions abs,
    cast, ceil, coalesce, contains, cos, date, day, day_of_year, days_between, ends_with, exp, floor, greatest, hour,
    if_else, is_finite, is_nan, is_null, least, length, log, log1p, lower, matches, minute, month, round, second,
    seconds_between, sin, sqrt, starts_with, trim, upper, weekday and year. What is computed from a null is null.
    """

    source: Annotated[
        Annotated[str, Field(min_length=1), Tag("path")]
        | Annotated[list[str], Field(min_length=1), Tag("paths")]
        | Annotated[Versioned, Tag("dataset")],
        Discriminator(_source_kind),
    ]
    columns: dict[str, ColumnCorrection] = Field(default_factory=dict)
    on_drift: OnDrift = "widen"
    on_bad_file: OnBadFile = "fail"
    filter: str | None = None
    derive: dict[str, str] = Field(default_factory=dict)
