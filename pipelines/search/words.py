"""What is better, and how is a trial seen on its way? The few decisions about metrics that a search hangs on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pipelines.evaluation.catalogue import USUAL, Kind, metric
from pipelines.training.estimators.boosting_words import is_maximised
from pipelines.training.fit import Progress
from pipelines.training.tuning import TuneConfig

Direction = Literal["maximize", "minimize"]


def default_metric(tune: TuneConfig, kind: Kind) -> str:
    """What trials are compared by: as the spec says, or what is usual for the kind of label."""
    return metric(tune.metric).name if tune.metric else USUAL[kind][0]


def direction(name: str) -> Direction:
    """Which way a metric is better, in Optuna's words."""
    return "maximize" if metric(name).higher_is_better else "minimize"


def seen(progress: Progress, towards: Direction) -> tuple[int, float] | None:
    """Return the step and the value by which a training is compared with others on its way; None if it says nothing.

    The value is turned round where what is seen is better the other way than what is searched for.
    """
    if progress.unit == "round":
        name = _last_metric(progress.metrics)
        if name is None:
            return None
        better = is_maximised(name.partition("-")[2])
        value = progress.metrics[name]
    elif progress.unit in ("step", "epoch") and "loss" in progress.metrics:
        better, value = False, progress.metrics["loss"]
    else:
        return None
    return progress.done, value if better == (towards == "maximize") else -value


def _last_metric(metrics: Mapping[str, float]) -> str | None:
    names = [name for name in metrics if name.startswith("validation-")]
    return names[-1] if names else None
