"""Searches whose trials are real trainings: they find the optimum, fail alone, are pruned, stop, and go on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.errors import DataError, GangError, InterruptedRunError, TrainingError
from pipelines.model import Model
from pipelines.search import searching, trying
from pipelines.search.records import Trial, Trials
from pipelines.search.searching import Found, search
from pipelines.search.study import Study
from pipelines.search.trying import Arena
from pipelines.training.data import load_part
from pipelines.training.fit import Progress, fit
from pipelines.training.tuning import TuneConfig

pytestmark = pytest.mark.slow

MakeArena = Callable[..., Arena]
Make = Callable[..., pa.Table]


class Log:
    """Runs a search, and keeps what it tells."""

    def __init__(self) -> None:
        self.told: list[Trial] = []
        self.progress: list[Progress] = []
        self.on_trial: Callable[[Trial], None] = lambda trial: None

    def run(self, arena: Arena) -> Found:
        def on_trial(trial: Trial, best: Trial | None) -> None:
            self.told.append(trial)
            self.on_trial(trial)

        return search(arena, on_trial=on_trial, report=self.progress.append)

    @property
    def begun(self) -> list[int]:
        return [trial.number for trial in self.told if trial.state == "running"]


def states(found: Found) -> list[str]:
    return [trial.state for trial in found.trials]


def ridge_rmse(arena: Arena, l2: float) -> float:
    """What ridge regression comes to on validation, in closed form."""
    train, validation = (load_part(arena.data, arena.data.shards.shards, part) for part in ("train", "validation"))
    X, y = train.X.astype(np.float64), train.y.astype(np.float64)
    centre, mean = X.mean(axis=0), y.mean()
    A = (X - centre).T @ (X - centre) / len(y) + l2 * np.eye(X.shape[1])
    weights = np.linalg.solve(A, (X - centre).T @ (y - mean) / len(y))
    errors = (validation.X.astype(np.float64) - centre) @ weights + mean - validation.y
    return float(np.sqrt(np.mean(errors**2)))


def test_the_best_penalty_is_found_and_its_model_is_that_of_a_plain_fit(
    make_arena: MakeArena, make_regression: Make
) -> None:
    tune = {"trials": 20, "space": {"l2": {"low": 1e-4, "high": 1e4, "log": True}}}
    arena = make_arena(make_regression(), {"estimator": "linear_regression", "tune": tune}, metric="rmse")
    log = Log()
    found = log.run(arena)
    for trial in found.trials:  # labels are float32: 1e-7 of a rmse of about 4
        assert trial.value == pytest.approx(ridge_rmse(arena, trial.params["l2"]), rel=1e-5)
    curve = [ridge_rmse(arena, l2) for l2 in np.geomspace(1e-4, 1e4, 400)]
    worst, least = max(curve), min(curve)
    assert found.best.value is not None
    assert found.best.value - least < 0.01 * (worst - least)
    plain = fit(arena.config.for_trial(found.best.params), arena.data, client=None, ranks=2)
    assert found.model.digest == Model.from_fit(plain, arena.data.features, arena.data.target).digest
    assert found.summary["n_iter"] == plain.summary["n_iter"]
    assert log.progress[-1].done == 20
    assert log.progress[-1].metrics["best rmse"] == found.best.value
    left = {info.key.split("/")[2] for info in arena.store.list("search/models")}
    assert left == {f"{found.best.number:06d}"}
    assert not list(arena.store.list("search/checkpoint"))


def test_a_diverging_trial_fails_alone_with_its_cause_kept(make_arena: MakeArena, make_regression: Make) -> None:
    space = {"learning_rate": [1e6, 0.05, 0.02]}
    tune = {"sampler": "grid", "space": space}
    params = {"solver": "sgd", "epochs": 4, "batch_rows": 20}
    arena = make_arena(
        make_regression(), {"estimator": "linear_regression", "params": params, "tune": tune}, metric="rmse"
    )
    found = Log().run(arena)
    assert sorted(states(found)) == ["complete", "complete", "failed"]
    failed = next(trial for trial in found.trials if trial.state == "failed")
    assert failed.params == {"learning_rate": 1e6}
    assert failed.cause == "TrainingError"
    assert "diverged" in failed.error or "not finite" in failed.error
    assert failed.attempts == 1
    plain = fit(arena.config.for_trial(found.best.params), arena.data, client=None, ranks=2)
    assert found.model.digest == Model.from_fit(plain, arena.data.features, arena.data.target).digest


def test_a_search_without_a_complete_trial_fails_as_most_of_them_did(
    make_arena: MakeArena, make_regression: Make
) -> None:
    tune = {"sampler": "grid", "space": {"learning_rate": [1e6, 1e7]}}
    params = {"solver": "sgd", "epochs": 4, "batch_rows": 20}
    train = {"estimator": "linear_regression", "params": params, "tune": tune}
    with pytest.raises(TrainingError, match=r"no trial was completed: 1 of 2 failed with: .*(diverged|not finite)"):
        Log().run(make_arena(make_regression(), train, metric="rmse"))


def test_an_estimator_by_import_path_is_searched_and_its_own_errors_fail_the_trial(
    make_arena: MakeArena, make_classes: Make
) -> None:
    """With more neighbours than there are rows scikit-learn raises as soon as it predicts."""
    tune = {"sampler": "grid", "space": {"n_neighbors": [5, 100_000]}}
    train = {"estimator": "sklearn.neighbors.KNeighborsClassifier", "tune": tune}
    found = Log().run(make_arena(make_classes(400), train, metric="log_loss"))
    assert {(trial.params["n_neighbors"], trial.state) for trial in found.trials} == {
        (5, "complete"),
        (100_000, "failed"),
    }
    failed = next(trial for trial in found.trials if trial.state == "failed")
    assert "n_neighbors <= n_samples_fit" in failed.error
    assert found.model.python_only


def with_last(space: dict[str, list[Any]], worst: list[Any]) -> dict[str, Any]:
    """A grid whose seed deals it out with the worst points at its end."""
    for seed in range(10_000):
        tune = {"sampler": "grid", "space": space, "seed": seed}
        study = Study(TuneConfig.model_validate(tune), "minimize")
        order = [asked[1] for _ in range(max(map(len, space.values()))) if (asked := study.ask())]
        if all(value in worst for params in order[-len(worst) :] for value in params.values()):
            return tune
    raise AssertionError("no such seed")


def test_worse_boosting_is_given_up_round_by_round(make_arena: MakeArena, make_classes: Make) -> None:
    """Optuna's median pruner begins once five trials are complete; a tiny learning rate is worse from round 1 on."""
    tune = with_last({"learning_rate": [0.3, 0.25, 0.2, 0.15, 0.35, 1e-6]}, [1e-6]) | {"pruner": "median"}
    params = {"num_boost_round": 10, "eval_metric": "logloss", "max_depth": 2}
    train = {"estimator": "xgboost", "params": params, "tune": tune}
    found = Log().run(make_arena(make_classes(600), train, metric="log_loss"))
    assert states(found) == ["complete"] * 5 + ["pruned"]
    assert [[step for step, _ in trial.steps] for trial in found.trials] == [list(range(1, 11))] * 5 + [[1]]


