"""Rules do what their papers say, key by key, and FTRL's 1-norm leaves exact zeros."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from pipelines.errors import UsageError
from pipelines.training.strategies.parameter_server.rules import (
    Adagrad,
    AnyRule,
    Ftrl,
    Rule,
    Sgd,
    from_plain,
    row_of,
    to_plain,
)

KEYS, UPDATES = 7, 60

ALONE = np.array([0])
"""The one row there is, free."""


class SlowSgd:
    """Of one key, in Python's floats."""

    def __init__(self, rule: Sgd) -> None:
        self.rule, self.w = rule, 0.0

    def update(self, g: float, t: int) -> None:
        self.w -= self.rule.learning_rate / (1 + t) ** self.rule.power * g


class SlowAdagrad:
    """Of one key, in Python's floats."""

    def __init__(self, rule: Adagrad) -> None:
        self.rule, self.w, self.n = rule, 0.0, 0.0

    def update(self, g: float, t: int) -> None:
        self.n += g * g
        self.w -= self.rule.learning_rate * g / (math.sqrt(self.n) + self.rule.epsilon)


class SlowFtrl:
    """Algorithm 1 of the paper, for one key, in Python's floats."""

    def __init__(self, rule: Ftrl) -> None:
        self.rule, self.z, self.n = rule, 0.0, 0.0

    @property
    def w(self) -> float:
        r = self.rule
        if abs(self.z) <= r.l1:
            return 0.0
        return -(self.z - math.copysign(r.l1, self.z)) / ((r.beta + math.sqrt(self.n)) / r.alpha + r.l2)

    def update(self, g: float, t: int) -> None:
        sigma = (math.sqrt(self.n + g * g) - math.sqrt(self.n)) / self.rule.alpha
        self.z, self.n = self.z + g - sigma * self.w, self.n + g * g


CASES = [
    (Sgd(0.3), SlowSgd),
    (Sgd(0.3, power=0.5), SlowSgd),
    (Adagrad(0.2), SlowAdagrad),
    (Ftrl(0.5), SlowFtrl),
    (Ftrl(0.5, beta=0.1, l1=0.4, l2=0.3), SlowFtrl),
]


@pytest.mark.parametrize(("rule", "slow"), CASES, ids=str)
def test_a_rule_follows_its_definition_key_by_key(rule: Rule, slow: type) -> None:
    rng = np.random.default_rng(3)
    rows, references = np.zeros((KEYS, rule.columns), np.float32), [slow(rule) for _ in range(KEYS)]
    for t in range(UPDATES):
        chosen = np.flatnonzero(rng.random(KEYS) < 0.6)
        gradient = rng.normal(size=len(chosen)).astype(np.float32)
        rows[chosen] = rule.update(rows[chosen], gradient, t)
        for key, g in zip(chosen, gradient, strict=True):
            references[key].update(float(g), t)
    # Sixty updates of numbers of size 1 to 10 in float32: each adds at most 6e-8 of its size.
    expected = [each.w for each in references]
    np.testing.assert_allclose(rule.weights(rows), expected, rtol=1e-4, atol=2e-5)


def test_ftrl_without_penalties_is_gradient_descent_with_a_rate_per_key() -> None:
    """McMahan (2011), theorem 2: w_{t+1} = w_t - α/(β + √n_t)·g_t, with n_t up to and with g_t."""
    rule, rng = Ftrl(alpha=0.3, beta=1.0), np.random.default_rng(0)
    row, w, n = np.zeros((1, 2), np.float32), 0.0, 0.0
    for t in range(100):
        g = np.float32(rng.normal())
        row = rule.update(row, np.array([g], np.float32), t)
        n += float(g) ** 2
        w -= 0.3 / (1.0 + math.sqrt(n)) * float(g)
        assert rule.weights(row)[0] == pytest.approx(w, abs=2e-5)


