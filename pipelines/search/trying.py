"""One trial: train with its parameters, judge the model on the validation rows, and say what it has come to.

A trial fails by itself: what lies in its parameters fails it at once, what lies in the infrastructure after a second
try. What lies in the data would fail all of them, and ends the search.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pipelines.errors import (
    DeadlineError,
    GangError,
    InterruptedRunError,
    SpecError,
    StorageError,
    TrainingError,
    UsageError,
    UserCodeError,
)
from pipelines.evaluation import EvaluateConfig, EvaluationData, evaluate
from pipelines.model import Model
from pipelines.search.records import Trial, Trials
from pipelines.search.words import Direction, seen
from pipelines.storage import ObjectStore, join_url
from pipelines.training.config import TrainConfig
from pipelines.training.data import TrainingData
from pipelines.training.estimators.registry import Series
from pipelines.training.events import Either
from pipelines.training.fit import Fit, Progress, fit
from pipelines.training.happenings import Happened, ignore

if TYPE_CHECKING:
    from distributed import Client

logger = logging.getLogger(__name__)

OWN_FAULTS = (TrainingError, UserCodeError, UsageError, SpecError, ValueError)
"""They lie in a trial's parameters."""
INFRASTRUCTURE = (GangError, DeadlineError, StorageError)
ATTEMPTS = 2


@dataclass(frozen=True)
class Arena:
    """What all trials of a search share.

    Attributes
    ----------
    config : TrainConfig
        With its `tune`.
    data : TrainingData
    judged : EvaluationData
        The rows that trials are judged on.
    ranks : int
        Workers of the cluster.
    store, folder : ObjectStore, str
        Where records, models and checkpoints go.
    scratch_url : str
        Where evaluations may spill.
    metric : str
    towards : str
    stop : threading.Event
        Set to end the search; the trial at work saves its state.
    happened : callable
        Told of waits for workers, and of ranks that met or were lost, from the trials' threads.
    """

    config: TrainConfig
    data: TrainingData
    judged: EvaluationData
    client: Client | None
    ranks: int
    threads: int
    memory_bytes: int | None
    store: ObjectStore
    folder: str
    scratch_url: str
    metric: str
    towards: Direction
    stop: threading.Event
    happened: Happened = ignore

    def checkpoints(self, number: int) -> str:
        """Where a trial's state lies in the store."""
        return f"{self.folder}/checkpoint/{number:06d}"

    def drop_checkpoints(self, number: int) -> None:
        """Remove the state of a trial that has ended."""
        for info in list(self.store.list(self.checkpoints(number))):
            self.store.delete(info.key)


@dataclass(frozen=True)
class Outcome:
    """What a trial has come to; `infrastructure` is the error that failed it, if it was none of its own."""

    trial: Trial
    infrastructure: Exception | None = None


def try_once(
    arena: Arena,
    trials: Trials,
    series: Series | None,
    begun: Trial,
    on_progress: Callable[[Progress], None],
    worse: Callable[[int, float], bool],
) -> Outcome:
    """Run one trial to its end.

    Parameters
    ----------
    series : Series, optional
        Where its training shares what others have loaded.
    begun : Trial
    on_progress : callable ``(progress)``
    worse : callable ``(step, value) -> bool``
        Takes what is seen of the training after a step, and says whether it is to be given up.

    Raises
    ------
    InterruptedRunError
        ``arena.stop`` was set: the trial has not ended.
    DataError
        See `pipelines.training.fit.fit`.
    """
    give_up = threading.Event()

    def watch(progress: Progress) -> None:
        point = seen(progress, arena.towards)
        if point is not None and not give_up.is_set() and worse(*point):
            logger.info("trial %d is given up after %s %d", begun.number, progress.unit, point[0])
            give_up.set()
        on_progress(progress)

    for attempt in range(1, ATTEMPTS + 1):
        begun = replace(begun, attempts=attempt)
        try:
            trained = _train(arena, series, begun, watch, give_up)
            if give_up.is_set():
                return Outcome(replace(begun, state="pruned"))
            return Outcome(_judge(arena, trials, begun, trained))
        except InterruptedRunError:
            if arena.stop.is_set() or not give_up.is_set():
                raise
            return Outcome(replace(begun, state="pruned"))
        except OWN_FAULTS as error:
            return Outcome(_failed(begun, error))
        except INFRASTRUCTURE as error:
            logger.warning("trial %d failed, attempt %d: %s", begun.number, attempt, error)
            failed = Outcome(_failed(begun, error), error)
    return failed


def _train(
    arena: Arena, series: Series | None, begun: Trial, watch: Callable[[Progress], None], give_up: threading.Event
) -> Fit:
    config = arena.config.for_trial(begun.params)
    checkpoint_url = join_url(arena.store.url, arena.checkpoints(begun.number))
    if series is not None:
        return series.fit(config, checkpoint_url=checkpoint_url, report=watch, give_up=give_up)
    stop = Either(arena.stop)
    watched = _Giving(stop, give_up, watch)
    return fit(
        config,
        arena.data,
        client=arena.client,
        ranks=share(arena),
        threads=arena.threads,
        memory_bytes=arena.memory_bytes,
        checkpoint_url=checkpoint_url,
        report=watched,
        stop=stop,
        happened=arena.happened,
        trial=True,
    )


@dataclass(frozen=True)
class _Giving:
    """Stops a training as soon as it is given up."""

    stop: threading.Event
    give_up: threading.Event
    watch: Callable[[Progress], None]

    def __call__(self, progress: Progress) -> None:
        self.watch(progress)
        if self.give_up.is_set():
            self.stop.set()


def _judge(arena: Arena, trials: Trials, begun: Trial, trained: Fit) -> Trial:
    model = Model.from_fit(trained, arena.data.features, arena.data.target)
    ref = trials.save_model(begun.number, model, trained.summary)
    found = evaluate(
        ref,
        arena.judged,
        EvaluateConfig(metrics=(arena.metric,)),
        client=arena.client,
        scratch_url=f"{arena.scratch_url}/trial-{begun.number:06d}",
        parts=("validation",),
    )
    value = found.value(arena.metric, "validation")
    if value is None or not math.isfinite(value):
        reason = found.parts["validation"].measures.undefined.get(arena.metric, f"{value}")
        raise TrainingError(f"{arena.metric} is undefined on the validation rows", found=reason)
    return replace(begun, state="complete", value=value, model=ref.digest)


def _failed(begun: Trial, error: Exception) -> Trial:
    return replace(begun, state="failed", error=str(error), cause=type(error).__name__)


def share(arena: Arena) -> int:
    """How many workers one trial has."""
    return max(1, arena.ranks // side_by_side(arena))


def side_by_side(arena: Arena) -> int:
    """How many trials there are at a time: at most one per worker."""
    tune = arena.config.tune
    return 1 if tune is None else min(tune.parallel, arena.ranks)


def facts(trial: Trial) -> dict[str, Any]:
    """What a run's record shows of a trial."""
    return {
        "number": trial.number,
        "params": trial.params,
        "state": trial.state,
        "value": trial.value,
        "seconds": round(trial.seconds, 3),
        "steps": trial.steps[-1][0] if trial.steps else 0,
        "error": trial.error,
    }
