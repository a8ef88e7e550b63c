"""What is to be done to which column? The spec's features, settled by types and by what the estimator likes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, cast
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.errors import Fault, NotFoundError
from pipelines.features.columns import category_type, is_text
from pipelines.features.config import Constant, FeatureConfig, Scalar
from pipelines.features.dates import CYCLES, is_temporal, parts_of
from pipelines.features.steps import Input, Layout

Categorical = Literal["one_hot", "native"]
"""What an estimator wants of categories and missing values: see `FeatureConfig`."""

Role = Literal["number", "cyclic", "bins", "category", "hashed", "missing"]


@dataclass(frozen=True)
class Draft:
    """A step before its statistics are known.

    Parameters
    ----------
    item : int
        Place in the spec's `features`.
    feature : FeatureConfig
    input : Input
    type : DataType
        Of the input's values.
    role : Role
    scale, impute : str or Constant
        Settled, ``none`` for none.
    layout : Layout
        Of bins, categories and hashed values.
    """

    item: int
    feature: FeatureConfig
    input: Input
    type: pa.DataType
    role: Role
    scale: str = "none"
    impute: str | Constant = "none"
    layout: Layout = "ordinal"


@dataclass(frozen=True)
class ForeignDraft:
    """A foreign transformer before it is fitted."""

    item: int
    feature: FeatureConfig


AnyDraft = Draft | ForeignDraft


def resolve(
    features: Sequence[FeatureConfig], schema: pa.Schema, labels: Sequence[str], categorical: Categorical
) -> tuple[tuple[AnyDraft, ...], list[Fault]]:
    """Settle features.

    Parameters
    ----------
    features : sequence of FeatureConfig
    schema : Schema
        Of the columns that can be asked for.
    labels : sequence of str
        The labels' columns, which are refused as features.
    categorical : {"one_hot", "native"}

    Returns
    -------
    drafts : tuple of Draft or ForeignDraft
        In the order of the output columns.
    faults : list of Fault
        All that keeps the features from being used; then the drafts are not complete.
    """
    if not features:
        return (), [Fault("features", "there are none", "List the columns to learn from")]
    drafts: list[AnyDraft] = []
    faults: list[Fault] = []
    for item, feature in enumerate(features):
        path = f"features[{item}]"
        known = []
        for name in feature.columns:
            fault = _column_fault(name, schema, labels, f"{path}.columns")
            if fault is None:
                known.append(name)
            else:
                faults.append(fault)
        if feature.transform is not None:
            faults += _foreign_faults(feature, known, schema, path)
            drafts.append(ForeignDraft(item, feature))
            continue
        for name in known:
            found = list(_faults(feature, name, schema.field(name).type, path))
            faults += found
            if not found:
                drafts += _drafts(item, feature, name, schema.field(name).type, categorical)
    return tuple(drafts), faults


def _column_fault(name: str, schema: pa.Schema, labels: Sequence[str], path: str) -> Fault | None:
    """What keeps a column from being any feature."""
    place = schema.get_field_index(name)
    if place < 0:
        error = NotFoundError.among("column", name, schema.names)
        return Fault(path, error.what, error.remedy)
    if name in labels:
        return Fault(path, f"{name} is the label", "Remove it: a model must not see what it predicts")
    type_ = schema.field(place).type
    fix = _unusable(type_)
    return Fault(path, f"{name} is of type {type_}, which can't be a feature", fix) if fix else None


def _unusable(type_: pa.DataType) -> str:
    """How to mend a column of a type that can't be a feature; empty if it can."""
    if pa.types.is_nested(type_):
        return "It is nested: derive plain columns from it"
    if pa.types.is_null(type_):
        return "It is null in every file: remove it"
    kept = type_.value_type if pa.types.is_dictionary(type_) else type_
    if is_temporal(type_) or pa.types.is_duration(type_) or category_type(kept) is not None:
        return ""
    return "Derive a number, a string or a date from it"


