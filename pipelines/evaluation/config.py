"""What a spec says under `evaluate:`, and whether it fits the label."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from pipelines.config import Config
from pipelines.errors import Fault, NotFoundError
from pipelines.evaluation.catalogue import Kind, metric, names_for

_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"


@dataclass(frozen=True)
class Bound:
    """A limit that a metric must keep."""

    relation: str
    limit: float

    def met_by(self, value: float | None) -> bool:
        """Whether a value keeps the limit; None and NaN never do."""
        if value is None or math.isnan(value):
            return False
        return {
            ">=": value >= self.limit,
            "<=": value <= self.limit,
            ">": value > self.limit,
            "<": value < self.limit,
        }[self.relation]

    def __str__(self) -> str:
        return f"{self.relation} {self.limit!r}"


@dataclass(frozen=True)
class ThresholdRule:
    """How a binary model's threshold is found on validation: a fixed number, the best of a score, or a floor.

    `floor` rules ("precision>=0.9") take the most recall that keeps the precision, or the most precision that keeps the
    recall.
    """

    objective: str
    """``fixed``, ``f1``, ``youden``, ``accuracy``, ``precision`` or ``recall``."""
    number: float | None = None
    """The fixed threshold, or the floor."""


def parse_bound(text: object) -> Bound:
    """Read ``">= 0.75"``.

    Raises
    ------
    ValueError
        It is not a relation (``>=``, ``<=``, ``>``, ``<``) followed by a finite number.
    """
    found = re.fullmatch(rf"\s*(>=|<=|>|<)\s*({_NUMBER})\s*", text) if isinstance(text, str) else None
    if found is None or not math.isfinite(float(found[2])):
        raise ValueError(f"not a requirement: {text!r}; write a relation and a number, like '>= 0.75'")
    return Bound(found[1], float(found[2]))


def parse_threshold(value: float | str) -> ThresholdRule:
    """Read ``0.3``, ``"f1"``, ``"youden"``, ``"accuracy"``, ``"precision>=0.9"`` or ``"recall>=0.8"``.

    Raises
    ------
    ValueError
        It is none of these.
    """
    if isinstance(value, str) and value.strip() in ("f1", "youden", "accuracy"):
        return ThresholdRule(value.strip())
    floor = re.fullmatch(rf"\s*(precision|recall)\s*>=\s*({_NUMBER})\s*", value) if isinstance(value, str) else None
    if floor and 0 < float(floor[2]) <= 1:
        return ThresholdRule(floor[1], float(floor[2]))
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1:
        return ThresholdRule("fixed", float(value))
    raise ValueError(
        f"not a threshold: {value!r}; write a number between 0 and 1, or f1, youden, accuracy, "
        "'precision>=0.9' or 'recall>=0.8'"
    )


def _metric_name(name: str) -> str:
    return metric(name).name


def _bound_text(text: object) -> str:
    return str(parse_bound(text))


def _threshold(value: object) -> object:
    if value is not None and not isinstance(value, bool):
        parse_threshold(value if isinstance(value, int | float) else str(value))
    elif isinstance(value, bool):
        raise ValueError(f"not a threshold: {value!r}; write a number between 0 and 1, or f1")
    return value


MetricName = Annotated[str, AfterValidator(_metric_name)]
"""The name of a metric in the catalogue."""

BoundText = Annotated[str, BeforeValidator(_bound_text)]
"""A requirement as text, in one spelling."""

HeldOut = Literal["validation", "test"]


def _requirement(value: object) -> object:
    if isinstance(value, dict):
        return value
    return {"test": value}


class EvaluateConfig(Config):
    """The part of a spec that says what a model is measured by, and what it must reach to be published.

    ``require: {auc: ">= 0.75"}`` reads the test part; ``require: {auc: {validation: ">= 0.75"}}`` names another.
    """

    metrics: tuple[MetricName, ...] = ()
    """Empty: what is usual for the kind of label. Classifiers: auc, log_loss, brier, accuracy, balanced_accuracy,
    precision, recall, f1, and for binary labels average_precision and ece; regression: rmse, mse, mae, r2, pinball,
    poisson_deviance, gamma_deviance, tweedie_deviance (pinball(0.9) and tweedie_deviance(1.3) say which)."""
    segments: tuple[str, ...] = ()
    """Columns; every metric is also measured for each of their values."""
    require: dict[MetricName, Annotated[dict[HeldOut, BoundText], BeforeValidator(_requirement)]] = Field(
        default_factory=dict
    )
    calibrate: Literal["none", "sigmoid", "isotonic"] = "none"
    """Fit a curve on validation that turns a classifier's scores into probabilities that come true as often."""
    threshold: Annotated[float | str | None, BeforeValidator(_threshold)] = None
    """Where a binary model says yes: a number, or how it is chosen on validation. Default 0.5."""
    max_segments: int = Field(default=100, ge=1, le=1000)
    """At most so many values of a segment column are kept, those with most rows; the rest is counted."""
    min_segment_rows: int = Field(default=100, ge=1)
    """Segments with fewer rows are marked as small."""

    def required_metrics(self) -> tuple[str, ...]:
        """Name the metrics that have requirements."""
        return tuple(self.require)


def check_metrics(config: EvaluateConfig, kind: Kind, *, path: str = "evaluate") -> list[Fault]:
    """Find what in a config does not fit a label of `kind`; to be called as soon as the kind is known."""
    named = [(f"{path}.metrics[{i}]", name) for i, name in enumerate(config.metrics)]
    named += [(f"{path}.require.{name}", name) for name in config.require]
    faults = [
        Fault(where, f"{name} is not for a {kind} label", f"Use some of {', '.join(names_for(kind))}.")
        for where, name in named
        if kind not in metric(name).kinds
    ]
    if kind != "binary" and config.threshold is not None:
        faults.append(Fault(f"{path}.threshold", f"a {kind} model has no threshold", "Leave it out."))
    if kind == "regression" and config.calibrate != "none":
        faults.append(Fault(f"{path}.calibrate", "only classifiers are calibrated", "Leave it out."))
    return faults


def check_segments(config: EvaluateConfig, columns: Sequence[str], *, path: str = "evaluate") -> list[Fault]:
    """Find segment columns that the data do not have, or that stand twice."""
    faults = []
    for i, name in enumerate(config.segments):
        where = f"{path}.segments[{i}]"
        if name not in columns:
            error = NotFoundError.among("column", name, columns)
            faults.append(Fault(where, error.what, error.remedy))
        elif name in config.segments[:i]:
            faults.append(Fault(where, f"the column {name!r} stands there twice", "Leave one out."))
    return faults
