"""Which one schema fits all files?

Columns are matched by name. Nullability never differs, a null column has its sibling's type, other types widen (see
`widening`), a column that some files lack is null there. What can't be bridged is one error that lists all of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.types as pt

from pipelines.data.config import CATEGORY, ColumnCorrection, OnDrift, arrow_type
from pipelines.data.widening import castable, widen
from pipelines.errors import DataError, NotFoundError


@dataclass(frozen=True)
class Found:
    """What some of the files say of a column: its type there (empty: the column is missing), how many, one of them."""

    type: str
    files: int
    example: str

    def __str__(self) -> str:
        more = f" and {self.files - 1} more" if self.files > 1 else ""
        return f"{self.type or 'missing'} in {self.example}{more}"


@dataclass(frozen=True)
class Drift:
    """A difference between files that was bridged.

    Attributes
    ----------
    column : str
    kind : {"missing", "type"}
        Missing in some files (null there), or of several types (widened, or cast to the type of the correction).
    type : str
        The unified type.
    found : tuple of Found
        What the files say, each type once.
    """

    column: str
    kind: str
    type: str
    found: tuple[Found, ...]

    def __str__(self) -> str:
        return f"{self.column}: {_listing(self.found)}"


@dataclass(frozen=True, eq=False)
class FileSchema:
    """A schema that some files share: how many, and one of them."""

    schema: pa.Schema
    files: int
    example: str


@dataclass(frozen=True, eq=False)
class Unified:
    """The schema that fits all files, and what was bridged to get it."""

    schema: pa.Schema
    drift: tuple[Drift, ...]


def unify(
    found: Iterable[FileSchema],
    *,
    partitions: Sequence[pa.Field] = (),
    corrections: Mapping[str, ColumnCorrection] | None = None,
    on_drift: OnDrift = "widen",
    on: str = "",
) -> Unified:
    """Find the schema that fits all files; the order in which files are given does not matter.

    Columns stand in the order of the first file by path, those that it lacks after them; partition columns last.

    Parameters
    ----------
    found : iterable of FileSchema
    partitions : sequence of pa.Field
        Typed partition columns; they stand for columns of the same name in the files.
    corrections : mapping of column to ColumnCorrection, optional
    on_drift : {"widen", "strict"}
    on : str
        The dataset, for errors.

    Raises
    ------
    DataError
        Types that can't be reconciled (exit code 4), each with a file; or, when strict, all drift.
    NotFoundError
        A correction of a column that does not exist.
    """
    corrections = corrections or {}
    ordered = sorted(found, key=lambda each: each.example)
    names = {each.name for each in partitions}
    columns = {name: each for name, each in _by_column(ordered).items() if name not in names}
    for name in corrections:
        if name not in columns and name not in names:
            raise NotFoundError.among("column", name, [*columns, *names], on=f"{on}: columns.{name}")
    types = {name: _type(each, corrections.get(name)) for name, each in columns.items()}
    _refuse_irreconcilable([columns[name] for name, chosen in types.items() if chosen is None], corrections, on)
    fields = [pa.field(name, chosen) for name, chosen in types.items()]
    fields += [pa.field(each.name, _corrected(each.type, corrections.get(each.name))) for each in partitions]
    total = sum(each.files for each in ordered)
    drift = tuple(d for name, each in columns.items() for d in each.drift(types[name], total, ordered))
    if on_drift == "strict":
        _refuse_drift([d for d in drift if d.kind == "missing" or d.column not in corrections], on)
    return Unified(pa.schema(fields), drift)


@dataclass(eq=False)
class _Column:
    """All types of one column: by their text, with the number of files and the first of them."""

    name: str
    types: dict[str, pa.DataType] = field(default_factory=dict)
    files: dict[str, int] = field(default_factory=dict)
    examples: dict[str, str] = field(default_factory=dict)

    def add(self, found: pa.DataType, files: int, example: str) -> None:
        text = str(found)
        self.types.setdefault(text, found)
        self.files[text] = self.files.get(text, 0) + files
        self.examples.setdefault(text, example)

    @property
    def found(self) -> tuple[Found, ...]:
        """What the files say; null types agree with everything and are not listed."""
        return tuple(
            Found(text, self.files[text], self.examples[text]) for text, t in self.types.items() if t != pa.null()
        )

    def drift(self, chosen: pa.DataType, total: int, ordered: Sequence[FileSchema]) -> list[Drift]:
        drift = []
        if len(self.found) > 1 and len({str(widen([t])) for t in self.types.values() if t != pa.null()}) > 1:
            drift.append(Drift(self.name, "type", str(chosen), self.found))
        if missing := total - sum(self.files.values()):
            example = next(each.example for each in ordered if self.name not in each.schema.names)
            drift.append(Drift(self.name, "missing", str(chosen), (*self.found, Found("", missing, example))))
        return drift


def _by_column(ordered: Sequence[FileSchema]) -> dict[str, _Column]:
    columns: dict[str, _Column] = {}
    for each in ordered:
        for found in each.schema:
            if found.name not in columns:
                columns[found.name] = _Column(found.name)
            columns[found.name].add(found.type, each.files, each.example)
    return columns


def _type(column: _Column, correction: ColumnCorrection | None) -> pa.DataType | None:
    types = list(column.types.values())
    if correction is None:
        return widen(types)
    if correction.type == CATEGORY:
        plain = [t.value_type if pt.is_dictionary(t) else t for t in types]
        value = widen(plain) or (pa.string() if all(castable(t, pa.string()) for t in plain) else None)
        return None if value is None else pa.dictionary(pa.int32(), value)
    chosen = arrow_type(correction.type)
    return chosen if all(castable(t, chosen) for t in types) else None


def _corrected(plain: pa.DataType, correction: ColumnCorrection | None) -> pa.DataType:
    """Type of a partition column: `partitions` has applied a named type already, a category is made of it here."""
    return pa.dictionary(pa.int32(), plain) if correction is not None and correction.type == CATEGORY else plain


def _refuse_irreconcilable(columns: Sequence[_Column], corrections: Mapping[str, ColumnCorrection], on: str) -> None:
    if not columns:
        return
    lines = []
    for column in columns:
        wanted = f" (to be read as {corrections[column.name].type})" if column.name in corrections else ""
        lines.append(f"\n  {column.name}{wanted}: {_listing(column.found)}")
    count = "1 column has types" if len(columns) == 1 else f"{len(columns)} columns have types"
    example = f"columns: {{{columns[0].name}: {{type: …}}}}"
    raise DataError(
        f"{count} that can't be reconciled{''.join(lines)}",
        on=on,
        remedy=f"\n  Write the files again with one type, or say which it is: {example}",
    )


def _refuse_drift(drift: Sequence[Drift], on: str) -> None:
    if not drift:
        return
    lines = "".join(f"\n  {each}" for each in drift)
    raise DataError(
        f"files differ in {len({each.column for each in drift})} column(s), and on_drift is strict{lines}",
        on=on,
        remedy="\n  Write the files again alike, correct a type under `columns:`, or set on_drift: widen",
    )


def _listing(found: Sequence[Found]) -> str:
    return "; ".join(map(str, found))