def _faults(feature: FeatureConfig, name: str, type_: pa.DataType, path: str) -> Iterator[Fault]:
    """What a column's type forbids."""
    if is_temporal(type_):
        yield from _date_faults(feature, name, type_, path)
        return
    if feature.dates is not None:
        yield Fault(f"{path}.dates", f"{name} is of type {type_} and has no dates", "Cast it with derive, or remove it")
        return
    categorical = is_text(type_) or pa.types.is_dictionary(type_)
    if categorical:
        wrong = [f"scale: {feature.scale}"] * (feature.scale not in (None, "none"))
        wrong += [f"bins: {feature.bins}"] * (feature.bins is not None)
        wrong += [f"impute: {feature.impute}"] * (feature.impute in ("mean", "median"))
        if wrong:
            fix = "Encode it, or cast it to a number with derive"
            yield Fault(path, f"{name} is a category ({type_}), so {', '.join(wrong)} makes no sense", fix)
    if feature.encode is not None and feature.bins is None and category_type(type_) is None:
        yield Fault(f"{path}.encode", f"{name} is of type {type_} and can't be encoded", "Remove encode")
    if feature.impute == "most_frequent" and category_type(type_) is None:
        yield Fault(f"{path}.impute", f"values of {name} ({type_}) are not counted", "Use impute: median")
    if isinstance(feature.impute, Constant):
        encoded = categorical or (feature.encode is not None and feature.bins is None)
        yield from _constant_faults(feature.impute.constant, name, type_, encoded, path)


def _constant_faults(value: Scalar, name: str, type_: pa.DataType, encoded: bool, path: str) -> Iterator[Fault]:
    if (encoded and as_category(value, type_) is None) or (not encoded and isinstance(value, str)):
        message = f"{value!r} is not a value of {name} ({type_})"
        yield Fault(f"{path}.impute.constant", message, "Give a value of the column's type")


def as_category(value: Scalar, type_: pa.DataType) -> pa.Scalar | None:
    """Turn an imputed constant into a category of a column's type; None if it is none."""
    kept = category_type(type_)
    if pa.types.is_boolean(type_):
        return pa.scalar(str(value).lower(), kept) if isinstance(value, bool) else None
    if isinstance(value, bool) or (isinstance(value, str) != (kept == pa.string())):
        return None
    try:
        return pc.cast(pa.scalar(value), kept)
    except pa.ArrowInvalid:
        return None


def _date_faults(feature: FeatureConfig, name: str, type_: pa.DataType, path: str) -> Iterator[Fault]:
    if feature.dates is None and (feature.encode is not None or feature.bins is not None):
        what = "encode" if feature.encode is not None else "bins"
        yield Fault(f"{path}.{what}", f"{name} is of type {type_}", "Say with dates which of its parts are meant")
    there = parts_of(type_)
    absent = [part for part in feature.dates or () if part.removesuffix("_cyclic") not in there]
    if absent:
        fix = f"It has {', '.join(there)}"
        yield Fault(f"{path}.dates", f"{name} is of type {type_} and has no {', '.join(absent)}", fix)
    if feature.timezone is not None:
        if not pa.types.is_timestamp(type_):
            yield Fault(f"{path}.timezone", f"{name} is of type {type_}, which no zone changes", "Remove timezone")
        try:
            ZoneInfo(feature.timezone)
        except (ZoneInfoNotFoundError, ValueError):
            fix = "Write it like Europe/Lisbon"
            yield Fault(f"{path}.timezone", f"{feature.timezone!r} is not a known time zone", fix)
    if isinstance(feature.impute, Constant):
        yield from _date_constant_faults(feature, feature.impute.constant, name, path)


def _date_constant_faults(feature: FeatureConfig, value: Scalar, name: str, path: str) -> Iterator[Fault]:
    parts = [part.removesuffix("_cyclic") for part in feature.dates or () if part.endswith("_cyclic")]
    outside = [part for part in parts if not (type(value) is int and 0 <= value - CYCLES[part][1] < CYCLES[part][0])]
    if outside or isinstance(value, str):
        message = f"{value!r} is not a {' or '.join(outside) or 'part'} of {name}"
        yield Fault(f"{path}.impute.constant", message, "Give the number that its parts shall have")
    if feature.dates is None:
        fix = "Say with dates which parts are meant"
        yield Fault(f"{path}.impute.constant", f"{name} has several parts, which no one constant fits", fix)


