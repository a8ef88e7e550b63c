"""Optimisers find minima of functions that are known, go on from any state, and stop when they should."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.errors import TrainingError
from pipelines.training.optimisers import Step
from pipelines.training.optimisers.first_order import Descent, descend
from pipelines.training.optimisers.lbfgs import lbfgs
from pipelines.training.optimisers.newton import newton, proximal_step
from pipelines.training.optimisers.schedules import rate
from pipelines.training.optimisers.search import wolfe
from pipelines.training.state import decode_state, encode_state


class Quadratic:
    """(w - c)ᵀA(w - c)/2 with eigenvalues from 1 to `condition`; the last weight is not penalised."""

    sample_stride = 1
    coarse_pays = True
    steps_per_epoch = 10

    def __init__(self, size: int = 12, condition: float = 1e3, l1: float = 0.0, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        basis, _ = np.linalg.qr(rng.normal(size=(size, size)))
        self.A = basis @ np.diag(np.geomspace(1, condition, size)) @ basis.T
        self.c = rng.normal(size=size)
        self.size, self.l1 = size, l1
        self.penalised = np.arange(size) < size - 1
        self.diagonal = self.A.diagonal().copy()
        self.evaluations = 0

    def gradient(self, weights: np.ndarray, *, fine: bool = True, stride: int = 1) -> tuple[float, np.ndarray]:
        self.evaluations += 1
        d = weights - self.c
        g = self.A @ d
        value = 0.5 * float(d @ g)
        if not fine:  # what float32 does
            return float(np.float32(value)), g.astype(np.float32).astype(np.float64)
        return value, g

    def hessian(self, weights: np.ndarray, *, fine: bool = True, stride: int = 1) -> np.ndarray:
        return self.A

    def batch(self, weights: np.ndarray, epoch: int, step: int) -> tuple[float, np.ndarray]:
        return self.gradient(weights)


class Rosenbrock(Quadratic):
    """The banana valley, coordinate by coordinate."""

    def __init__(self, size: int = 6) -> None:
        super().__init__(size)
        self.diagonal = np.full(size, 200.0)

    def gradient(self, weights: np.ndarray, *, fine: bool = True, stride: int = 1) -> tuple[float, np.ndarray]:
        x, y = weights[::2], weights[1::2]
        value = float(np.sum(100 * (y - x**2) ** 2 + (1 - x) ** 2))
        g = np.empty_like(weights)
        g[::2] = -400 * x * (y - x**2) - 2 * (1 - x)
        g[1::2] = 200 * (y - x**2)
        return value, g

    def hessian(self, weights: np.ndarray, *, fine: bool = True, stride: int = 1) -> np.ndarray:
        H = np.zeros((self.size, self.size))
        for at in range(0, self.size, 2):
            x, y = weights[at : at + 2]
            H[at : at + 2, at : at + 2] = [[1200 * x**2 - 400 * y + 2, -400 * x], [-400 * x, 200]]
        return H


def ignore(step: Step, state: Any) -> None:
    pass


def zeros(size: int) -> dict[str, Any]:
    return {"weights": np.zeros(size)}


@pytest.mark.parametrize("method", [lbfgs, newton])
@pytest.mark.parametrize("condition", [1.0, 1e2, 1e5])
def test_a_quadratics_minimum_is_found(method: Any, condition: float) -> None:
    oracle = Quadratic(condition=condition)
    outcome = method(oracle, zeros(12), ignore, tol=1e-9, max_iter=1000)
    assert outcome.converged
    assert outcome.reason == "tolerance"
    np.testing.assert_allclose(outcome.weights, oracle.c, atol=1e-7)
    assert list(outcome.history) == sorted(outcome.history, reverse=True)


@pytest.mark.parametrize("method", [lbfgs, newton])
def test_the_banana_valley_is_followed_to_its_end(method: Any) -> None:
    outcome = method(Rosenbrock(), {"weights": np.full(6, -1.2)}, ignore, tol=1e-8, max_iter=2000)
    assert outcome.converged
    np.testing.assert_allclose(outcome.weights, 1, atol=1e-6)


@pytest.mark.parametrize("method", [lbfgs, newton])
@pytest.mark.parametrize("l1", [0.1, 5.0, 1e4])
def test_the_one_norms_conditions_are_met(method: Any, l1: float) -> None:
    oracle = Quadratic(l1=l1, condition=50)
    outcome = method(oracle, zeros(12), ignore, tol=1e-8, max_iter=3000)
    assert outcome.converged
    _, g = oracle.gradient(outcome.weights)
    w, inner = outcome.weights[:-1], g[:-1]
    assert np.abs(inner[w != 0] + l1 * np.sign(w[w != 0])).max(initial=0) < 1e-7
    assert (np.abs(inner[w == 0]) <= l1 + 1e-7).all()
    assert abs(g[-1]) < 1e-7
    if l1 == 1e4:
        assert (w == 0).all()


@pytest.mark.parametrize("method", [lbfgs, newton])
def test_max_iter_is_a_reason_to_stop(method: Any) -> None:
    outcome = method(Rosenbrock(), {"weights": np.full(6, -1.2)}, ignore, tol=1e-9, max_iter=3)
    assert outcome.reason == "max_iter"
    assert not outcome.converged
    assert outcome.steps == len(outcome.history) == 3


@pytest.mark.parametrize("method", [lbfgs, newton])
def test_a_tolerance_below_rounding_errors_ends_all_the_same(method: Any) -> None:
    oracle = Quadratic(condition=1e4)
    outcome = method(oracle, zeros(12), ignore, tol=0.0, max_iter=10_000)
    assert outcome.steps < 1000
    np.testing.assert_allclose(outcome.weights, oracle.c, atol=1e-6)


@pytest.mark.parametrize("method", [lbfgs, newton])
@pytest.mark.parametrize("l1", [0.0, 0.5])
def test_going_on_from_any_state_gives_the_same_bits(method: Any, l1: float) -> None:
    make = (lambda: Quadratic(l1=l1, condition=1e3)) if l1 or method is lbfgs else Rosenbrock
    size = make().size
    states: list[bytes] = []
    start = {"weights": np.full(size, -1.2)}
    options = {"tol": 1e-8, "max_iter": 500}
    whole = method(make(), start, lambda step, state: states.append(encode_state(state())), **options)
    assert len(states) == whole.steps > 1
    for state in states[:: max(1, len(states) // 6)]:
        again = method(make(), decode_state(state), ignore, **options)
        assert again.weights.tobytes() == whole.weights.tobytes()
        assert again.history == whole.history
        assert (again.steps, again.reason) == (whole.steps, whole.reason)


@pytest.mark.parametrize("error", [0.001, 0.3])
@pytest.mark.parametrize("l1", [0.0, 0.3])
def test_newton_goes_on_with_the_hessian_of_its_sample(error: float, l1: float) -> None:
    states: list[bytes] = []
    options = {"tol": 1e-9, "max_iter": 100}
    whole = newton(Sampled(error, l1), zeros(12), lambda step, state: states.append(encode_state(state())), **options)
    for state in states:
        again = newton(Sampled(error, l1), decode_state(state), ignore, **options)
        assert again.weights.tobytes() == whole.weights.tobytes()
        assert again.history == whole.history


def test_coarse_steps_are_followed_by_fine_ones() -> None:
    oracle = Quadratic(condition=1e4)
    outcome = lbfgs(oracle, zeros(12), ignore, tol=1e-10, max_iter=1000)
    assert outcome.converged
    np.testing.assert_allclose(outcome.weights, oracle.c, atol=1e-8)


@settings(max_examples=100)
@given(st.integers(1, 8), st.integers(0, 10_000), st.floats(0, 3))
def test_the_proximal_step_is_the_subproblems_minimum(size: int, seed: int, threshold: float) -> None:
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(size, size))
    H, g, w = (
        root @ root.T + 0.1 * np.eye(size),
        rng.normal(size=size),
        rng.normal(size=size) * (rng.random(size) < 0.6),
    )
    thresholds = np.where(np.arange(size) == 0, 0.0, threshold)
    d = proximal_step(H, g, w, thresholds)
    slope, whole = g + H @ d, w + d
    inner = np.where(whole != 0, np.abs(slope + thresholds * np.sign(whole)), np.maximum(np.abs(slope) - thresholds, 0))
    assert inner.max() < 1e-6 * max(1.0, np.abs(g).max())


@settings(max_examples=200)
@given(st.floats(1e-4, 1e4), st.floats(1e-3, 1e3), st.floats(0.01, 100))
def test_a_step_along_a_convex_line_meets_the_wolfe_conditions(curvature: float, slope: float, first: float) -> None:
    def line(t: float) -> tuple[float, float]:
        return 0.5 * curvature * t * t - slope * t, curvature * t - slope

    step = wolfe(line, 0.0, -slope, noise=0.0, first=first)
    assert step is not None
    value, there = line(step)
    assert value <= -1e-4 * step * slope
    assert there >= 0.9 * -slope


def test_a_line_without_descent_gives_no_step() -> None:
    assert wolfe(lambda t: (1 + t, 1.0), 1.0, -1e-3, noise=0.0) is None


def test_a_wall_of_infinities_is_avoided() -> None:
    def line(t: float) -> tuple[float, float]:
        return (np.inf, np.inf) if t > 0.3 else (-t, -1.0 + 3 * t)

    step = wolfe(line, 0.0, -1.0, noise=0.0)
    assert step is not None
    assert 0 < step <= 0.3


@pytest.mark.parametrize("rule", ["sgd", "momentum", "adam"])
def test_descents_go_down_and_go_on_from_any_state(rule: Any) -> None:
    settings_ = Descent(rule=rule, epochs=30, learning_rate=0.05, schedule="cosine", tol=0.0)
    oracle = Quadratic(condition=5)
    states: list[bytes] = []
    whole = descend(oracle, zeros(12), lambda step, state: states.append(encode_state(state())), settings_)
    assert whole.loss < 0.05 * oracle.gradient(np.zeros(12))[0]
    assert whole.steps == len(states) == 300
    for state in states[::37]:
        again = descend(Quadratic(condition=5), decode_state(state), ignore, settings_)
        assert again.weights.tobytes() == whole.weights.tobytes()


def test_a_descent_stops_when_epochs_bring_nothing() -> None:
    outcome = descend(
        Quadratic(condition=2), zeros(12), ignore, Descent(epochs=500, learning_rate=0.3, schedule="constant")
    )
    assert outcome.reason == "tolerance"
    assert outcome.steps < 5000


def test_divergence_is_an_error_that_names_step_and_remedy() -> None:
    with pytest.raises(TrainingError, match=r"diverged at step \d+.*smaller learning_rate than 10"):
        descend(Quadratic(condition=100), zeros(12), ignore, Descent(learning_rate=10.0, schedule="constant"))


def test_schedules() -> None:
    assert rate("constant", 7, 10, first=0.5) == 0.5
    assert rate("inverse_scaling", 3, 10, first=1.0, power=0.5) == 0.5
    assert rate("linear", 5, 10, first=1.0) == 0.5
    assert rate("cosine", 5, 10, first=1.0) == pytest.approx(0.5)
    assert rate("cosine", 10, 10, first=1.0) == pytest.approx(0.0)
    assert [rate("constant", step, 10, first=1.0, warmup=4) for step in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]


def test_states_survive_the_trip_without_pickle() -> None:
    state = {
        "weights": np.arange(3.0),
        "s": np.zeros((2, 3)),
        "steps": np.int64(4),
        "history": [1.0, np.inf],
        "fine": True,
    }
    data = encode_state(state)
    assert data == encode_state(state)
    back = decode_state(data)
    np.testing.assert_array_equal(back.pop("weights"), [0, 1, 2])
    assert back.pop("s").shape == (2, 3)
    assert back == {"steps": 4, "history": [1.0, np.inf], "fine": True}
    assert json.loads(json.dumps(back["steps"])) == 4


class Sampled(Quadratic):
    """A quadratic whose sample is another one: near it, or misleading."""

    sample_stride = 8

    def __init__(self, error: float, l1: float = 0.0) -> None:
        super().__init__(condition=100, l1=l1)
        self.sample = Quadratic(condition=100, seed=1)
        self.sample.A = (1 - error) * self.A + error * self.sample.A
        self.sample.c = (1 - error) * self.c + error * self.sample.c
        self.whole_hessians = 0

    def gradient(self, weights: np.ndarray, *, fine: bool = True, stride: int = 1) -> tuple[float, np.ndarray]:
        return super().gradient(weights, fine=fine) if stride == 1 else self.sample.gradient(weights, fine=fine)

    def hessian(self, weights: np.ndarray, *, fine: bool = True, stride: int = 1) -> np.ndarray:
        self.whole_hessians += stride == 1
        return self.A if stride == 1 else self.sample.A


@pytest.mark.parametrize("l1", [0.0, 0.3])
def test_a_good_sample_spares_the_hessian_of_the_whole(l1: float) -> None:
    oracle = Sampled(0.001, l1)
    outcome = newton(oracle, zeros(12), ignore, tol=1e-9, max_iter=100)
    assert outcome.converged
    assert oracle.whole_hessians == 0
    exact = newton(Quadratic(condition=100, l1=l1), zeros(12), ignore, tol=1e-9, max_iter=100)
    np.testing.assert_allclose(outcome.weights, exact.weights, atol=1e-7)


@pytest.mark.parametrize(("tol", "fine"), [(1e-1, False), (1e-9, True)])
def test_newton_pays_for_fine_arithmetic_only_where_noise_would_show(tol: float, fine: bool) -> None:
    class Counted(Sampled):
        fine = 0

        def gradient(self, weights: np.ndarray, *, fine: bool = True, stride: int = 1) -> tuple[float, np.ndarray]:
            self.fine += fine
            return super().gradient(weights, fine=fine, stride=stride)

    oracle = Counted(0.001)
    assert newton(oracle, zeros(12), ignore, tol=tol, max_iter=100).converged
    assert bool(oracle.fine) == fine


@pytest.mark.parametrize("error", [0.5, 1.0])
def test_a_misleading_sample_costs_steps_but_not_the_optimum(error: float) -> None:
    oracle = Sampled(error)
    outcome = newton(oracle, zeros(12), ignore, tol=1e-9, max_iter=100)
    assert outcome.converged
    assert oracle.whole_hessians >= 1
    np.testing.assert_allclose(outcome.weights, oracle.c, atol=1e-7)
