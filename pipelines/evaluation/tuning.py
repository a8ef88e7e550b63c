"""Choose on the validation part what turns scores into decisions: a calibration curve and a threshold."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pipelines.data.mapping import MapProgress
from pipelines.errors import DataError, SpecError
from pipelines.evaluation.calibrating import Fitted, fit_isotonic, fit_sigmoid, log_loss_of
from pipelines.evaluation.config import EvaluateConfig, ThresholdRule, check_metrics, parse_threshold
from pipelines.evaluation.evaluate import score
from pipelines.evaluation.external import ordered_streams
from pipelines.evaluation.groups import Groups
from pipelines.evaluation.measure import Tally, class_weights
from pipelines.evaluation.request import EvaluationData, ModelRef, ScoringJob
from pipelines.evaluation.result import Part
from pipelines.evaluation.scoring import check_target
from pipelines.evaluation.scratch import scratch_folder
from pipelines.evaluation.spill import Run
from pipelines.evaluation.sums import as_float
from pipelines.evaluation.terms import Question
from pipelines.evaluation.thresholds import Decided, choose_threshold
from pipelines.model import Model, load_model
from pipelines.model.calibration import Calibrator, IsotonicCurve, SigmoidCurve
from pipelines.storage import Location

if TYPE_CHECKING:
    from collections.abc import Callable

    from distributed import Client


@dataclass(frozen=True)
class CalibrationRecord:
    """How a calibration was fitted; `exact` is False where neighbouring scores had to be put together.

    The log losses are those of each class against the rest, averaged over the curves, on the rows it was fitted on.
    """

    method: str
    groups: int
    exact: bool
    log_loss_before: float
    log_loss_after: float


@dataclass(frozen=True)
class ThresholdRecord:
    """How a threshold was chosen, and what it gives on the rows that it was chosen on (nothing if it was given)."""

    rule: str
    threshold: float
    precision: float | None = None
    recall: float | None = None
    f1: float | None = None
    accuracy: float | None = None


@dataclass(frozen=True)
class Tuning:
    """What was chosen on validation, to be put on the model and into the record of the run. Goes through JSON."""

    part: Part
    rows: int = 0
    """Rows that were read for it; 0 where there was nothing to choose."""
    calibrator: Calibrator | None = None
    calibration: CalibrationRecord | None = None
    threshold: ThresholdRecord | None = None

    def apply(self, model: Model) -> Model:
        """Put the calibrator and the threshold on a model."""
        tuned = model if self.calibrator is None else model.with_calibration(self.calibrator)
        return tuned if self.threshold is None else tuned.with_threshold(self.threshold.threshold)


def tune(
    model: ModelRef,
    data: EvaluationData,
    config: EvaluateConfig,
    *,
    client: Client | None,
    scratch_url: str,
    part: Part = "validation",
    on_done: Callable[[MapProgress], None] | None = None,
    deadline_s: float = 600.0,
) -> Tuning:
    """Fit `config.calibrate` and choose `config.threshold` in one pass over `part`; see `evaluate` for the rest.

    The threshold is chosen on calibrated scores. Nothing is read where there is nothing to fit or choose.

    Raises
    ------
    DataError
        The part has no rows, or rows of one class only.
    GateNotMetError
        No threshold keeps the floor that the config asks for.
    """
    if faults := check_metrics(config, data.target.kind):
        raise SpecError(faults)
    rule = None if config.threshold is None else parse_threshold(config.threshold)
    given = None if rule is None or rule.objective != "fixed" else ThresholdRecord("fixed", float(rule.number or 0))
    if config.calibrate == "none" and (rule is None or given):
        return Tuning(part, threshold=given)
    bundle = load_model(model.url, model.prefix, model.digest)
    check_target(bundle, data.target)
    question = Question(data.target.kind, len(data.target.classes))
    job = ScoringJob(model, data.source, data.split, data.target, data.sample_weight, (part,), question)
    with scratch_folder(scratch_url) as folder:
        scores, runs = score(
            replace(job, spill_url=folder.url), data, client=client, on_done=on_done, deadline_s=deadline_s
        )
        state = scores[part].state
        weights = _class_weights(Tally(question.kind, data.target.classes, state.rows, state.sums), part)
        ordered = _Ordered(folder, runs, weights)
        fitted = ordered.fit(config.calibrate)
        calibrator = Calibrator(tuple(each.curve for each in fitted)) if fitted else None
        chosen = given if rule is None or given else ordered.choose(rule, str(config.threshold), fitted, part)
        record = ordered.record(config.calibrate, fitted) if fitted else None
    return Tuning(part, state.rows, calibrator, record, chosen)


def _class_weights(tally: Tally, part: Part) -> list[float]:
    weights = [as_float(weight) for weight in class_weights(tally)] if tally.rows else []
    if sum(weight > 0 for weight in weights) < 2:
        raise DataError(
            "calibration and threshold need labelled rows of two classes at least",
            on=part,
            found=f"{tally.rows} rows" + (f" of {sum(w > 0 for w in weights)} class" if tally.rows else ""),
            remedy="Enlarge split.validation, or split with kind: stratified.",
        )
    return weights


class _Ordered:
    """The ordered scores of a part, which may be read several times; one stream for each score column."""

    def __init__(self, folder: Location, runs: Sequence[Run], weights: Sequence[float]) -> None:
        self._folder, self._runs, self._weights = folder, runs, weights

    def fit(self, method: str) -> list[Fitted]:
        """Fit a curve to each score column, the class of it against the rest."""
        if method == "none":
            return []
        return [
            fit_isotonic(groups) if method == "isotonic" else self._sigmoid(column, groups)
            for column, groups in self._streams()
        ]

    def choose(self, rule: ThresholdRule, text: str, fitted: Sequence[Fitted], part: Part) -> ThresholdRecord:
        """Choose the threshold of a binary model, on calibrated scores."""
        negative, positive = self._weights
        curve = fitted[0].curve if fitted else None
        where = f"evaluate.threshold on {part}"
        (found,) = [  # a binary model has one stream
            choose_threshold(rule, _calibrated(groups, curve), positive=positive, negative=negative, on=where)
            for _, groups in self._streams()
        ]
        return _threshold_record(text, found, positive, negative)

    def record(self, method: str, fitted: Sequence[Fitted]) -> CalibrationRecord:
        """Measure what the calibration brings on the rows that it was fitted on."""
        before, after = [], []
        for (_, groups), each in zip(self._streams(), fitted, strict=True):
            losses = [(log_loss_of(chunk), log_loss_of(_apply(each.curve, chunk))) for chunk in groups]
            before.append(math.fsum(loss for loss, _ in losses) / sum(self._weights))
            after.append(math.fsum(loss for _, loss in losses) / sum(self._weights))
        return CalibrationRecord(
            method=method,
            groups=max(each.groups for each in fitted),
            exact=all(each.exact for each in fitted),
            log_loss_before=math.fsum(before) / len(before),
            log_loss_after=math.fsum(after) / len(after),
        )

    def _streams(self) -> Iterator[tuple[int, Iterator[Groups]]]:
        for stream, groups in ordered_streams(self._folder, self._runs):
            yield stream.output, groups

    def _sigmoid(self, column: int, groups: Iterable[Groups]) -> Fitted:
        positive = self._weights[1 if len(self._weights) == 2 else column]
        records = sum(each.records for run in self._runs for each in run.sections if each.stream.output == column)
        return fit_sigmoid(groups, positive=positive, negative=sum(self._weights) - positive, records=records)


def _calibrated(stream: Iterable[Groups], curve: SigmoidCurve | IsotonicCurve | None) -> Iterator[Groups]:
    for groups in stream:
        yield groups if curve is None else _apply(curve, groups)


def _apply(curve: SigmoidCurve | IsotonicCurve, groups: Groups) -> Groups:
    return replace(groups, scores=curve.apply(groups.scores))


def _threshold_record(rule: str, found: Decided, positive: float, negative: float) -> ThresholdRecord:
    said = found.hits + found.false_alarms
    return ThresholdRecord(
        rule=rule,
        threshold=found.threshold,
        precision=found.hits / said,
        recall=found.hits / positive,
        f1=2 * found.hits / (said + positive),
        accuracy=(found.hits + negative - found.false_alarms) / (positive + negative),
    )
