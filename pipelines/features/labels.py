"""What did the pass see of the label, and which target follows from it?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import pyarrow as pa

from pipelines.errors import DataError, Fault, NotFoundError
from pipelines.features.columns import as_categories, as_numbers, category_type, is_number
from pipelines.features.counts import Counter, Counts
from pipelines.features.moments import NOTHING, Moments, measure, steady
from pipelines.features.target import Class, Kind, LabelConfig, LabelType, Target

FEW_INTEGERS = 20
"""An integer label with no more distinct values than this is taken for classes, if the spec does not say."""


@dataclass(frozen=True, eq=False)
class LabelSummary:
    """One split part's labels.

    Parameters
    ----------
    counts : Counts
        Distinct values up to `LabelConfig.max_classes`, of `category_type`.
    moments : Moments, optional
        Of numbers.
    rows : int
        Rows with a label.
    missing : int
        Rows without one.
    missing_in, infinite_in : str
        The first file with one.
    others : tuple of LabelSummary
        Of further labels; rows and missing ones are counted here.
    """

    counts: Counts
    moments: Moments | None
    rows: int
    missing: int
    missing_in: str
    infinite_in: str
    others: tuple[LabelSummary, ...] = ()


class LabelScanner:
    """Collects one part's label summary."""

    def __init__(self, label: LabelConfig, type_: pa.DataType, others: Sequence[pa.DataType] = ()) -> None:
        self._others = [LabelScanner(label, other) for other in others]
        self._kept = category_type(type_) or pa.string()
        self._counter = Counter(self._kept, label.max_classes)
        self._moments = NOTHING if is_number(type_) else None
        self._rows = self._missing = 0
        self._missing_in = self._infinite_in = ""

    def update(self, labels: pa.Array, missing: int, path: str, others: Sequence[pa.Array] = ()) -> None:
        """Take in one file's labels, without the missing ones, and how many were missing."""
        for scanner, further in zip(self._others, others, strict=True):
            scanner.update(further, 0, path)
        self._rows += len(labels)
        self._missing += missing
        self._missing_in = self._missing_in or (path if missing else "")
        self._counter.update(as_categories(labels, self._kept, "label"))
        if self._moments is not None and len(labels):
            found = measure(as_numbers(labels))
            self._moments = self._moments.merge(found)
            self._infinite_in = self._infinite_in or (path if found.infinite else "")

    def merge(self, other: LabelSummary) -> None:
        """Take over a later shard's summary."""
        for scanner, summary in zip(self._others, other.others, strict=True):
            scanner.merge(summary)
        self._rows += other.rows
        self._missing += other.missing
        self._missing_in = self._missing_in or other.missing_in
        self._infinite_in = self._infinite_in or other.infinite_in
        self._counter.merge(other.counts)
        if self._moments is not None and other.moments is not None:
            self._moments = self._moments.merge(other.moments)

    def result(self) -> LabelSummary:
        """Give what was seen so far."""
        return LabelSummary(
            self._counter.result(), self._moments, self._rows, self._missing, self._missing_in, self._infinite_in,
            tuple(scanner.result() for scanner in self._others),
        )  # fmt: skip


def label_faults(label: LabelConfig, schema: pa.Schema) -> list[Fault]:
    """Say what is wrong with a label before its values are read."""
    return [fault for column in label.columns for fault in _faults_of(label, column, schema)]


def _faults_of(label: LabelConfig, column: str, schema: pa.Schema) -> list[Fault]:
    place = schema.get_field_index(column)
    if place < 0:
        error = NotFoundError.among("column", column, schema.names)
        return [Fault("label.column", error.what, error.remedy)]
    type_ = schema.field(place).type
    if pa.types.is_duration(type_) or category_type(type_) is None:
        message = f"a label of type {type_} can't be learned"
        return [Fault("label.column", message, "Derive a number, a boolean or a string from it, and name that")]
    if label.kind == "regression" and not is_number(type_) and not pa.types.is_boolean(type_):
        message = f"kind: regression needs numbers, but {column} is {type_}"
        return [Fault("label.kind", message, "Use kind: multiclass or binary, or derive a number from it")]
    return []


def target_of(label: LabelConfig, type_: pa.DataType, parts: Mapping[str, LabelSummary]) -> Target:
    """Settle the target from the training split, and check that the other splits fit it.

    Raises
    ------
    DataError
        See `LabelConfig`.
    """
    target = _one_target(label, type_, parts)
    others = []
    for i, column in enumerate(label.others):
        further = label.model_copy(update={"column": column, "others": ()})
        seen = {part: summary.others[i] for part, summary in parts.items()}
        _refuse_infinite(further, seen)
        others.append(_regression(further, seen))
    return replace(target, others=tuple(others))


def _one_target(label: LabelConfig, type_: pa.DataType, parts: Mapping[str, LabelSummary]) -> Target:
    _refuse_missing(label, parts)
    _refuse_infinite(label, parts)
    train = parts["train"]
    if train.rows == 0:
        raise _error(label, "no row of the training split has a label", remedy="Look at filter, split and the label")
    kind = label.kind if label.kind != "auto" else _guess(type_, train.counts)
    if kind == "regression":
        return _regression(label, parts)
    return _classes(label, kind, type_, parts)