def _foreign_faults(feature: FeatureConfig, known: Sequence[str], schema: pa.Schema, path: str) -> Iterator[Fault]:
    for name in known:
        type_ = schema.field(name).type
        if is_temporal(type_):
            fix = "Derive its parts, and name those"
            yield Fault(f"{path}.columns", f"{name} is of type {type_}, which a transformer does not take", fix)


def _drafts(item: int, feature: FeatureConfig, name: str, type_: pa.DataType, categorical: Categorical) -> list[Draft]:
    if is_temporal(type_):
        parts = feature.dates or _default_parts(type_, categorical)
        drafts = [_date_draft(item, feature, name, part, categorical) for part in parts]
    elif _is_categorical(feature, type_):
        drafts = [_category_draft(item, feature, Input(name), type_, categorical)]
    else:
        drafts = [_number_draft(item, feature, Input(name), type_, categorical)]
    if feature.missing_indicator:
        drafts.append(Draft(item, feature, Input(name), type_, "missing"))
    return drafts


def _is_categorical(feature: FeatureConfig, type_: pa.DataType) -> bool:
    encoded = feature.encode is not None and feature.bins is None
    return encoded or is_text(type_) or pa.types.is_dictionary(type_)


def _default_parts(type_: pa.DataType, categorical: Categorical) -> tuple[str, ...]:
    clock = ("hour",) if not pa.types.is_date(type_) else ()
    if pa.types.is_time(type_):
        return ("hour", "minute") if categorical == "native" else ("hour_cyclic",)
    if categorical == "native":
        return ("year", "month", "day", "weekday", *clock)
    return ("year", "month_cyclic", "weekday_cyclic", *(f"{part}_cyclic" for part in clock))


def _date_draft(item: int, feature: FeatureConfig, name: str, part: str, categorical: Categorical) -> Draft:
    plain = part.removesuffix("_cyclic")
    source = Input(name, plain, feature.timezone)
    type_ = pa.float64() if plain == "epoch" else pa.int64()
    if part != plain:
        impute = feature.impute or ("mean" if categorical == "one_hot" else "none")
        return Draft(item, feature, source, type_, "cyclic", impute=impute)
    if feature.encode is not None and feature.bins is None:
        return _category_draft(item, feature, source, type_, categorical)
    return _number_draft(item, feature, source, type_, categorical)


def _category_draft(
    item: int, feature: FeatureConfig, source: Input, type_: pa.DataType, categorical: Categorical
) -> Draft:
    liked: Layout = "one_hot" if categorical == "one_hot" else "native"
    layout = liked if feature.encode in (None, "auto", "hash") else cast(Layout, feature.encode)
    role: Role = "hashed" if feature.encode == "hash" else "category"
    return Draft(item, feature, source, type_, role, impute=feature.impute or "none", layout=layout)


def _number_draft(
    item: int, feature: FeatureConfig, source: Input, type_: pa.DataType, categorical: Categorical
) -> Draft:
    linear, boolean = categorical == "one_hot", pa.types.is_boolean(type_)
    if feature.bins is not None:
        liked: Layout = "one_hot" if linear else "ordinal"
        layout = liked if feature.encode in (None, "auto") else cast(Layout, feature.encode)
        return Draft(item, feature, source, type_, "bins", impute=feature.impute or "none", layout=layout)
    scale = feature.scale or ("standard" if linear and not boolean else "none")
    impute = feature.impute or (("most_frequent" if boolean else "mean") if linear else "none")
    return Draft(item, feature, source, type_, "number", scale=scale, impute=impute)


def value_type(draft: Draft) -> pa.DataType:
    """Type in which a draft's distinct values are counted."""
    kept = category_type(draft.type)
    assert kept is not None, "resolve refuses types that can't be categories"
    return kept
