"""Are XGBoost's words checked before anything runs, and does every accepted word reach XGBoost?"""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import xgboost as xgb
from pydantic import ValidationError

from pipelines.errors import SpecError
from pipelines.training.config import TrainConfig
from pipelines.training.estimators.boosting import XGBOOST
from pipelines.training.estimators.boosting_params import XGBoostParams, check_params, check_target


@pytest.mark.parametrize(("params", "place", "says"), [
    ({"max_dept": 3}, "max_dept", "did you mean max_depth"),
    ({"xyzzy": 3}, "xyzzy", "XGBoost has no parameter 'xyzzy' (it would ignore it)"),
    ({"nthread": 3}, "nthread", "cluster.worker.threads"),
    ({"seed": 3}, "seed", "train.random_state"),
    ({"num_class": 3}, "num_class", "the label's classes decide it"),
    ({"eta": 0.1, "learning_rate": 0.2}, "eta", "are the same: give one of them"),
    ({"booster": "gblinear"}, "booster", "use estimator logistic_regression or linear_regression"),
    ({"tree_method": "approx"}, "tree_method", "use hist"),
    ({"tree_method": "gpu_hist"}, "tree_method", "device says where"),
    ({"device": "cuda"}, "device", "device: cpu does"),
    ({"device": "cuda:0"}, "device", "device: cpu does"),
    ({"objective": "binary:logistics"}, "objective", "Did you mean binary:logistic"),
    ({"objective": "multi:softmax"}, "objective", "multi:softprob"),
    ({"objective": "rank:ndcg"}, "objective", "query groups"),
    ({"eval_metric": "acu"}, "eval_metric", "Did you mean auc"),
    ({"eval_metric": ["auc", "ndcg@5"]}, "eval_metric", "query groups"),
    ({"max_bin": 1}, "max_bin", "greater than or equal to 2"),
    ({"subsample": 0}, "subsample", "greater than 0"),
    ({"num_boost_round": 0}, "num_boost_round", "greater than or equal to 1"),
    ({"rate_drop": 0.1}, None, "only work with booster: dart"),
    ({"quantile_alpha": 0.1}, None, "only works with objective: reg:quantileerror"),
    ({"objective": "reg:quantileerror"}, None, "needs quantile_alpha"),
    ({"early_stopping_rounds": 3, "evals": []}, None, "evals is empty"),
])  # fmt: skip
def test_a_bad_word_is_a_fault_with_its_place_and_what_to_do(params, place, says):
    with pytest.raises(ValidationError) as caught:
        check_params(params)
    (fault,) = caught.value.errors()
    assert fault["loc"] == ((place,) if place else ())
    assert says in fault["msg"]


def test_all_faults_are_told_at_once():
    with pytest.raises(ValidationError) as caught:
        XGBOOST.check(TrainConfig(estimator="xgboost", params={"max_dept": 3, "max_bin": 0, "eval_metric": "x"}))
    assert {fault["loc"] for fault in caught.value.errors()} == {("max_dept",), ("max_bin",), ("eval_metric",)}


@pytest.mark.parametrize(("params", "kind", "says"), [
    ({"objective": "reg:squarederror"}, "binary", "does not learn a binary label"),
    ({"objective": "binary:logistic"}, "multiclass", "default is multi:softprob"),
    ({"objective": "multi:softprob"}, "regression", "label.kind: multiclass"),
    ({"eval_metric": "auc"}, "regression", "does not measure a regression label"),
    ({"eval_metric": "mlogloss"}, "binary", "does not measure a binary label"),
    ({"eval_metric": "tweedie-nloglik@1.5"}, "regression", "goes with reg:tweedie"),
    ({"scale_pos_weight": 2}, "multiclass", "no positive class"),
    ({"monotone_constraints": {"distanse": 1}}, "binary", "Did you mean distance"),
    ({"interaction_constraints": [["distance", "carier"]]}, "binary", "Did you mean carrier"),
])  # fmt: skip
def test_words_that_do_not_go_with_label_or_features_are_faults(params, kind, says):
    with pytest.raises(SpecError, match=says) as caught:
        check_target(check_params(params), kind, ("distance", "carrier"))
    assert caught.value.exit_code == 2
    assert next(iter(params)) in caught.value.faults[0].path


