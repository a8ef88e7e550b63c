"""What goes with a parameter server is told before anything is started, and a rule is what its parameters say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from pipelines.errors import UsageError
from pipelines.training.config import ParameterServerConfig, TrainConfig
from pipelines.training.estimators.linear_params import LinearParams
from pipelines.training.estimators.registry import resolve
from pipelines.training.estimators.served_params import count_servers, rule_of
from pipelines.training.strategies.parameter_server import Adagrad, Ftrl, Sgd


def check(params: dict[str, Any], strategy: Any = "parameter_server") -> LinearParams:
    found = resolve("logistic_regression").check(
        TrainConfig(estimator="logistic_regression", params=params, strategy=strategy)
    )
    assert isinstance(found, LinearParams)
    return found


REFUSED = [
    ({"solver": "newton"}, "has the solvers ftrl, adagrad, sgd"),
    ({"solver": "momentum"}, "has the solvers ftrl, adagrad, sgd"),
    ({"learning_rate": 0.1}, "learning_rate can't be used with solver: ftrl"),
    ({"solver": "ftrl", "C": 1.0}, "C can't be used with solver: ftrl"),
    ({"solver": "adagrad", "l1": 0.1}, "l1 can't be used with solver: adagrad"),
    ({"solver": "adagrad", "alpha": 0.1}, "alpha belong to solver: ftrl"),
    ({"solver": "sgd", "l1": 0.1}, "l1 can't be used with solver: sgd on a parameter server"),
    ({"solver": "sgd", "schedule": "cosine"}, "schedule: cosine needs to know the last step"),
]


@pytest.mark.parametrize(("params", "message"), REFUSED)
def test_what_servers_cannot_follow_is_refused(params: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check(params)


@pytest.mark.parametrize("solver", ["ftrl", "adagrad"])
def test_servers_rules_are_refused_elsewhere(solver: str) -> None:
    with pytest.raises(ValueError, match=f"solver: {solver} is a parameter server's"):
        check({"solver": solver}, "synchronous")


STRATEGIES = [
    ({"servers": 0}, "greater than or equal to 1"),
    ({"servers": 257}, "less than or equal to 256"),
    ({"staleness": -1}, "greater than or equal to 0"),
    ({"servers": 1, "replicate": True}, "a copy needs a second server"),
]


@pytest.mark.parametrize(("setting", "message"), STRATEGIES)
def test_settings_out_of_range_are_faults_of_the_strategy(setting: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message) as caught:
        TrainConfig(estimator="logistic_regression", strategy={"name": "parameter_server", **setting})
    assert caught.value.errors()[0]["loc"][0] == "strategy"


def test_copies_need_a_rank_each() -> None:
    assert count_servers(ParameterServerConfig(), 20) == 8
    assert count_servers(ParameterServerConfig(), 3) == 3
    assert count_servers(ParameterServerConfig(servers=6, replicate=False), 2) == 6
    with pytest.raises(UsageError, match=r"train\.strategy\.servers.*at most 2.*found 3"):
        count_servers(ParameterServerConfig(servers=3), 2)


def test_rules_are_what_is_asked_for() -> None:
    assert rule_of(check({"solver": "adagrad", "learning_rate": 0.3})) == Adagrad(0.3)
    assert rule_of(check({"solver": "sgd"})) == Sgd(0.1)
    assert rule_of(check({"solver": "sgd", "schedule": "inverse_scaling"})) == Sgd(0.1, 0.5)


def test_ftrls_parameters_count_in_sums_over_a_batch() -> None:
    """The paper's rule on sums of B rows' gradients, and ours on their means, give the same weights."""
    rows = 32
    ours = rule_of(check({"alpha": 0.3, "beta": 2.0, "l1": 60.0, "l2": 0.5, "batch_rows": rows}))
    papers = Ftrl(0.3, 2.0, l1=60.0, l2=0.5)
    rng = np.random.default_rng(0)
    first, second = np.zeros((50, 2), np.float32), np.zeros((50, 2), np.float32)
    for _ in range(20):
        gradient = rng.normal(0.1, 0.2, 50).astype(np.float32)
        first = ours.update(first, gradient, 0)
        second = papers.update(second, rows * gradient, 0)
    found, expected = ours.weights(first), papers.weights(second)
    assert 0 < np.count_nonzero(expected) < 50
    np.testing.assert_array_equal(found == 0, expected == 0)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)  # 20 updates in float32
