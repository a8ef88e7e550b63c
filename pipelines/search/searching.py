"""A search from its first trial to its last: who is next, what it has come to, and which model is the best."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from pipelines import errors
from pipelines.errors import InterruptedRunError, MutiraoError, TrainingError
from pipelines.model import Model
from pipelines.search.records import Trial, Trials, best_of
from pipelines.search.study import Study
from pipelines.search.trying import Arena, share, side_by_side, try_once
from pipelines.training.estimators.registry import FitRequest, FitsSeries, Series, resolve
from pipelines.training.fit import Progress
from pipelines.training.gang import Deadlines

logger = logging.getLogger(__name__)

LOST_IN_A_ROW = 3
"""So many trials lost to the infrastructure, one after the other, end the search: it can be resumed when that is well
again."""


@dataclass(frozen=True)
class Found:
    """What a search has found: the best trial's model, what its training says about itself, and all trials."""

    best: Trial
    model: Model
    summary: dict[str, Any]
    trials: tuple[Trial, ...]


def search(
    arena: Arena, *, on_trial: Callable[[Trial, Trial | None], None], report: Callable[[Progress], None]
) -> Found:
    """Run the trials that ``arena.config.tune`` asks for, or those that an earlier attempt has left.

    Parameters
    ----------
    arena : Arena
    on_trial : callable ``(trial, best)``
        Called when a trial begins and when it has ended, with the best so far; of several threads, one at a time.
    report : callable ``(progress)``
        Called likewise with the progress, in trials.

    Raises
    ------
    TrainingError, UserCodeError, …
        No trial was completed: of the class and with the text of what happened most often.
    GangError, DeadlineError, StorageError
        The infrastructure has failed trial after trial.
    DataError
        The data can't be learned from.
    InterruptedRunError
        ``arena.stop`` was set; an interrupted trial goes on from its state when the search is made again.
    """
    trials = Trials(arena.store, arena.folder)
    past = trials.read()
    work = _Search(arena, trials, past, on_trial, report)
    lanes = side_by_side(arena)
    if lanes == 1:
        work.lane()
    else:
        with ThreadPoolExecutor(lanes, thread_name_prefix="trial") as pool:
            for lane in [pool.submit(work.lane) for _ in range(lanes)]:
                lane.exception()
    if work.error is not None:
        raise work.error
    ended = work.ended
    best = best_of(ended, maximise=arena.towards == "maximize")
    if best is None:
        raise _nothing(ended)
    model, summary = trials.load_model(best)
    return Found(best, model, summary, tuple(ended))