def test_classes_are_not_weighted_twice():
    with pytest.raises(SpecError, match="weighted twice"):
        check_target(check_params({"scale_pos_weight": 2}), "binary", weighted=True)


def test_synonyms_mean_the_same():
    by_alias = check_params({"eta": 0.1, "lambda": 2, "alpha": 1, "min_split_loss": 3, "n_estimators": 7})
    by_name = check_params({"learning_rate": 0.1, "reg_lambda": 2, "reg_alpha": 1, "gamma": 3, "num_boost_round": 7})
    assert by_alias == by_name


@pytest.mark.parametrize("kind", ["binary", "multiclass", "regression"])
def test_the_objective_follows_the_label(kind):
    check_target(check_params({}), kind)
    assert check_params({}).for_label(kind) in ("binary:logistic", "multi:softprob", "reg:squarederror")


SOME = {
    "learning_rate": 0.1, "max_depth": 3, "max_leaves": 7, "grow_policy": "lossguide", "min_child_weight": 0.5,
    "gamma": 0.01, "max_delta_step": 1, "reg_lambda": 2, "reg_alpha": 0.1, "scale_pos_weight": 2, "subsample": 0.9,
    "sampling_method": "uniform", "colsample_bytree": 0.9, "colsample_bylevel": 0.9, "colsample_bynode": 0.9,
    "num_parallel_tree": 2, "max_bin": 64, "max_cat_to_onehot": 3, "max_cat_threshold": 8, "base_score": 0.4,
    "multi_strategy": "one_output_per_tree", "booster": "dart", "rate_drop": 0.1, "skip_drop": 0.5, "one_drop": True,
    "sample_type": "weighted", "normalize_type": "forest", "eval_metric": ["auc", "logloss"], "device": "cpu",
    "tree_method": "hist", "objective": "binary:logistic",
}  # fmt: skip
APART = {"huber_slope", "tweedie_variance_power", "quantile_alpha"}


def test_every_accepted_word_is_one_that_xgboost_uses():
    """XGBoost only warns about a parameter it does not know: the warning must not come."""
    own = {
        "cuts",
        "num_boost_round",
        "early_stopping_rounds",
        "evals",
        "monotone_constraints",
        "interaction_constraints",
    }
    assert set(SOME) | APART | own == set(XGBoostParams.model_fields)
    words = check_params(SOME).booster_words()
    random = np.random.default_rng(0)
    X = random.normal(size=(200, 3))
    matrix = xgb.QuantileDMatrix(X, (X[:, 0] > 0).astype(float), max_bin=64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        xgb.train({**words, "objective": "binary:logistic", "verbosity": 1}, matrix, 2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        xgb.train({**words, "objective": "binary:logistic", "verbosity": 1, "xyzzy": 1}, matrix, 2)
    assert any("xyzzy" in str(each.message) for each in caught), "XGBoost no longer tells unused parameters"


@pytest.mark.parametrize(("objective", "word", "value", "told"), [
    ("reg:pseudohubererror", "huber_slope", 0.5, "0.5"),
    ("reg:tweedie", "tweedie_variance_power", 1.25, "1.25"),
    ("reg:quantileerror", "quantile_alpha", 0.25, "[2.5E-1]"),
])  # fmt: skip
def test_words_of_one_objective_reach_it(objective, word, value, told):
    words = check_params({"objective": objective, word: value}).booster_words() | {"objective": objective}
    random = np.random.default_rng(0)
    X = random.normal(size=(200, 3))
    booster = xgb.train(words, xgb.QuantileDMatrix(X, np.abs(X[:, 0])), 2)
    assert f'"{word}":"{told}' in booster.save_config().replace(" ", "")
