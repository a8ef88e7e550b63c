"""Evaluate a model on the held-out parts of a dataset, in one pass over it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from pipelines.codec import digest
from pipelines.data.mapping import MapProgress, map_shards
from pipelines.errors import SpecError
from pipelines.evaluation.baseline import baseline
from pipelines.evaluation.catalogue import USUAL, metric
from pipelines.evaluation.config import EvaluateConfig, check_metrics
from pipelines.evaluation.deviance import powers_of
from pipelines.evaluation.external import ordered_streams
from pipelines.evaluation.measure import (
    MAX_RANKED_CLASSES,
    Tally,
    calibration_curve,
    confusion,
    intervals,
    measure,
    terms_for,
)
from pipelines.evaluation.ranks import Ranks, rank
from pipelines.evaluation.request import EvaluationData, ModelRef, ScoringJob
from pipelines.evaluation.result import Evaluation, Measures, Part, PartEvaluation, Scalar, Segment, SegmentColumn
from pipelines.evaluation.scoring import PartScores, check_target, score_shard
from pipelines.evaluation.scratch import scratch_folder
from pipelines.evaluation.several import each_label, mean_of, measure_each
from pipelines.evaluation.spill import Run, Stream
from pipelines.evaluation.state import MAX_VALUES, SegmentState
from pipelines.evaluation.terms import Question
from pipelines.model import load_model
from pipelines.storage import Location

if TYPE_CHECKING:
    from distributed import Client


def evaluate(
    model: ModelRef,
    data: EvaluationData,
    config: EvaluateConfig,
    *,
    client: Client | None,
    scratch_url: str,
    parts: Sequence[Part] = ("validation", "test"),
    also: Sequence[str] = (),
    on_done: Callable[[MapProgress], None] | None = None,
    deadline_s: float = 600.0,
) -> Evaluation:
    """Score all rows of `parts` on the workers and measure the model.

    Results do not depend on the number of workers. What tasks spill for the exact ranking metrics lies in a folder of
    its own under `scratch_url` and is removed whatever happens; leftovers of killed evaluations there go first.
    No process holds more than 256 MiB for the metrics, whatever the rows.

    Parameters
    ----------
    model : ModelRef
        A saved model; each worker loads it once.
    data : EvaluationData
    config : EvaluateConfig
    client : distributed.Client or None
        None evaluates in this process.
    scratch_url : str
        A folder that all workers and this process reach; one evaluation at a time uses it.
    parts : sequence of str
        Parts of the split.
    also : sequence of str
        Metrics to measure beside those of the config (the one that decides about a promotion).
    on_done : callable, optional
        Called after every shard.
    deadline_s : float
        Longest wait without any shard being done.

    Raises
    ------
    SpecError
        The config does not fit the kind of label.
    DataError
        The model gives no score for some rows (NaN), a label or weight can't be used.
    UsageError
        The model's classes are not those of `data.target`.
    UserCodeError, DeadlineError, StorageError
        See `map_shards`.
    """
    if faults := check_metrics(config, data.target.kind):
        raise SpecError(faults)
    names = _names(config, data, also)
    bundle = load_model(model.url, model.prefix, model.digest)
    check_target(bundle, data.target)
    question = Question(
        kind=data.target.kind,
        classes=len(data.target.classes),
        threshold=0.5 if bundle.threshold is None else bundle.threshold,
        constant=data.target.mean or 0.0,
        further=tuple(each.mean or 0.0 for each in data.target.others),
        segment_terms=terms_for(names),
        deviances=powers_of(names),
    )
    job = ScoringJob(
        model, data.source, data.split, data.target, data.sample_weight, tuple(parts), question, config.segments
    )
    ranked = any(metric(name).need == "ranks" for name in names) and question.classes <= MAX_RANKED_CLASSES
    with scratch_folder(scratch_url) if ranked else nullcontext() as folder:
        job = replace(job, spill_url=None if folder is None else folder.url)
        scores, runs = score(job, data, client=client, on_done=on_done, deadline_s=deadline_s)
        kept = {part: {c: _kept(found, config) for c, found in scores[part].state.segments.items()} for part in parts}
        ranks = {} if folder is None else _ranks(folder, runs, _wanted(kept))
    report = _Report(data, config, names, scores, kept, ranks, bundle.probabilistic)
    return Evaluation(
        kind=question.kind,
        model_digest=model.digest,
        parts={part: report.part(part) for part in parts},
        classes=tuple(data.target.classes),
        threshold=question.threshold if question.kind == "binary" else None,
    )


def score(
    job: ScoringJob,
    data: EvaluationData,
    *,
    client: Client | None,
    on_done: Callable[[MapProgress], None] | None,
    deadline_s: float,
) -> tuple[dict[Part, PartScores], list[Run]]:
    """Score all shards, and merge what the tasks found in the order of the shards."""
    merged = {part: PartScores() for part in job.parts}
    runs: list[Run] = []
    streams: dict[Stream, Stream] = {}
    tasks = map_shards(client, score_shard, data.shards.shards, job, deadline_s=deadline_s, on_done=on_done)
    with closing(tasks):  # cancels what is left when this is left early, before the scratch folder goes
        for _, found in tasks:
            for part, scores in found.parts.items():
                merged[part].merge(scores)
            runs.extend(_with_common(streams, run) for run in found.runs)
    return merged, runs


def _with_common(streams: dict[Stream, Stream], run: Run) -> Run:
    # One object for each stream, however many runs have it: there are shards × segments sections.
    return Run(run.path, tuple(replace(s, stream=streams.setdefault(s.stream, s.stream)) for s in run.sections))


def _names(config: EvaluateConfig, data: EvaluationData, also: Iterable[str]) -> tuple[str, ...]:
    chosen = [*(config.metrics or USUAL[data.target.kind]), *config.required_metrics()]
    return tuple(dict.fromkeys([*chosen, *(metric(name).name for name in also)]))


# --- segments and ranks ----------------------------------------------------------------------------------------------

_Kept = dict[str, list[Scalar]]
"""By segment column the values that are reported, most rows first."""


def _kept(found: SegmentState, config: EvaluateConfig) -> list[Scalar]:
    values = found.values or {}
    ranked = sorted(values, key=lambda value: (-values[value][0], Stream("", "", value).order()))
    return ranked[: config.max_segments]


def _wanted(kept: dict[Part, _Kept]) -> set[tuple[Part, str, Scalar]]:
    segments = {
        (part, column, value)
        for part, columns in kept.items()
        for column, values in columns.items()
        for value in values
    }  # fmt: skip
    return segments | {(part, "", None) for part in kept}


_Ranked = dict[tuple[Part, str, Scalar], list[Ranks]]


def _ranks(folder: Location, runs: Sequence[Run], wanted: set[tuple[Part, str, Scalar]]) -> _Ranked:
    """Rank every wanted stream; the outputs of a model of several classes are ranked one after the other."""
    asked = [Run(run.path, tuple(each for each in run.sections if each.stream[:3] in wanted)) for run in runs]
    found: _Ranked = {}
    for stream, groups in ordered_streams(folder, asked):
        found.setdefault(stream[:3], []).append(rank(groups))
    return found


# --- putting the result together -------------------------------------------------------------------------------------


class _Report:
    """Turn what was found into the values of an `Evaluation`."""

    def __init__(
        self,
        data: EvaluationData,
        config: EvaluateConfig,
        names: Sequence[str],
        scores: dict[Part, PartScores],
        kept: dict[Part, _Kept],
        ranks: _Ranked,
        probabilistic: bool,
    ) -> None:
        self._data, self._config, self._names = data, config, names
        self._scores, self._kept, self._ranks, self._probabilistic = scores, kept, ranks, probabilistic

    def part(self, part: Part) -> PartEvaluation:
        """Report on a part of the split."""
        scores = self._scores[part]
        tally = self._tally(part, "", None, scores.state.rows, scores.state.sums)
        return PartEvaluation(
            measures=self._measure(tally),
            rows_digest=digest(f"{scores.state.rows}:{scores.identity[0]:016x}{scores.identity[1]:016x}".encode()),
            unlabelled=scores.unlabelled,
            intervals={} if tally.labels else intervals(tally, self._names),
            baseline=self._baseline(tally),
            calibration=calibration_curve(tally),
            confusion=confusion(tally),
            segments=tuple(self._column(part, column) for column in self._config.segments),
        )

    def _column(self, part: Part, column: str) -> SegmentColumn:
        found = self._scores[part].state.segments.get(column, SegmentState())
        if found.values is None:
            return SegmentColumn(column, (), note=f"not broken down: more than {MAX_VALUES} values")
        kept = self._kept[part].get(column, [])
        return SegmentColumn(
            column=column,
            segments=tuple(self._segment(part, column, value, *found.values[value]) for value in kept),
            left_out_values=len(found.values) - len(kept),
            left_out_rows=sum(rows for rows, _ in found.values.values()) - sum(found.values[v][0] for v in kept),
        )

    def _segment(self, part: Part, column: str, value: Scalar, rows: int, sums: dict[str, list[int]]) -> Segment:
        tally = self._tally(part, column, value, rows, sums)
        return Segment(value, rows < self._config.min_segment_rows, self._measure(tally))

    def _measure(self, tally: Tally) -> Measures:
        return measure_each(tally, self._names, measure) if tally.labels and tally.rows else measure(tally, self._names)

    def _baseline(self, tally: Tally) -> dict[str, float]:
        target = self._data.target
        if not (tally.labels and tally.rows):
            return baseline(tally, self._names, counts=target.counts, constant=target.mean or 0.0)
        pairs = zip(each_label(tally), target.every, strict=True)
        return mean_of([baseline(one, self._names, counts=(), constant=own.mean or 0.0) for (_, one), own in pairs])

    def _tally(self, part: Part, column: str, value: Scalar, rows: int, sums: dict[str, list[int]]) -> Tally:
        target = self._data.target
        ranks = tuple(self._ranks.get((part, column, value), ()))
        labels = target.columns if target.others else ()
        return Tally(target.kind, target.classes, rows, sums, ranks, self._probabilistic, labels)
