"""What may a spec say about features (`features:`), and which combinations make sense?"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, StrictBool, StrictFloat, StrictInt, StrictStr, field_validator, model_validator

from pipelines.config import Config

Scalar = StrictBool | StrictInt | StrictFloat | StrictStr
"""A value as YAML and JSON write it, kept as it is: ``true`` stays a bool, ``1`` an int."""

DatePart = Literal[
    "year", "quarter", "month", "week", "day", "dayofyear", "weekday", "hour", "minute", "second", "epoch",
    "quarter_cyclic", "month_cyclic", "week_cyclic", "day_cyclic", "dayofyear_cyclic", "weekday_cyclic", "hour_cyclic",
    "minute_cyclic", "second_cyclic",
]  # fmt: skip
"""A number read off a date or time: ``weekday`` counts from Monday = 0, ``epoch`` is seconds since 1970. A ``_cyclic``
part becomes two columns, its sine and cosine over the period, so that December lies beside January."""


class Constant(Config):
    """`impute: {constant: VALUE}`: the value, in the column's own units, that stands for a missing one."""

    constant: Scalar


class FeatureConfig(Config):
    """One item of `features:`: some columns and what is done to each of them. A bare name or list means `columns`.

    With only `columns`, each column gets what suits its type and the estimator. Linear models (`one_hot`): numbers
    are standardised and mean-imputed, booleans imputed with the most frequent value, strings and categories one-hot
    encoded, dates become year and cyclic parts. Trees (`native`): numbers, booleans and their missing values pass
    through, strings and categories become native categories, dates become their plain parts.

    A missing value is a null, a NaN or (`infinities: missing`, and always at prediction) an infinity.

    Parameters
    ----------
    columns : list of str
        Columns of the dataset, partition columns and `derive:` included.
    scale : {"standard", "minmax", "robust", "none"}, optional
        ``(x - mean) / std``; ``(x - min) / (max - min)``; ``(x - median) / (q75 - q25)``. Statistics are taken over the
        values that are there, before imputation. A constant column becomes 0.
    impute : {"mean", "median", "most_frequent", "none"} or {"constant": value}, optional
        What stands for a missing value; ``none`` leaves NaN in numbers, which linear models refuse.
    missing_indicator : bool
        Add one column that is 1 where the value was missing.
    encode : {"auto", "one_hot", "ordinal", "native", "hash"}, optional
        Make the column categorical. ``auto``: as the estimator likes it, and hashed beyond 262,144 distinct values.
        ``ordinal``: codes in the order of the values, −1 where missing or unknown. ``native``: XGBoost's categories,
        NaN where missing or unknown. ``one_hot``: zeros where unknown; missing has a column of its own if training had
        any.
    max_categories : int
        Keep this many categories, the most frequent ones (of equally frequent ones the smaller value); all others,
        unknown ones too, share the category ``(other)``.
    min_frequency : int or float
        Categories seen in fewer training rows (an int) or in a smaller share of them (a float) join ``(other)``.
    buckets : int
        Number of buckets for ``encode: hash``.
    bins : int
        Cut numbers into this many bins; ``encode`` says how the bin is written (default ``ordinal`` for trees,
        ``one_hot`` for linear models).
    bin_by : {"quantile", "uniform"}
        Bins of equally many rows, or of equal width.
    dates : list of DatePart
        Parts taken from date, time and timestamp columns; `scale`, `impute`, `bins` and `encode` then apply to each.
    timezone : str, optional
        Zone whose wall clock `dates` reads; default: the column's own zone, UTC if it has none.
    infinities : {"fail", "missing"}
        Whether an infinity in any split fails the fit, or counts as missing.
    transform : str, optional
        Import path of a scikit-learn or dask-ml transformer that takes all `columns` together; marks the plan
        ``python-only``.
    params : dict
        Arguments of the transformer.
    fit : {"sample", "incremental"}
        Fit the transformer on a sample of training rows, or with `partial_fit` in one more pass over them all.
    sample_rows : int
        Largest sample for `fit: sample`; the rows are chosen by `seed` and the size is recorded.
    seed : int
        Seed of the sample and, where the transformer has one, its `random_state`.
    """

    columns: Annotated[tuple[str, ...], Field(min_length=1)]
    scale: Literal["standard", "minmax", "robust", "none"] | None = None
    impute: Literal["mean", "median", "most_frequent", "none"] | Constant | None = None
    missing_indicator: bool = False
    encode: Literal["auto", "one_hot", "ordinal", "native", "hash"] | None = None
    max_categories: Annotated[int, Field(ge=1, le=262_144)] = 1000
    min_frequency: Annotated[StrictInt, Field(ge=1)] | Annotated[StrictFloat, Field(gt=0, lt=1)] = 1
    buckets: Annotated[int, Field(ge=2, le=2**24)] = 4096
    bins: Annotated[int, Field(ge=2, le=65_536)] | None = None
    bin_by: Literal["quantile", "uniform"] = "quantile"
    dates: Annotated[tuple[DatePart, ...], Field(min_length=1)] | None = None
    timezone: str | None = None
    infinities: Literal["fail", "missing"] = "fail"
    transform: str | None = None
    params: dict[str, Any] = Field(default_factory=dict)
    fit: Literal["sample", "incremental"] = "sample"
    sample_rows: Annotated[int, Field(ge=1, le=10_000_000)] = 100_000
    seed: int = 0

    @model_validator(mode="before")
    @classmethod
    def _accept_bare_columns(cls, value: object) -> object:
        if isinstance(value, str | list | tuple):
            return {"columns": value}
        return value

    @field_validator("columns", mode="before")
    @classmethod
    def _accept_one_column(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else value

    @field_validator("columns", "dates")
    @classmethod
    def _each_once(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        twice = sorted({name for name in value or () if (value or ()).count(name) > 1})
        if twice:
            raise ValueError(f"{', '.join(twice)} named twice; name each once")
        return value

    @model_validator(mode="after")
    def _refuse_impossible(self) -> FeatureConfig:
        faults = list(_impossible(self))
        if faults:
            raise ValueError("; ".join(faults))
        return self


def _given(feature: FeatureConfig) -> set[str]:
    """Fields that are not as they are by default: a config that was written out whole reads back as it was."""
    plain = FeatureConfig.model_construct(columns=feature.columns)
    return {name for name in FeatureConfig.model_fields if getattr(feature, name) != getattr(plain, name)} | {"columns"}


def _impossible(feature: FeatureConfig) -> Iterator[str]:
    given = _given(feature)
    if feature.transform is not None:
        own = {"columns", "transform", "params", "fit", "sample_rows", "seed", "infinities"}
        if extra := sorted(given - own):
            yield f"transform does everything itself, so {', '.join(extra)} can't be used with it; remove one"
        if "." not in feature.transform.replace(":", "."):
            yield f"transform {feature.transform!r} is not an import path like package.module.Class"
        return
    if extra := sorted(given & {"params", "fit", "sample_rows", "seed"}):
        yield f"{', '.join(extra)} belong to a transform; name one with transform, or remove them"
    yield from _impossible_encoding(feature)
    if feature.dates is None and feature.timezone is not None:
        yield "timezone says how dates are read; list the parts you want in dates, or remove it"
    if feature.bins is None and "bin_by" in given:
        yield "bin_by says how bins are cut; give their number with bins, or remove it"
    if isinstance(feature.impute, Constant):
        value = feature.impute.constant
        if isinstance(value, float) and not math.isfinite(value):
            yield "an imputed constant must be a finite number; use impute: none to leave values missing"


def _impossible_encoding(feature: FeatureConfig) -> Iterator[str]:
    given, encode = _given(feature), feature.encode
    scaled = feature.scale not in (None, "none")
    cyclic = [part for part in feature.dates or () if part.endswith("_cyclic")]
    if encode is not None and scaled:
        yield f"encode: {encode} makes categories, which can't be scaled; remove scale or encode"
    if feature.bins is not None and scaled:
        yield f"bins replaces the value, so scale: {feature.scale} has no effect; remove scale or bins"
    if feature.bins is not None and encode == "hash":
        yield "bins are few and known, hashing them loses information; use encode: ordinal, one_hot or native"
    if cyclic and (encode is not None or feature.bins is not None):
        yield f"{', '.join(cyclic)} are sines and cosines, not categories; list the plain parts"
    if "buckets" in given and encode not in ("hash", "auto"):
        yield "buckets are for encode: hash; set it, or remove buckets"
    if encode == "hash" and (extra := sorted(given & {"max_categories", "min_frequency"})):
        yield f"encode: hash keeps no dictionary, so {', '.join(extra)} has no effect; remove it or use encode: one_hot"
    if encode in ("auto", "one_hot", "ordinal", "native", "hash") and feature.bins is None:
        if feature.impute in ("mean", "median"):
            yield f"categories have no {feature.impute}; use impute: most_frequent or {{constant: VALUE}}"
        if encode == "hash" and feature.impute == "most_frequent":
            yield "encode: hash keeps no counts, so there is no most frequent value; use impute: {constant: VALUE}"
