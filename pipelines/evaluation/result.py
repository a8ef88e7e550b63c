"""What an evaluation found, as frozen values that go through JSON."""

from __future__ import annotations

from dataclasses import dataclass, field

from pipelines.evaluation.catalogue import Kind

Part = str
"""``train``, ``validation`` or ``test``."""

Scalar = str | int | float | bool | None
"""A segment's value; dates and other types stand as their text."""


@dataclass(frozen=True)
class Measures:
    """Metrics of some rows.

    A metric that these rows can't have (AUC of one class, anything of no rows) is None, with the reason in `undefined`.
    """

    rows: int
    weight: float
    """Sum of the sample weights; `rows` when there are none."""
    metrics: dict[str, float | None]
    undefined: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Segment:
    """The rows that share one value of a segment column; `small` ones have too few rows to be read closely."""

    value: Scalar
    small: bool
    measures: Measures


@dataclass(frozen=True)
class SegmentColumn:
    """All values of one segment column, most rows first.

    Where there are more values than the cap, the rest is counted in `left_out_values` and `left_out_rows`; a column
    with more values than can be counted has no segments, and `note` says so.
    """

    column: str
    segments: tuple[Segment, ...]
    left_out_values: int = 0
    left_out_rows: int = 0
    note: str = ""


@dataclass(frozen=True)
class CalibrationBin:
    """Rows whose probability lies in ``(low, high]``: what was predicted on average, and how often it came true.

    The lowest bin holds zero too.
    """

    low: float
    high: float
    rows: int
    weight: float
    predicted: float | None
    observed: float | None


@dataclass(frozen=True)
class Interval:
    """A 95 % interval of a metric if rows are independent; related rows (one day, one user) make it too narrow."""

    low: float
    high: float


@dataclass(frozen=True)
class PartEvaluation:
    """What was found on one part of the split.

    `baseline` holds the same metrics for the best constant prediction on the same rows, for orientation. `rows_digest`
    identifies the set of rows with their labels and weights: only evaluations of the same rows compare.
    """

    measures: Measures
    rows_digest: str
    unlabelled: int = 0
    """Rows left out because their label is null."""
    intervals: dict[str, Interval] = field(default_factory=dict)
    baseline: dict[str, float] = field(default_factory=dict)
    calibration: tuple[CalibrationBin, ...] = ()
    """Binary models only."""
    confusion: tuple[tuple[float, ...], ...] = ()
    """Weights by true class (row) and predicted class (column)."""
    segments: tuple[SegmentColumn, ...] = ()


@dataclass(frozen=True)
class Evaluation:
    """What a model is worth on held-out rows."""

    kind: Kind
    model_digest: str
    parts: dict[Part, PartEvaluation]
    classes: tuple[Scalar, ...] = ()
    threshold: float | None = None
    """Where a binary model says yes: ``probability >= threshold``."""
    schema: int = 1

    def value(self, metric: str, part: Part) -> float | None:
        """Look up a metric of a part; None when it was not measured or is undefined."""
        found = self.parts.get(part)
        return None if found is None else found.measures.metrics.get(metric)


@dataclass(frozen=True)
class GateResult:
    """One requirement of the spec against what was measured. An undefined metric never meets anything."""

    metric: str
    part: Part
    bound: str
    measured: float | None
    met: bool
    reason: str = ""

    def __str__(self) -> str:
        measured = "undefined" if self.measured is None else f"{self.measured:.6g}"
        verdict = "met" if self.met else "not met"
        return f"{self.metric} on {self.part} {self.bound}: {verdict}, measured {measured}" + (
            f" ({self.reason})" if self.reason else ""
        )


@dataclass(frozen=True)
class Comparison:
    """A candidate against a champion on the same rows; `improvement` is positive when the candidate is better.

    When they can't be compared, `better` is False and `refused` says why.
    """

    metric: str
    part: Part
    candidate: float | None
    champion: float | None
    improvement: float | None
    min_improvement: float
    better: bool
    refused: str = ""
