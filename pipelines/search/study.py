"""Which parameters are tried next, and which trial is given up? Optuna's study, rebuilt from our records.

Optuna keeps the study in memory only; what must last is in `records`. Rebuilding adds the trials as they were. CMA-ES
alone has a state that hangs on the order of suggestions and results: there the search is gone through again.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Sequence
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from pipelines.search.records import State, Trial
from pipelines.search.space import distributions, pruner, sampler
from pipelines.search.words import Direction
from pipelines.training.tuning import TuneConfig

_STATES: dict[State, TrialState] = {
    "running": TrialState.RUNNING,
    "complete": TrialState.COMPLETE,
    "pruned": TrialState.PRUNED,
    "failed": TrialState.FAIL,
}
_NAME = "search"
"""Hyperband shares trials out by the study's name and their number."""


class Study:
    """Asks Optuna, and tells it. Safe to call from several threads.

    Parameters
    ----------
    tune : TuneConfig
    towards : str
    past : sequence of Trial
        What earlier attempts have recorded, by number.
    """

    def __init__(self, tune: TuneConfig, towards: Direction, past: Sequence[Trial] = ()) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._tune, self._distributions = tune, distributions(tune)
        self._study = optuna.create_study(
            direction=towards, study_name=_NAME, sampler=sampler(tune, 0), pruner=pruner(tune)
        )
        self._lock = threading.Lock()
        self._ids: dict[int, int] = {}
        """Optuna's number of each trial: the same, unless a search was gone through again and came out differently."""
        for trial in past:
            if tune.sampler != "cmaes" or not self._repeat(trial):
                self._add(trial)

    def ask(self) -> tuple[int, dict[str, Any]] | None:
        """Begin the next trial: its number and parameters; None when there are enough."""
        with self._lock:
            number = max(self._ids, default=-1) + 1
            if number >= self._tune.most:
                return None
            return number, self._suggest(number)

    def report(self, number: int, step: int, value: float) -> bool:
        """Say how a trial stands after a step; returns whether it is to be given up."""
        if not math.isfinite(value):
            return False
        with self._lock:
            trial = self._trial(number)
            if step not in self._frozen(number).intermediate_values:  # it may be the second time that it comes here
                trial.report(value, step)
            return bool(trial.should_prune())

    def tell(self, trial: Trial) -> None:
        """Say what a trial has come to."""
        with self._lock:
            self._tell(trial)

    def seen(self, number: int) -> tuple[tuple[tuple[int, float], ...], dict[str, Any]]:
        """Return what was reported of a trial, and what of samplers' and pruners' notes about it lasts."""
        with self._lock:
            frozen = self._frozen(number)
            return tuple(sorted(frozen.intermediate_values.items())), _lasting(frozen.system_attrs)

    def _tell(self, trial: Trial) -> None:
        if self._tune.sampler == "grid":
            # The grid's own sampler would stop Optuna's loop after the last point; here the loop is ours.
            self._study.sampler = optuna.samplers.RandomSampler()
        self._study.tell(self._ids[trial.number], trial.value, state=_STATES[trial.state])

    def _suggest(self, number: int) -> dict[str, Any]:
        self._study.sampler = sampler(self._tune, number)
        trial = self._study.ask(self._distributions)
        self._ids[number] = trial.number
        return dict(trial.params)

    def _add(self, trial: Trial) -> None:
        last = trial.steps[-1][1] if trial.steps and trial.state == "pruned" else None
        self._ids[trial.number] = len(self._study.trials)
        self._study.add_trial(
            optuna.trial.create_trial(
                state=_STATES[trial.state],
                value=trial.value if trial.state == "complete" else last,
                params=trial.params,
                distributions=self._distributions,
                intermediate_values=dict(trial.steps),
                system_attrs=dict(trial.notes),
            )
        )

    def _repeat(self, trial: Trial) -> bool:
        """Go through a trial again; False where other parameters come out, as they may of trials side by side."""
        if self._suggest(trial.number) != trial.params:
            self._study.tell(self._ids.pop(trial.number), state=TrialState.FAIL)
            return False
        if trial.state != "running":
            again = self._trial(trial.number)
            for step, value in trial.steps:
                again.report(value, step)
                again.should_prune()  # the pruner makes its notes
            self._tell(trial)
        return True

    def _trial(self, number: int) -> optuna.trial.Trial:
        return optuna.trial.Trial(self._study, self._frozen(number)._trial_id)

    def _frozen(self, number: int) -> FrozenTrial:
        return self._study.get_trials(deepcopy=False)[self._ids[number]]


def _lasting(notes: dict[str, Any]) -> dict[str, Any]:
    """Keep what is plain; CMA-ES's own state is a pickle, and is found again in another way."""
    kept = {}
    for name, value in notes.items():
        if name.startswith("cma:"):
            continue
        try:
            kept[name] = json.loads(json.dumps(value, allow_nan=False))
        except (TypeError, ValueError):
            continue
    return kept
