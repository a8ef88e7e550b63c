"""What does a fitted plan consist of? Steps: plain values that say how one input becomes some output columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pyarrow as pa
from pydantic import Discriminator, StrictBool, StrictFloat, StrictInt, StrictStr

FeatureType = Literal["q", "c"]
"""XGBoost's feature types: ``q`` a quantity, ``c`` the code of a category."""

Layout = Literal["one_hot", "ordinal", "native"]
"""How a category is written: a column for each; its code, −1 where it has none; its code, NaN where it has none."""

Dictionaries = Mapping[str, pa.Array]
"""Category values by key, each sorted and without nulls."""


@dataclass(frozen=True)
class Domain:
    """What an input column held in training: about which range of numbers, which categories, whether missing values.

    The range is two standard deviations to each side: a smallest or largest value might tell on one person.
    """

    low: float | None = None
    high: float | None = None
    values: tuple[StrictBool | StrictInt | StrictFloat | StrictStr, ...] = ()
    nulls: bool = False


@dataclass(frozen=True)
class Input:
    """What a step reads: a column, or a part of a column of dates or times."""

    column: str
    part: str | None = None
    timezone: str | None = None

    @property
    def name(self) -> str:
        """What its output columns are named after."""
        return self.column if self.part is None else f"{self.column}:{self.part}"


@dataclass(frozen=True)
class Number:
    """``(x - center) / scale``; `fill` (in units of x) where x is missing, NaN if there is none."""

    input: Input
    center: float = 0.0
    scale: float = 1.0
    fill: float | None = None
    kind: Literal["number"] = "number"


@dataclass(frozen=True)
class Cyclic:
    """Sine and cosine of a date part; `fill` (a value of the part) where missing, the circle's centre if `centre`."""

    input: Input
    fill: int | None = None
    centre: bool = False
    kind: Literal["cyclic"] = "cyclic"


@dataclass(frozen=True)
class Bins:
    """Number of the bin that holds x: ``edges[i - 1] <= x < edges[i]``; the outermost bins are open.

    `missing` is a last one-hot column for missing values.
    """

    input: Input
    edges: tuple[float, ...]
    layout: Layout
    fill: float | None = None
    missing: bool = False
    kind: Literal["bins"] = "bins"


@dataclass(frozen=True)
class Category:
    """Code of a value in a dictionary.

    Parameters
    ----------
    dictionary : str
        Key of the values.
    other : bool
        Whether values that are not in the dictionary share a category of their own, coded after the last.
    missing : bool
        Whether missing values have a last one-hot column.
    fill : int, optional
        Code of the value that stands for a missing one.
    """

    input: Input
    dictionary: str
    layout: Layout
    other: bool = False
    missing: bool = False
    fill: int | None = None
    kind: Literal["category"] = "category"


@dataclass(frozen=True)
class Hashed:
    """Bucket of a value under a fixed hash; `fill` is the bucket of a missing one."""

    input: Input
    buckets: int
    layout: Layout
    fill: int | None = None
    kind: Literal["hashed"] = "hashed"


@dataclass(frozen=True)
class Missing:
    """1 where the input is missing, else 0."""

    input: Input
    kind: Literal["missing"] = "missing"


@dataclass(frozen=True)
class Foreign:
    """A fitted scikit-learn or dask-ml transformer.

    Parameters
    ----------
    columns : tuple of str
        What it takes, together.
    path : str
        Its import path.
    params : dict
        JSON values it was made with.
    file : str
        Name of its skops file.
    trusted : tuple of str
        Types in that file that skops does not trust by itself, as recorded at the fit.
    names : tuple of str
        Output columns.
    density : float, optional
        Share of values that are not zero, on the sample, if it gives sparse matrices.
    fit : {"sample", "incremental"}
    rows : int
        Training rows that it was fitted on.
    seed : int
    """

    columns: tuple[str, ...]
    path: str
    params: dict[str, Any]
    file: str
    trusted: tuple[str, ...]
    names: tuple[str, ...]
    density: float | None
    fit: Literal["sample", "incremental"]
    rows: int
    seed: int
    kind: Literal["foreign"] = "foreign"


Step = Annotated[Number | Cyclic | Bins | Category | Hashed | Missing | Foreign, Discriminator("kind")]


def input_columns(step: Step) -> tuple[str, ...]:
    """Name the columns that a step reads."""
    return step.columns if isinstance(step, Foreign) else (step.input.column,)


def output_names(step: Step, dictionaries: Dictionaries) -> tuple[str, ...]:
    """Name a step's output columns."""
    match step:
        case Number():
            return (step.input.name,)
        case Cyclic():
            return (f"{step.input.name}_sin", f"{step.input.name}_cos")
        case Missing():
            return (f"{step.input.name}:missing",)
        case Foreign():
            return step.names
        case Bins() | Category() | Hashed() if step.layout != "one_hot":
            return (step.input.name if step.kind == "category" else f"{step.input.name}:{_CODE_NAMES[step.kind]}",)
        case _:
            return tuple(f"{step.input.name}{label}" for label in _labels(step, dictionaries))


def output_width(step: Step, dictionaries: Dictionaries) -> int:
    """Count a step's output columns."""
    if isinstance(step, Hashed) and step.layout == "one_hot":
        return step.buckets
    return len(output_names(step, dictionaries))


def output_type(step: Step) -> FeatureType:
    """Say what XGBoost should take a step's output columns for."""
    return "c" if isinstance(step, Bins | Category | Hashed) and step.layout == "native" else "q"


_CODE_NAMES = {"bins": "bin", "hashed": "hash"}


def _labels(step: Bins | Category | Hashed, dictionaries: Dictionaries) -> list[str]:
    """Column labels of a one-hot step, in the order of the codes."""
    match step:
        case Bins():
            labels = [f":bin={number}" for number in range(len(step.edges) + 1)]
        case Category():
            labels = [f"={value}" for value in dictionaries[step.dictionary].to_pylist()] + ["=(other)"] * step.other
        case Hashed():
            return [f"#{bucket}" for bucket in range(step.buckets)]
    return labels + [":bin=(missing)" if step.kind == "bins" else "=(missing)"] * step.missing


def unique_names(names: Sequence[str]) -> tuple[str, ...]:
    """Tell equal names apart by a suffix: the second ``x`` is ``x~2``."""
    taken: set[str] = set()
    result = []
    for name in names:
        choice, number = name, 1
        while choice in taken:
            number += 1
            choice = f"{name}~{number}"
        taken.add(choice)
        result.append(choice)
    return tuple(result)