class _Search:
    """The trials so far, and who is next; lanes are threads that take one trial after the other."""

    def __init__(
        self,
        arena: Arena,
        trials: Trials,
        past: list[Trial],
        on_trial: Callable[[Trial, Trial | None], None],
        report: Callable[[Progress], None],
    ) -> None:
        assert arena.config.tune is not None
        self._arena, self._trials, self._tune = arena, trials, arena.config.tune
        self._study = Study(self._tune, arena.towards, past)
        self._ended = {trial.number: trial for trial in past if trial.state != "running"}
        self._left = [trial for trial in past if trial.state == "running"]
        self._on_trial, self._report = on_trial, report
        self._lock = threading.Lock()
        spent = sum(trial.seconds for trial in self._ended.values()) / side_by_side(arena)
        self._over_at = None if self._tune.timeout is None else time.monotonic() + self._tune.timeout - spent
        self._lost = 0
        self.error: BaseException | None = None

    @property
    def ended(self) -> list[Trial]:
        """The trials that have ended, by number."""
        return [self._ended[number] for number in sorted(self._ended)]

    def lane(self) -> None:
        """Take trials until there are no more, or one of the lanes has met an error."""
        series = _series(self._arena)
        try:
            while (begun := self._next()) is not None:
                self._run(begun, series)
        except BaseException as error:  # noqa: BLE001 - the boundary of a thread: `search` raises it
            with self._lock:
                self.error = self.error or error
        finally:
            if series is not None:
                series.close()

    def _next(self) -> Trial | None:
        with self._lock:
            if self.error is not None:
                return None
            if self._arena.stop.is_set():
                raise InterruptedRunError(
                    "the search was stopped", remedy="It goes on with its next trial when resumed."
                )
            if self._left:
                return self._left.pop(0)
            if self._over_at is not None and time.monotonic() >= self._over_at:
                return None
            asked = self._study.ask()
            if asked is None:
                return None
            number, params = asked
            self._trials.ask(number, params)
            return Trial(number, params)

    def _run(self, begun: Trial, series: Series | None) -> None:
        with self._lock:
            self._on_trial(begun, self._best())
            self._tell_progress(begun, {})
        began = time.monotonic()

        def on_progress(progress: Progress) -> None:
            with self._lock:
                self._tell_progress(begun, progress.metrics, progress.rows_per_s)

        outcome = try_once(
            self._arena,
            self._trials,
            series,
            begun,
            on_progress,
            lambda step, value: self._study.report(begun.number, step, value),
        )
        steps, notes = self._study.seen(begun.number)
        trial = replace(outcome.trial, steps=steps, notes=notes, seconds=time.monotonic() - began)
        self._end(trial, outcome.infrastructure)

    def _end(self, trial: Trial, infrastructure: Exception | None) -> None:
        with self._lock:
            self._lost = self._lost + 1 if infrastructure is not None else 0
            if infrastructure is not None and self._lost >= LOST_IN_A_ROW:
                raise infrastructure
            self._trials.tell(trial)
            self._study.tell(trial)
            before = self._best()
            self._ended[trial.number] = trial
            best = self._best()
            self._on_trial(trial, best)
            self._tell_progress(trial, {})
            self._clean(trial, [each.number for each in (before, trial) if each is not None and each is not best])

    def _clean(self, trial: Trial, models: list[int]) -> None:
        """Remove what nobody needs any more; what can't be removed now is removed with the run's other state."""
        try:
            self._arena.drop_checkpoints(trial.number)
            self._trials.drop_models(models)
        except MutiraoError as error:
            logger.warning("what trial %d has left was not removed: %s", trial.number, error)

    def _best(self) -> Trial | None:
        return best_of(self.ended, maximise=self._arena.towards == "maximize")

    def _tell_progress(self, trial: Trial, metrics: dict[str, float], rows_per_s: float = 0.0) -> None:
        best = self._best()
        found = {} if best is None or best.value is None else {f"best {self._arena.metric}": best.value}
        at_work = {f"trial {trial.number} {name}": value for name, value in list(metrics.items())[-1:]}
        self._report(Progress("trial", len(self._ended), self._tune.most, found | at_work, rows_per_s))


def _series(arena: Arena) -> Series | None:
    estimator = resolve(arena.config.estimator)
    if not isinstance(estimator, FitsSeries):
        return None
    return estimator.series(
        FitRequest(
            config=arena.config.for_trial({}),
            data=arena.data,
            client=arena.client,
            ranks=share(arena),
            min_ranks=1,
            max_ranks=share(arena),
            threads=arena.threads,
            memory_bytes=arena.memory_bytes,
            checkpoint_url=None,
            report=lambda _: None,
            deadlines=Deadlines(),
            stop=arena.stop,
            happened=arena.happened,
            trial=True,
        )
    )


def _nothing(ended: list[Trial]) -> MutiraoError:
    """Say why no trial was completed: as what happened most often."""
    failed = [trial for trial in ended if trial.state == "failed"]
    if not failed:
        pruned = len(ended)
        remedy = "Give the search more time, or use another pruner."
        return TrainingError("no trial was completed", found=f"{pruned} that were given up", remedy=remedy)
    (cause, text), count = Counter((trial.cause, trial.error) for trial in failed).most_common(1)[0]
    kind = getattr(errors, cause, TrainingError)
    usable = isinstance(kind, type) and issubclass(kind, MutiraoError) and kind is not errors.SpecError
    return (kind if usable else TrainingError)(
        f"no trial was completed: {count} of {len(ended)} failed with: {text}",
        remedy="Change the space, or train.params: every trial's cause is in the run's record.",
    )
