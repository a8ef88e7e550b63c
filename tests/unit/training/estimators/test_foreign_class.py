"""Is an import path of a spec resolved, and are its params checked, before anything runs?"""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from pipelines.errors import NotFoundError, SpecError, UserCodeError
from pipelines.training.config import TrainConfig
from pipelines.training.estimators.foreign import foreign
from pipelines.training.estimators.foreign_class import find_class
from pipelines.training.estimators.foreign_stored import store_estimator
from pipelines.training.estimators.registry import resolve


@pytest.mark.parametrize(("name", "kinds"), [
    ("sklearn.linear_model.SGDClassifier", ("binary", "multiclass")),
    ("sklearn.ensemble:HistGradientBoostingClassifier", ("binary", "multiclass")),
    ("sklearn.linear_model.Ridge", ("regression",)),
    ("dask_ml.linear_model.LogisticRegression", ("binary",)),
    ("dask_ml.linear_model.LinearRegression", ("regression",)),
    ("dask_ml.naive_bayes.GaussianNB", ("binary", "multiclass")),
])  # fmt: skip
def test_a_class_says_what_it_learns(name, kinds):
    assert resolve(name).label_kinds == kinds


@pytest.mark.parametrize(("name", "says"), [
    ("sklearn.linear_models.Ridge", "can't be imported: ModuleNotFoundError"),
    ("sklearn.linear_model.Rigde", "Did you mean sklearn.linear_model.Ridge"),
    ("sklearn.preprocessing.StandardScaler", "no fit and predict"),
    ("sklearn.cluster.KMeans", "neither a classifier nor a regressor"),
    ("dask_ml.cluster.KMeans", "does not learn a label by itself"),
    ("dask_ml.wrappers.Incremental", "does not learn a label by itself"),
])  # fmt: skip
def test_a_path_that_can_not_be_used_says_why(name, says):
    with pytest.raises(UserCodeError, match=says) as caught:
        resolve(name)
    assert caught.value.on == name


def test_a_bare_word_is_none_of_ours():
    with pytest.raises(NotFoundError, match="Did you mean xgboost"):
        resolve("xgbost")


@pytest.mark.parametrize(("name", "params", "says"), [
    ("sklearn.linear_model.Ridge", {"alpa": 1}, "no parameter 'alpa': it has alpha"),
    ("sklearn.linear_model.Ridge", {"alpha": -1}, "'alpha' parameter of sklearn.linear_model.Ridge must be"),
    ("sklearn.linear_model.SGDClassifier", {"loss": "logg"}, "'loss' parameter"),
    ("sklearn.linear_model.SGDClassifier", {"epochs": 0}, "whole number of passes"),
    ("sklearn.linear_model.Ridge", {"epochs": 3}, "no parameter 'epochs'"),
    ("sklearn.multiclass.OneVsRestClassifier", {}, "needs estimator"),
    ("dask_ml.linear_model.LogisticRegression", {"solvr": "lbfgs"}, "it has solver"),
])  # fmt: skip
def test_params_are_checked_against_the_class(name, params, says):
    with pytest.raises(ValidationError, match=says):
        foreign(name).check(TrainConfig(estimator=name, params=params))


def test_all_faults_are_told_at_once():
    name = "sklearn.linear_model.Ridge"
    with pytest.raises(ValidationError) as caught:
        foreign(name).check(TrainConfig(estimator=name, params={"alpa": 1, "tool": 2}))
    assert [fault["loc"] for fault in caught.value.errors()] == [("alpa",), ("tool",)]


@pytest.mark.parametrize("name", ["dask_ml.linear_model.LogisticRegression", "sklearn.neighbors.KNeighborsClassifier"])
def test_weights_that_a_class_can_not_take_are_a_fault(name):
    with pytest.raises(SpecError, match=r"train.class_weight: .* takes no sample weights"):
        foreign(name).check(TrainConfig(estimator=name, class_weight="balanced"))


def test_seed_and_threads_are_set_where_the_class_takes_them():
    forest = find_class("sklearn.ensemble.RandomForestClassifier")
    made = forest.make({}, random_state=7, threads=3)
    assert (made.random_state, made.n_jobs) == (7, 3)
    assert forest.make({"random_state": 1}, random_state=7, threads=3).random_state == 1
    assert find_class("sklearn.naive_bayes.GaussianNB").make({}, random_state=7, threads=3) is not None


def test_params_that_can_not_be_stored_are_refused_before_training():
    name = "sklearn.gaussian_process.GaussianProcessRegressor"
    with pytest.raises(UserCodeError, match=r"can't be stored.*skops"):
        foreign(name).check(TrainConfig(estimator=name, params={"optimizer": _optimizer()}))


def _optimizer():
    def local(objective, start, bounds):
        return start, 0.0

    return local


def test_an_estimator_that_comes_back_as_another_is_refused():
    with pytest.raises(UserCodeError, match="predicts something else"):
        store_estimator(_Forgetful(), "tests.Forgetful", np.zeros((3, 2)))


class _Forgetful:
    """Predicts something else after every trip."""

    def __init__(self) -> None:
        self.trips = 0

    def __setstate__(self, state):
        self.trips = state["trips"] + 1

    def __getstate__(self):
        return {"trips": self.trips}

    def predict(self, X):
        return np.full(len(X), self.trips)