def test_worse_descents_are_given_up_and_the_gang_goes_on(make_arena: MakeArena, make_regression: Make) -> None:
    """What is seen is a loss; where more of the metric is better it is turned round."""
    tune = with_last({"learning_rate": [0.1, 0.2, 0.05, 0.08, 0.15, 1e-9, 1e-8]}, [1e-9, 1e-8]) | {"pruner": "median"}
    params = {"solver": "adam", "epochs": 20, "batch_rows": 20, "tol": 0.0}
    train = {"estimator": "linear_regression", "params": params, "tune": tune}
    for metric in ("rmse", "r2"):
        found = Log().run(make_arena(make_regression(), train, metric=metric, name=metric))
        assert states(found) == ["complete"] * 5 + ["pruned"] * 2
        assert [trial.steps[-1][0] for trial in found.trials] == [19] * 5 + [1] * 2
        assert found.best.params["learning_rate"] > 0.01


def test_a_stopped_search_goes_on_where_it_was(make_arena: MakeArena, make_regression: Make) -> None:
    tune = {"trials": 6, "space": {"l2": {"low": 1e-3, "high": 10.0, "log": True}}}
    params = {"solver": "adam", "epochs": 80, "batch_rows": 20, "tol": 0.0}
    train = {"estimator": "linear_regression", "params": params, "tune": tune}
    whole = Log().run(make_arena(make_regression(), train, metric="rmse", name="whole"))
    arena, log = make_arena(make_regression(), train, metric="rmse", name="parts"), Log()

    def stop(trial: Trial) -> None:
        if trial.number == 2:
            arena.stop.set()

    log.on_trial = stop
    with pytest.raises(InterruptedRunError):
        log.run(arena)
    assert [trial.state for trial in Trials(arena.store, "parts").read()] == ["complete", "complete", "running"]
    log = Log()
    again = log.run(replace(arena, stop=threading.Event()))
    assert log.begun == [2, 3, 4, 5]
    assert [(t.params, t.value) for t in again.trials] == [(t.params, t.value) for t in whole.trials]
    assert again.model.digest == whole.model.digest
    log = Log()
    assert log.run(replace(arena, stop=threading.Event())).best == again.best
    assert log.told == []


