"""What do the names of folders say about the rows in them? Typed Hive partition columns.

A folder ``month=3`` gives all rows below it the value 3 of a column ``month``. A column is integer (int64) when all
its values are, date (date32) when all are like 2013-01-31, else string; a correction names another type. Keys and
values are URL-decoded; ``__HIVE_DEFAULT_PARTITION__`` is null.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from urllib.parse import unquote

import pyarrow as pa

from pipelines.data.config import CATEGORY, ColumnCorrection, arrow_type
from pipelines.errors import DataError

Values = tuple[tuple[str, str | None], ...]
"""Partition columns of one file with the texts that stand for their values; None is null."""

NULL = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True, eq=False)
class Partitions:
    """Partition columns of a dataset: their fields, and one struct of values per file."""

    fields: tuple[pa.Field, ...]
    values: pa.StructArray

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns, in the order of the folders."""
        return tuple(field.name for field in self.fields)


def path_values(path: str) -> Values:
    """Read the ``key=value`` folders of a file's path.

    >>> path_values("day=2013-01-31/carrier=A%2FB/part-0.parquet")
    (('day', '2013-01-31'), ('carrier', 'A/B'))
    """
    return folder_values(path.rpartition("/")[0])


def folder_values(folder: str) -> Values:
    """Read the ``key=value`` parts of a folder's path."""
    pairs = (part.partition("=") for part in folder.split("/") if "=" in part)
    return tuple((unquote(key), None if value == NULL else unquote(value)) for key, _, value in pairs)


def type_partitions(
    paths: Sequence[str],
    values: Sequence[Values],
    *,
    corrections: Mapping[str, ColumnCorrection] | None = None,
    declared: Mapping[str, pa.DataType] | None = None,
    on: str = "",
) -> Partitions:
    """Give partition columns their types, and check that all files have the same ones.

    Parameters
    ----------
    paths, values : sequences of the same length
        Files and what `path_values` (or a table's log) says of each.
    corrections : mapping, optional
        A named type replaces the one that would be found; ``category`` does not matter here.
    declared : mapping of column to type, optional
        What a table's log declares.
    on : str
        The dataset, for errors.

    Raises
    ------
    DataError
        Files with different partition columns, a folder given twice on one path, a value that is not of its type.
    """
    keys = _common_keys(paths, values, on)
    texts = {key: [dict(each)[key] for each in values] for key in keys}
    types = dict(declared or {})
    types |= {name: arrow_type(c.type) for name, c in (corrections or {}).items() if c.type != CATEGORY}
    arrays = [_typed(key, texts[key], types.get(key), paths, on) for key in keys]
    fields = tuple(pa.field(key, array.type) for key, array in zip(keys, arrays, strict=True))
    if not fields:
        return Partitions((), pa.array([{}] * len(paths), pa.struct([])))
    return Partitions(fields, pa.StructArray.from_arrays(arrays, fields=list(fields)))


def _common_keys(paths: Sequence[str], values: Sequence[Values], on: str) -> tuple[str, ...]:
    keys: tuple[str, ...] | None = None
    checked: set[tuple[str, ...]] = set()
    for path, each in zip(paths, values, strict=True):
        found = tuple(key for key, _ in each)
        if found in checked:
            continue
        if len(set(found)) < len(found):
            raise DataError("a partition column is given twice on one path", on=f"{on}/{path}", found="/".join(found))
        if keys is None:
            keys = found
        elif set(found) != set(keys):
            raise DataError(
                "files have different partition columns",
                on=on,
                expected=f"{_keys(keys)} as in {paths[0]}",
                found=f"{_keys(found)} in {path}",
                remedy="Open each layout as a dataset of its own, or move the files into folders of one layout.",
            )
        checked.add(found)
    return keys or ()


def _keys(keys: Sequence[str]) -> str:
    return "/".join(f"{key}=…" for key in keys) or "none"


def _typed(key: str, texts: list[str | None], wanted: pa.DataType | None, paths: Sequence[str], on: str) -> pa.Array:
    distinct = sorted({text for text in texts if text is not None})
    target = wanted or _infer(distinct)
    try:
        return pa.array(texts, pa.string()).cast(target)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        bad = next(text for text in distinct if not _fits(text, target))
        raise DataError(
            f"a folder's value is not of the type of its partition column {key!r}",
            on=f"{on}/{paths[texts.index(bad)]}",
            expected=str(target),
            found=repr(bad),
            remedy=f"Correct the type, as in columns: {{{key}: {{type: string}}}}.",
        ) from None


def _fits(text: str, target: pa.DataType) -> bool:
    try:
        pa.array([text]).cast(target)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return False
    return True


def _infer(texts: Iterable[str]) -> pa.DataType:
    texts = list(texts)
    if texts and all(re.fullmatch(r"-?\d{1,18}", text, re.ASCII) for text in texts):
        return pa.int64()
    return pa.date32() if texts and all(map(_is_date, texts)) else pa.string()


def _is_date(text: str) -> bool:
    if not re.fullmatch(r"\d{4}-\d{2}-\d{2}", text, re.ASCII):
        return False
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True
