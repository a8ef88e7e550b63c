"""A space as it is written, as examples show it, and as Optuna samples it, is one and the same."""

from __future__ import annotations

import math
from typing import Any

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pipelines.search.space import distributions, sampler
from pipelines.search.words import default_metric, direction, seen
from pipelines.training.config import TrainConfig
from pipelines.training.fit import Progress
from pipelines.training.tuning import Range, TuneConfig


@st.composite
def ranges(draw: st.DrawFn) -> dict[str, Any]:
    whole, log, stepped = draw(st.booleans()), draw(st.booleans()), draw(st.booleans())
    if whole:
        low = draw(st.integers(1 if log else -50, 50))
        found: dict[str, Any] = {"low": low, "high": low + draw(st.integers(0, 60))}
        step: float = draw(st.integers(1, 9))
    else:
        low_ = draw(st.floats(1e-6 if log else -5.0, 5.0))
        found = {"low": low_, "high": low_ + draw(st.floats(0.01, 20.0))}
        step = draw(st.sampled_from([0.25, 0.5, 1.5]))
    return found | ({"log": True} if log else {"step": step} if stepped else {})


spaces = st.dictionaries(
    st.sampled_from("abcd"), ranges() | st.lists(st.sampled_from(["x", "y", 3, 0.5, None]), min_size=1, unique=True),
    min_size=1,
)  # fmt: skip


@given(spaces, st.sampled_from(["tpe", "random"]), st.integers(0, 5))
def test_what_is_suggested_lies_in_the_space(space: dict[str, Any], kind: Any, number: int) -> None:
    tune = TuneConfig(space=space, sampler=kind)
    study = optuna.create_study(sampler=sampler(tune, number))
    params = study.ask(distributions(tune)).params
    for name, searched in tune.space.items():
        if not isinstance(searched, Range):
            assert params[name] in searched
            continue
        assert searched.low <= params[name] <= searched.high or math.isclose(params[name], searched.high)
        assert isinstance(params[name], int) == searched.whole
        values = searched.values()
        if values is not None:
            assert any(math.isclose(params[name], value, abs_tol=1e-9) for value in values)


@given(spaces, st.integers(1, 300))
def test_every_end_and_choice_is_in_an_example_whatever_the_limit(space: dict[str, Any], limit: int) -> None:
    tune = TuneConfig(space=space)
    examples = list(tune.examples(limit))
    assert len(examples) == len({tuple(map(repr, each.values())) for each in examples})
    for name, searched in tune.space.items():
        shown = {repr(each[name]) for each in examples}
        assert shown == {repr(each) for each in (searched.examples() if isinstance(searched, Range) else searched)}


@pytest.mark.slow
@given(spaces)
def test_a_grid_has_every_point_once(space: dict[str, Any]) -> None:
    counted = {k: v for k, v in space.items() if isinstance(v, list) or Range.model_validate(v).values() is not None}
    small = {k: v if isinstance(v, list) else {**v, "high": v["low"]} for k, v in counted.items()}
    tune = TuneConfig(space=small or {"a": [1]}, sampler="grid", trials=2000)
    study = optuna.create_study(sampler=sampler(tune, 0))
    found = []
    for number in range(tune.most):
        study.sampler = sampler(tune, number)
        trial = study.ask(distributions(tune))
        study.sampler = optuna.samplers.RandomSampler()
        study.tell(trial, 0.0)
        found.append(tuple(trial.params.values()))
    assert len(set(map(repr, found))) == tune.most == math.prod(len(values) for values in tune.grid().values())


def test_numbers_that_yaml_takes_for_texts_are_numbers() -> None:
    tune = TuneConfig.model_validate({"space": {"a": {"low": "1e-6", "high": 1, "log": True}, "b": ["1e3", "x"]}})
    assert tune.space == {"a": Range(low=1e-6, high=1, log=True), "b": (1000.0, "x")}
    assert TuneConfig.model_validate(tune.model_dump(mode="json")) == tune


BAD = [
    ({"space": {"a": {"low": 2, "high": 1}}}, "swap them"),
    ({"space": {"a": {"low": 0, "high": 1, "log": True}}}, "above 0"),
    ({"space": {"a": {"low": 1, "high": 2, "log": True, "step": 1}}}, "contradict"),
    ({"space": {"a": {"low": True, "high": 2}}}, "not a number"),
    ({"space": {"a": {"low": 1, "high": 2, "step": 0}}}, "step is above 0"),
    ({"space": {"a": []}}, "at least 1"),
    ({"space": {"a": [1, True]}}, "twice"),
    ({"space": {"a": [[1]]}}, "a choice is"),
    ({"space": {"a": 3}}, "write a range"),
    ({"space": {}}, "at least 1"),
    ({"space": {"a": {"low": 0.0, "high": 1}}, "sampler": "grid"}, "a has none"),
    ({"space": {"a": {"low": 0.0, "high": 1}}, "sampler": "cmaes"}, "two ranges"),
    ({"space": {"a": [1]}, "timeout": "0 s"}, "greater than 0"),
]


@pytest.mark.parametrize(("written", "word"), BAD)
def test_what_cannot_be_searched_is_refused(written: dict[str, Any], word: str) -> None:
    with pytest.raises(ValidationError, match=word):
        TuneConfig.model_validate(written)


def test_a_trial_is_a_plain_training() -> None:
    tune = {"space": {"l2": [0.1]}}
    config = TrainConfig.model_validate({"estimator": "linear_regression", "params": {"tol": 1e-3}, "tune": tune})
    plain = TrainConfig(estimator="linear_regression", params={"tol": 1e-3, "l2": 0.1})
    assert config.for_trial({"l2": 0.1}) == plain


def test_metrics_say_which_way_is_better() -> None:
    tune = TuneConfig(space={"a": [1]})
    assert [default_metric(tune, kind) for kind in ("binary", "multiclass", "regression")] == ["auc", "auc", "rmse"]
    assert (direction("auc"), direction("rmse"), direction("r2")) == ("maximize", "minimize", "maximize")


def test_what_is_seen_on_the_way_is_turned_towards_the_goal() -> None:
    loss = Progress("step", 3, None, {"loss": 0.5, "gradient": 0.1})
    assert seen(loss, "minimize") == (3, 0.5)
    assert seen(loss, "maximize") == (3, -0.5)
    rounds = Progress("round", 2, 9, {"train-logloss": 0.1, "validation-logloss": 0.4, "validation-auc": 0.8})
    assert seen(rounds, "maximize") == (2, 0.8)
    assert seen(rounds, "minimize") == (2, -0.8)
    assert seen(Progress("round", 2, 9, {"train-auc": 0.9}), "maximize") is None
    assert seen(Progress("load", 2, 9), "maximize") is None
