"""The training stage of a spec with `tune:`: a search whose best trial's model is the run's model."""

from __future__ import annotations

from collections import Counter
from typing import Any

from pipelines.codec import canonical
from pipelines.run.stages import TRIALS, Work, trained_result
from pipelines.search.records import Trial
from pipelines.search.searching import Found, search
from pipelines.search.trying import Arena, facts
from pipelines.search.words import default_metric, direction
from pipelines.training.data import TrainingData
from pipelines.training.fit import Progress
from pipelines.training.happenings import Happening


def run_search(work: Work, data: TrainingData) -> tuple[dict[str, bytes], dict[str, Any]]:
    """Search, or go on with a search, and take the best trial's model."""
    compiled, train = work.compiled, work.compiled.spec.train
    assert train.tune is not None
    metric = default_metric(train.tune, data.target.kind)

    def happened(happening: Happening) -> None:
        if happening.what != "resumption":  # of one training among many: its steps are not the run's
            work.log.happened(happening)

    arena = Arena(
        config=train,
        data=data,
        judged=work.evaluation_data(),
        client=work.client(),
        ranks=compiled.plan.ranks,
        threads=compiled.plan.threads,
        memory_bytes=compiled.spec.cluster.worker.memory,
        store=work.folder.store,
        folder=work.folder.search_folder,
        scratch_url=work.folder.scratch_url,
        metric=metric,
        towards=direction(metric),
        stop=work.stop,
        happened=happened,
    )

    def on_trial(trial: Trial, best: Trial | None) -> None:
        work.on_trials([facts(trial)], None if best is None else {"number": best.number, "value": best.value})

    def report(progress: Progress) -> None:
        work.report(
            "train",
            unit=f"{progress.unit}s",
            done=progress.done,
            total=progress.total,
            rows_per_s=progress.rows_per_s,
            metrics=progress.metrics,
        )

    found = search(arena, on_trial=on_trial, report=report)
    told = [facts(trial) for trial in found.trials]
    # once more: the driver before may have been killed between a trial's end and its word
    work.on_trials(told, {"number": found.best.number, "value": found.best.value})
    files, summary = trained_result(work, found.model, found.summary)
    return {**files, TRIALS: canonical(told)}, {**summary, "search": _summary(found, metric)}


def _summary(found: Found, metric: str) -> dict[str, Any]:
    states = Counter(trial.state for trial in found.trials)
    return {
        "metric": metric,
        "value": found.best.value,
        "trial": found.best.number,
        "params": found.best.params,
        **{state: states[state] for state in ("complete", "pruned", "failed")},
        "seconds": round(sum(trial.seconds for trial in found.trials), 3),
    }
