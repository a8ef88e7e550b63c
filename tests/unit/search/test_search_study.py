"""A search that is interrupted anywhere goes on as if it had not been: same trials, same pruning, for every sampler."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipelines.errors import CorruptArtifactError
from pipelines.search.records import Trial, Trials, best_of
from pipelines.search.study import Study
from pipelines.storage import open_store
from pipelines.training.tuning import TuneConfig

SPACE = {
    "rate": {"low": 1e-4, "high": 1.0, "log": True},
    "depth": {"low": 2, "high": 9},
    "kind": ["a", "b", "c"],
}
GRID = {"depth": {"low": 2, "high": 5}, "kind": ["a", "b", "c"]}
STEPS = 9


def loss(params: dict[str, Any], step: int = STEPS) -> float:
    """A bowl around rate 0.01, depth 5 and kind b, that trainings come down to step by step."""
    bowl = (math.log10(params.get("rate", 0.01)) + 2) ** 2 + (params["depth"] - 5) ** 2 / 4 + (params["kind"] != "b")
    return bowl + 3.0 / step


def go_on(tune: TuneConfig, past: Sequence[Trial], *, until: int, open_: Trial | None = None) -> list[Trial]:
    """Run trials one after the other, as `search` does; trial 3 of each search fails."""
    study, ended = Study(tune, "minimize", [*past, *([open_] if open_ else [])]), list(past)
    left = open_
    while len(ended) < until:
        if left is not None:
            number, params, left = left.number, left.params, None
        elif (asked := study.ask()) is None:
            break
        else:
            number, params = asked
        pruned = any(study.report(number, step, loss(params, step)) for step in range(1, STEPS + 1))
        trial = Trial(number, params, "failed" if number == 3 else "pruned" if pruned else "complete")
        steps, notes = study.seen(number)
        value = loss(params) if trial.state == "complete" else None
        trial = replace(trial, value=value, steps=steps, notes=notes)
        study.tell(trial)
        ended.append(trial)
    return ended


def stored(trials: Sequence[Trial], folder: Path) -> list[Trial]:
    """Write trials to a store, and read them again."""
    records = Trials(open_store(str(folder)), "search")
    for trial in trials:
        records.ask(trial.number, trial.params)
        records.tell(trial)
    return records.read()


CASES = [(sampler, pruner) for sampler in ("tpe", "random", "cmaes", "grid") for pruner in ("none", "median")]
CASES += [("tpe", "hyperband"), ("tpe", "successive_halving"), ("cmaes", "successive_halving")]


@pytest.mark.slow
@pytest.mark.parametrize(("sampler", "pruner"), CASES)
@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(0, 15), begun=st.booleans(), seed=st.integers(0, 3))
def test_an_interrupted_search_ends_as_one_that_was_not(
    sampler: Any, pruner: Any, cut: int, begun: bool, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    space: Any = GRID if sampler == "grid" else SPACE
    tune = TuneConfig(space=space, trials=16, sampler=sampler, pruner=pruner, seed=seed)
    whole = go_on(tune, [], until=16)
    cut = min(cut, len(whole) - 1)
    past = stored(whole[:cut], tmp_path_factory.mktemp("store"))
    assert past == whole[:cut]
    open_ = Trial(cut, whole[cut].params) if begun else None
    again = go_on(tune, past, until=16, open_=open_)
    assert again == whole


@pytest.mark.parametrize("pruner", ["median", "hyperband", "successive_halving"])
def test_pruners_prune(pruner: Any) -> None:
    trials = go_on(TuneConfig(space=SPACE, trials=40, pruner=pruner), [], until=40)
    pruned = [trial for trial in trials if trial.state == "pruned"]
    assert pruned
    best = best_of(trials, maximise=False)
    assert best is not None
    assert all(loss(trial.params) >= loss(best.params) for trial in pruned)
    assert not [t for t in go_on(TuneConfig(space=SPACE, trials=40), [], until=40) if t.state == "pruned"]


@pytest.mark.parametrize("sampler", ["tpe", "cmaes"])
def test_samplers_learn_from_what_they_are_told(sampler: Any) -> None:
    """Of random points one in 200 is so near the bowl's bottom (rate within 3.2-fold, depth and kind right)."""
    trials = go_on(TuneConfig(space=SPACE, trials=60, sampler=sampler), [], until=60)
    best = best_of(trials, maximise=False)
    assert best is not None
    assert loss(best.params) - 3.0 / STEPS < 0.25


def test_side_by_side_trials_are_different_and_come_back_in_any_order() -> None:
    tune = TuneConfig(space=SPACE, trials=12, parallel=4)
    study = Study(tune, "minimize")
    asked = [study.ask() for _ in range(4)]
    assert len({repr(each) for each in asked}) == 4
    for number, params in reversed([each for each in asked if each is not None]):
        study.tell(Trial(number, params, "complete", loss(params)))
    past = [Trial(n, p, "complete", loss(p)) for n, p in [each for each in asked if each]][:2]
    more = Study(TuneConfig(space=SPACE, trials=12, sampler="cmaes"), "minimize", past).ask()
    assert more is not None
    assert more[0] == 2


def test_a_grid_ends_when_it_is_gone_through() -> None:
    trials = go_on(TuneConfig(space=GRID, trials=100, sampler="grid"), [], until=100)
    assert len({repr(trial.params) for trial in trials}) == len(trials) == 12


def test_equal_values_are_won_by_the_first_and_undefined_ones_by_nobody() -> None:
    trials = [Trial(0, {}, "failed"), Trial(1, {}, "complete", 0.5), Trial(2, {}, "complete", 0.5), Trial(3, {})]
    assert best_of(trials, maximise=True) == best_of(trials, maximise=False) == trials[1]
    assert best_of(trials[:1], maximise=True) is None


def test_a_trial_is_not_told_twice_in_different_words(tmp_path: Path) -> None:
    records = Trials(open_store(str(tmp_path)), "search")
    records.ask(0, {"a": 1})
    assert records.read() == [Trial(0, {"a": 1})]
    records.tell(Trial(0, {"a": 1}, "complete", 0.5))
    records.tell(Trial(0, {"a": 1}, "complete", 0.5))
    with pytest.raises(CorruptArtifactError, match="another driver"):
        records.tell(Trial(0, {"a": 1}, "complete", 0.6))