def test_trials_side_by_side_all_end(make_arena: MakeArena, make_regression: Make) -> None:
    tune = {"trials": 6, "parallel": 2, "sampler": "random", "space": {"l2": {"low": 1e-3, "high": 10.0}}}
    found = Log().run(make_arena(make_regression(), {"estimator": "linear_regression", "tune": tune}, metric="rmse"))
    assert states(found) == ["complete"] * 6
    assert [trial.number for trial in found.trials] == list(range(6))
    one = {**tune, "parallel": 1}
    alone = make_arena(make_regression(), {"estimator": "linear_regression", "tune": one}, metric="rmse", name="alone")
    assert {str(t.params): t.value for t in Log().run(alone).trials} == {str(t.params): t.value for t in found.trials}


def test_no_trial_is_begun_when_the_time_is_over(make_arena: MakeArena, make_regression: Make) -> None:
    tune = {"trials": 50, "timeout": 30, "space": {"l2": {"low": 1e-3, "high": 10.0}}}
    arena = make_arena(make_regression(), {"estimator": "linear_regression", "tune": tune}, metric="rmse")
    past = Trials(arena.store, arena.folder)
    one = TuneConfig.model_validate({**tune, "trials": 1})
    found = Log().run(replace(arena, config=arena.config.model_copy(update={"tune": one})))
    past.ask(1, {"l2": 1.0})
    past.tell(Trial(1, {"l2": 1.0}, "failed", seconds=30.0))
    assert Log().run(arena).best == found.best
    assert len(past.read()) == 2


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        ([GangError("lost")], ["complete"] * 3),
        ([GangError("lost")] * 2, ["failed", "complete", "complete"]),
        ([GangError("lost")] * 5, ["failed", "failed", "complete"]),
    ],
)
def test_what_the_infrastructure_loses_is_tried_twice(
    make_arena: MakeArena,
    make_regression: Make,
    monkeypatch: pytest.MonkeyPatch,
    errors: list[Exception],
    expected: list[str],
) -> None:
    tune = {"sampler": "grid", "space": {"l2": [0.1, 1.0, 10.0]}}
    arena = make_arena(make_regression(), {"estimator": "linear_regression", "tune": tune}, metric="rmse")
    left = iter(errors)

    class Faulty:
        """A series that loses its gang at some of its fits."""

        def __init__(self, real: Any) -> None:
            self.real = real

        def fit(self, *args: Any, **words: Any) -> Any:
            if (error := next(left, None)) is not None:
                raise error
            return self.real.fit(*args, **words)

        def close(self) -> None:
            self.real.close()

    begin = searching._series
    monkeypatch.setattr(searching, "_series", lambda arena: Faulty(begin(arena)))
    found = Log().run(arena)
    assert states(found) == expected
    assert found.trials[0].attempts == min(2, 1 + len(errors))
    assert [t.cause for t in found.trials if t.state == "failed"] == ["GangError"] * expected.count("failed")


def test_an_infrastructure_that_is_gone_ends_the_search_which_can_go_on(
    make_arena: MakeArena, make_regression: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    tune = {"sampler": "grid", "space": {"l2": [0.1, 1.0, 10.0, 100.0]}}
    arena = make_arena(make_regression(), {"estimator": "linear_regression", "tune": tune}, metric="rmse")

    def gone(*_: Any, **__: Any) -> Any:
        raise GangError("no workers")

    with monkeypatch.context() as patch:
        patch.setattr(trying, "_train", gone)
        with pytest.raises(GangError, match="no workers"):
            Log().run(arena)
    found = Log().run(arena)
    assert states(found) == ["failed", "failed", "complete", "complete"]


def test_data_that_have_changed_end_the_search_at_once(
    make_arena: MakeArena, make_regression: Make, tmp_path: Path
) -> None:
    tune = {"sampler": "grid", "space": {"l2": [0.1, 1.0]}}
    arena, log = make_arena(make_regression(), {"estimator": "linear_regression", "tune": tune}, metric="rmse"), Log()
    pq.write_table(make_regression(seed=1), tmp_path / "data" / "0.parquet")
    with pytest.raises(DataError):
        log.run(arena)
    assert log.begun == [0]
    assert [trial.state for trial in Trials(arena.store, arena.folder).read()] == ["running"]