def _guess(type_: pa.DataType, counts: Counts) -> Kind:
    kept = category_type(type_)
    if len(counts.values) == 2 or pa.types.is_boolean(type_):
        return "binary"
    if kept == pa.string() or pa.types.is_dictionary(type_):
        return "multiclass"
    few = pa.types.is_integer(kept) and not counts.overflow and len(counts.values) <= FEW_INTEGERS
    return "multiclass" if few else "regression"


def _refuse_infinite(label: LabelConfig, parts: Mapping[str, LabelSummary]) -> None:
    for part, summary in parts.items():
        if summary.moments is not None and summary.moments.infinite:
            raise _error(
                label, f"{summary.moments.infinite} labels of the {part} split are infinite",
                found=f"the first in {summary.infinite_in}", remedy="Leave such rows out with filter",
            )  # fmt: skip


def _regression(label: LabelConfig, parts: Mapping[str, LabelSummary]) -> Target:
    moments = parts["train"].moments or NOTHING
    largest = float(np.finfo(np.float32).max)
    for part, summary in parts.items():
        held = summary.moments
        if held is not None and held.count and max(abs(held.low), abs(held.high)) > largest:
            raise _error(
                label, f"labels of the {part} split do not fit float32", expected=f"numbers up to {largest:.3g}",
                found=f"{held.low:g} … {held.high:g}", remedy="Rescale the label with derive",
            )  # fmt: skip
    if moments.constant:
        raise _constant(label, moments.low)
    mean, std = steady(moments)
    return Target(label.column, "regression", "double", (), (), label.on_null, mean, std, moments.low)


def _classes(label: LabelConfig, kind: Kind, type_: pa.DataType, parts: Mapping[str, LabelSummary]) -> Target:
    counts = parts["train"].counts
    if counts.overflow or len(counts.values) > label.max_classes:
        raise _error(
            label, "too many distinct values for classes", expected=f"at most {label.max_classes}",
            found=f"{label.max_classes + 1} or more in the training split",
            remedy="Use kind: regression for numbers, group rare classes with derive, or raise max_classes",
        )  # fmt: skip
    classes = _as_classes(counts.values, type_)
    if len(classes) == 1:
        raise _constant(label, classes[0])
    if kind == "binary" and len(classes) != 2:
        raise _error(
            label, "the label is not binary", expected="two distinct values",
            found=f"{len(classes)} in the training split: {_some(classes)}",
            remedy="Use kind: multiclass, or derive a condition from it",
        )  # fmt: skip
    _refuse_unseen(label, classes, type_, parts)
    pairs = list(zip(classes, (int(count) for count in counts.counts), strict=True))
    if label.positive is not None:
        pairs = _positive_last(label, pairs)
    name = cast(LabelType, {bool: "bool", int: "int64", float: "double", str: "string"}[type(classes[0])])
    kept = tuple(value for value, _ in pairs)
    return Target(label.column, kind, name, kept, tuple(count for _, count in pairs), label.on_null)


def _positive_last(label: LabelConfig, pairs: list[tuple[Class, int]]) -> list[tuple[Class, int]]:
    classes = [value for value, _ in pairs]
    if len(pairs) != 2 or label.positive not in classes:
        raise _error(
            label, f"positive: {label.positive!r} is not one of two classes", found=_some(classes),
            remedy="Name one of the two values, or remove positive",
        )  # fmt: skip
    return sorted(pairs, key=lambda pair: pair[0] == label.positive)


def _as_classes(values: pa.Array, type_: pa.DataType) -> list[Class]:
    plain: list[Any] = values.to_pylist()
    return [value == "true" for value in plain] if pa.types.is_boolean(type_) else plain


def _refuse_missing(label: LabelConfig, parts: Mapping[str, LabelSummary]) -> None:
    missing = sum(summary.missing for summary in parts.values())
    if missing and label.on_null == "fail":
        first = next(summary.missing_in for summary in parts.values() if summary.missing)
        rows = missing + sum(summary.rows for summary in parts.values())
        raise _error(
            label, f"{missing} of {rows} labels are missing (null or NaN)", found=f"the first in {first}",
            remedy="Set label.on_null: drop to leave such rows out, or filter them",
        )  # fmt: skip


def _refuse_unseen(
    label: LabelConfig, classes: Sequence[Class], type_: pa.DataType, parts: Mapping[str, LabelSummary]
) -> None:
    for part, summary in parts.items():
        unseen = [value for value in _as_classes(summary.counts.values, type_) if value not in classes]
        if unseen or summary.counts.overflow:
            raise _error(
                label, f"the {part} split has classes that the training split does not have",
                expected=_some(classes), found=_some(unseen) if unseen else f"more than {label.max_classes}",
                remedy="Split with kind: stratified, or leave their rows out with filter",
            )  # fmt: skip


def _constant(label: LabelConfig, value: object) -> DataError:
    return _error(
        label, "the label is constant, so there is nothing to learn", expected="at least two distinct values",
        found=f"{value!r} in every row of the training split", remedy="Look at label.column, filter and split",
    )  # fmt: skip


def _some(values: Sequence[object], limit: int = 8) -> str:
    return ", ".join(repr(value) for value in values[:limit]) + (", …" if len(values) > limit else "")


def _error(label: LabelConfig, what: str, *, expected: str = "", found: str = "", remedy: str = "") -> DataError:
    return DataError(what, on=f"label column {label.column}", expected=expected, found=found, remedy=remedy)