def test_ftrls_weight_minimises_its_objective() -> None:
    """w = argmin z·w + l1·|w| + ½((β + √n)/α + l2)·w²."""
    rule = Ftrl(alpha=0.5, beta=1.0, l1=0.7, l2=0.2)
    for z, n in [(3.0, 4.0), (-1.5, 0.5), (0.5, 9.0), (-0.69, 1.0)]:

        def objective(w: float, z: float = z, n: float = n) -> float:
            return z * w + 0.7 * abs(w) + 0.5 * ((1.0 + math.sqrt(n)) / 0.5 + 0.2) * w * w

        found = float(rule.weights(np.array([[z, n]], np.float32))[0])
        best = minimize_scalar(objective, bounds=(-5, 5), method="bounded", options={"xatol": 1e-9}).x
        assert found == pytest.approx(best, abs=1e-6)


def test_ftrls_one_norm_leaves_exact_zeros_where_there_is_nothing_to_learn() -> None:
    rng = np.random.default_rng(1)
    rule, keys, rows = Ftrl(alpha=0.3, l1=10.0), 60, np.zeros((60, 2), np.float32)
    true = np.zeros(keys)
    true[:5] = [2, -2, 1.5, -1.5, 1]
    for t in range(400):
        x = rng.choice([-1.0, 1.0], keys)
        y = rng.random() < 1 / (1 + np.exp(-x @ true))
        p = 1 / (1 + np.exp(-x @ rule.weights(rows).astype(float)))
        rows = rule.update(rows, ((p - y) * x).astype(np.float32), t)
    weights = rule.weights(rows)
    assert (np.sign(weights[:5]) == np.sign(true[:5])).all()
    without = Ftrl(alpha=0.3)
    # A noise key's z is a sum of 400 random signs times |p - y|, at most about 0.3: a deviation of 6, below l1.
    assert np.count_nonzero(weights[5:]) < 0.2 * (keys - 5)
    assert np.count_nonzero(without.weights(rows)[5:]) == keys - 5


def test_the_free_row_is_not_penalised() -> None:
    rows = np.array([[0.5, 4.0], [0.5, 4.0]], np.float32)
    found = Ftrl(alpha=0.5, beta=1.0, l1=0.7, l2=0.2).weights(rows, np.array([1]))
    assert found[0] == 0
    assert found[1] == pytest.approx(-0.5 / (3 / 0.5))
    assert Ftrl(beta=0.0, l2=1.0).weights(np.zeros((1, 2), np.float32), ALONE)[0] == 0


def test_adagrads_first_step_is_its_rate() -> None:
    gradient = np.array([1e-3, -50.0], np.float32)
    rows = Adagrad(0.25, epsilon=1e-9).update(np.zeros((2, 2), np.float32), gradient, 0)
    np.testing.assert_allclose(rows[:, 0], [-0.25, 0.25], rtol=1e-5)


@pytest.mark.parametrize("make", [lambda: Sgd(0), lambda: Adagrad(-1), lambda: Ftrl(beta=0), lambda: Ftrl(l1=-1)])
def test_settings_without_sense_are_refused(make: object) -> None:
    with pytest.raises(UsageError, match="an update rule"):
        make()  # type: ignore[operator]


EVERY = [Sgd(0.1, 0.5), Adagrad(0.2), Ftrl(0.3, 2.0, l1=0.1, l2=0.2)]


@pytest.mark.parametrize("rule", EVERY, ids=str)
def test_a_rule_travels_as_json(rule: AnyRule) -> None:
    assert from_plain(json.loads(json.dumps(to_plain(rule)))) == rule


@pytest.mark.parametrize("rule", EVERY, ids=str)
def test_a_weight_may_begin_elsewhere_and_moves_by_its_gradients_only(rule: AnyRule) -> None:
    """A free weight's steps are those of one that began at 0, up to float32's rounding."""
    began, zero = row_of(rule, 1.5), np.zeros((1, rule.columns), np.float32)
    assert rule.weights(began, ALONE)[0] == pytest.approx(1.5, rel=1e-6)
    rng = np.random.default_rng(0)
    for number in range(30):
        gradient = rng.normal(size=1).astype(np.float32)
        began, zero = rule.update(began, gradient, number, ALONE), rule.update(zero, gradient, number, ALONE)
        assert rule.weights(began, ALONE)[0] - rule.weights(zero, ALONE)[0] == pytest.approx(1.5, rel=1e-5)
