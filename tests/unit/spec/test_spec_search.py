"""A search that can't be made is refused before it runs: every fault with its place and the fix."""

from __future__ import annotations

from typing import Any

import pytest

from pipelines.errors import SpecError
from pipelines.spec import load_spec

LOGISTIC = "logistic_regression"
SPACE = {"l2": {"low": 1e-6, "high": 1.0, "log": True}}


def faults(train: dict[str, Any], **sections: Any) -> list[str]:
    spec = {
        "name": "x",
        "data": {"source": "s"},
        "label": {"column": "y"},
        "features": [{"columns": ["a"]}],
        "train": train,
        **sections,
    }
    try:
        load_spec(spec)
    except SpecError as error:
        return [str(fault) for fault in error.faults]
    return []


CASES: list[tuple[dict[str, Any], list[str]]] = [
    ({"estimator": LOGISTIC, "tune": {"space": SPACE}}, []),
    ({"estimator": LOGISTIC, "tune": {"space": {**SPACE, "solver": ["newton", "lbfgs"]}}}, []),
    ({"estimator": LOGISTIC, "params": {"l1_ratio": 0.5}, "tune": {"space": {"C": [0.1, 1]}}}, []),
    ({"estimator": "xgboost", "tune": {"space": {"eta": [0.1, 1], "max_depth": {"low": 3, "high": 9}}}}, []),
    (
        {"estimator": LOGISTIC, "tune": {"space": {"l3": [1]}}},
        ["train.tune.space.l3: the estimator has no such parameter (l3: 1). Did you mean l2?"],
    ),
    (
        {"estimator": LOGISTIC, "tune": {"space": {"l2": {"low": 3, "high": 1}}, "trails": 3}},
        [
            "train.tune.space.l2: low (3) is above high (1): swap them",
            "train.tune.trails: unknown key. Did you mean trials?",
        ],
    ),
    (
        {"estimator": LOGISTIC, "tune": {"space": {"l2": {"low": -1, "high": 1}, "solver": ["newton", "sdg"]}}},
        ["train.tune.space.l2: input should be greater than or equal to 0 (l2: -1)", "train.tune.space.solver: input"],
    ),
    (
        {"estimator": LOGISTIC, "tune": {"space": {"batch_rows": [10], "solver": ["newton", "sgd"]}}},
        ["train.tune.space: batch_rows belong to mini-batches"],
    ),
    (
        {"estimator": LOGISTIC, "params": {"l2": 1}, "tune": {"space": SPACE}},
        ["train.tune.space.l2: l2 is also in train.params. Remove it there"],
    ),
    (
        {"estimator": LOGISTIC, "params": {"tool": 1}, "tune": {"space": SPACE}},
        ["train.params.tool: the estimator has no such parameter. Did you mean tol?"],
    ),
    (
        {"estimator": LOGISTIC, "tune": {"metric": "rmse", "space": SPACE}},
        ["train.tune.metric: rmse is not for a binary or multiclass label. Use one of auc"],
    ),
    (
        {"estimator": LOGISTIC, "tune": {"metric": "roc_auc", "space": SPACE}},
        ["train.tune.metric: there is no metric 'roc_auc'. Did you mean auc?"],
    ),
    (
        {"estimator": "xgboost", "tune": {"space": {"max_depth": {"low": 3.0, "high": 9}}}},
        ["train.tune.space.max_depth: input should be a valid integer"],
    ),
    (
        {"estimator": "linear_regression", "class_weight": "balanced", "tune": {"space": SPACE}},
        ["train: class_weight needs classes"],
    ),
    (
        {"estimator": "sklearn.linear_model.SGDClassifier", "tune": {"pruner": "median", "space": {"alfa": [0.1]}}},
        ["train.tune.pruner: sklearn.linear_model.SGDClassifier says nothing on its way", "train.tune.space.alfa: "],
    ),
]


@pytest.mark.parametrize(("train", "expected"), CASES)
def test_a_search_is_checked_whole(train: dict[str, Any], expected: list[str]) -> None:
    found = faults(train)
    assert len(found) == len(expected), found
    for text, beginning in zip(found, expected, strict=True):
        assert text.startswith(beginning)


def test_trials_need_rows_to_be_judged_on() -> None:
    found = faults({"estimator": LOGISTIC, "tune": {"space": SPACE}}, split={"validation": 0})
    assert found == ["train.tune: trials are judged on the validation rows, and split.validation is 0. Set it"]


def test_a_label_that_is_said_has_its_metrics() -> None:
    label = {"column": "y", "kind": "regression"}
    assert faults({"estimator": "xgboost", "tune": {"metric": "rmse", "space": {"eta": [0.1]}}}, label=label) == []
    found = faults({"estimator": "xgboost", "tune": {"metric": "auc", "space": {"eta": [0.1]}}}, label=label)
    assert found[0].startswith("train.tune.metric: auc is not for a regression label. Use one of rmse")
