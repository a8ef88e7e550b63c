"""Losses, residuals and curvatures agree with each other and with the plain formulas, also far out."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy.special import expit, logsumexp
from sklearn.metrics import hinge_loss, mean_pinball_loss, mean_tweedie_deviance

from pipelines.training.margin_losses import Hinge, SquaredHinge
from pipelines.training.objectives import Logistic, Loss, Multinomial, Sharpening
from pipelines.training.positive_losses import FARTHEST, Gamma, Poisson, Tweedie
from pipelines.training.value_losses import Huber, Quantile, Several, Squared

rng = np.random.default_rng(0)
Y2 = (rng.random(50) < 0.4).astype(np.float32)
Y3 = rng.integers(0, 3, 50).astype(np.float32)
YR = (rng.normal(size=50) * 3 + 10).astype(np.float32)
YC = rng.poisson(1.5, 50).astype(np.float32)
YP = rng.gamma(2.0, 3.0, 50).astype(np.float32)
W = rng.random(50).astype(np.float32)
CASES: dict[str, tuple[Loss, np.ndarray]] = {
    "logistic": (Logistic(), Y2),
    "multinomial": (Multinomial(3), Y3),
    "squared": (Squared(10.0, 3.0), YR),
    "huber": (Huber(10.0, 3.0, 0.7), YR),
    "quantile, sharp": (Quantile(10.0, 3.0, 0.9), YR),
    "quantile, smooth": (Quantile(10.0, 3.0, 0.9, width=0.3), YR),
    "poisson": (Poisson(1.5), YC),
    "gamma": (Gamma(6.0), YP),
    "tweedie": (Tweedie(1.5, 1.3), YC),
    "squared hinge": (SquaredHinge(), Y2),
    "squared hinge, three classes": (SquaredHinge(3), Y3),
    "hinge, sharp": (Hinge(), Y2),
    "hinge, smooth": (Hinge(0.2), Y2),
    "hinge, three classes": (Hinge(0.2, 3), Y3),
    "two values": (Several((Squared(10.0, 3.0), Huber(0.0, 2.0))), np.stack([YR, YP], axis=1)),
    "two counts": (Several((Poisson(1.5), Poisson(6.0))), np.stack([YC, YP], axis=1)),
}
every = pytest.mark.parametrize(("loss", "y"), CASES.values(), ids=CASES)
CURVED = {name: case for name, case in CASES.items() if case[0].curved}
every_curved = pytest.mark.parametrize(("loss", "y"), CURVED.values(), ids=CURVED)


def total(loss: Loss, z: np.ndarray, y: np.ndarray, w: np.ndarray | None) -> float:
    return loss.evaluate(z.copy(), y, w)[0]


def away_from_kinks(loss: Loss, y: np.ndarray) -> np.ndarray:
    """Scores where no row lies within 1e-3 of a kink of any of the losses above (of value, slope or curvature)."""
    z = np.random.default_rng(1).normal(size=(loss.outputs, 50)) * 2
    for label in [(YR - 10) / 3, YP / 2]:
        for kink in (0.0, 0.7, -0.7, 1.35, -1.35):
            z = np.where(np.abs(z - label - kink) < 1e-3, z + 5e-3, z)
    return np.where(np.abs(np.abs(z) - 1) < 1e-3, z + 5e-3, z)


@pytest.mark.parametrize("weight", [None, W])
@every
def test_residuals_are_the_losses_derivative(loss: Loss, y: np.ndarray, weight: np.ndarray | None) -> None:
    z = away_from_kinks(loss, y)
    _, residuals = loss.evaluate(z.copy(), y, weight)
    assert residuals.shape == z.shape
    h = 1e-6
    for output in range(loss.outputs):
        for row in (0, 17, 49):
            step = np.zeros_like(z)
            step[output, row] = h
            slope = (total(loss, z + step, y, weight) - total(loss, z - step, y, weight)) / (2 * h)
            # Central differences of sums of some 1e3 in float64: 1e3 · 2e-16 / 1e-6, and some margin.
            assert residuals[output, row] == pytest.approx(slope, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("weight", [None, W])
@every_curved
def test_curvatures_are_the_residuals_derivative(loss: Loss, y: np.ndarray, weight: np.ndarray | None) -> None:
    z, h = away_from_kinks(loss, y), 1e-6
    ahead, behind = (loss.evaluate(z + step, y, weight)[1] for step in (h, -h))
    kept = z.copy()
    found = loss.curvature(z, y, weight)
    assert found.shape == z.shape
    np.testing.assert_allclose(found, (ahead - behind) / (2 * h), rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(z, kept, "curvature leaves the scores as they are")


@every
def test_a_weight_is_so_many_rows(loss: Loss, y: np.ndarray) -> None:
    z = away_from_kinks(loss, y)
    twice = np.where(np.arange(50) % 2, 2, 1)
    weighted = loss.evaluate(z.copy(), y, twice.astype(np.float32))
    repeated = loss.evaluate(np.repeat(z, twice, axis=1), np.repeat(y, twice, axis=0), None)
    assert weighted[0] == pytest.approx(repeated[0], rel=1e-12)
    np.testing.assert_allclose(weighted[1].sum(axis=1), repeated[1].sum(axis=1), atol=1e-10)


@every
def test_coarse_arithmetic_is_near_to_fine(loss: Loss, y: np.ndarray) -> None:
    z = away_from_kinks(loss, y)
    fine, coarse = loss.evaluate(z.copy(), y, W), loss.evaluate(z.astype(np.float32), y, W)
    assert coarse[1].dtype == np.float32
    # float32's 6e-8 of the scores, times the steepest exponential among them.
    assert coarse[0] == pytest.approx(fine[0], rel=3e-6)
    np.testing.assert_allclose(coarse[1], fine[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_logistic_loss_is_right_and_finite_far_out(dtype: type) -> None:
    z = np.array([[-1e4, -90, -30, -1, 0, 1, 30, 90, 1e4]], dtype)
    for label in (0.0, 1.0):
        y = np.full(9, label, np.float32)
        loss, residuals = Logistic().evaluate(z.copy(), y, None)
        exact = np.logaddexp(0, z[0].astype(np.float64)) - label * z[0].astype(np.float64)
        assert loss == pytest.approx(exact.sum(), rel=1e-6)
        np.testing.assert_allclose(residuals[0], expit(z[0].astype(np.float64)) - label, atol=1e-7)
        assert np.isfinite(Logistic().curvature(z, y, None)).all()


def test_the_softmax_loss_is_right_and_finite_far_out() -> None:
    z = rng.normal(size=(3, 50)) * 500
    loss, residuals = Multinomial(3).evaluate(z.copy(), Y3, None)
    exact = logsumexp(z, axis=0) - z[Y3.astype(int), np.arange(50)]
    assert loss == pytest.approx(exact.sum(), rel=1e-12)
    np.testing.assert_allclose(residuals.sum(axis=0), 0, atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("make", [Poisson, Gamma, Tweedie])
def test_exponentials_far_out_are_large_finite_and_lead_back(make: Callable[[float], Loss], dtype: type) -> None:
    far = np.array([-1e6, -300, -FARTHEST, FARTHEST, 300, 1e6], dtype)
    y = np.full(6, 2.0, np.float32)
    loss, residuals = make(1.0).evaluate(far[None].copy(), y, W[:6])
    assert np.isfinite(loss)
    assert np.isfinite(residuals).all()
    assert (np.sign(residuals[0]) == np.sign(far)).all()
    assert np.isfinite(make(1.0).curvature(far[None], y, None)).all()
    values = [total(make(1.0), np.array([[z]], dtype), y[:1], None) for z in far[3:]]
    assert values == sorted(values), "further away is worse"


@pytest.mark.parametrize(
    ("loss", "y", "power"), [(Poisson(1.5), YC, 1), (Gamma(6.0), YP, 2), (Tweedie(2.5, 1.3), YC, 1.3)]
)
def test_half_the_deviance_is_scikit_learns(loss: Loss, y: np.ndarray, power: float) -> None:
    z = rng.normal(size=(1, 50))
    predicted = np.exp(z[0] + loss.units.shift)
    expected = 0.5 * mean_tweedie_deviance(y, predicted, sample_weight=W, power=power)
    assert loss.units.unit * total(loss, z, y, W) / W.sum(dtype=float) == pytest.approx(expected, rel=1e-6)


def test_pinball_and_hinge_are_scikit_learns() -> None:
    z = rng.normal(size=(1, 50))
    loss = Quantile(10.0, 3.0, 0.9)
    expected = mean_pinball_loss(YR, 3 * z[0] + 10, sample_weight=W, alpha=0.9)
    assert loss.units.unit * total(loss, z, YR, W) / W.sum(dtype=float) == pytest.approx(expected, rel=1e-6)
    expected = hinge_loss(Y2, z[0], sample_weight=W)
    assert total(Hinge(), z, Y2, W) / W.sum(dtype=float) == pytest.approx(expected, rel=1e-6)


def test_huber_is_squared_near_and_linear_far() -> None:
    z, y = np.array([[0.5, -1.0, 5.0, -7.0]]), np.zeros(4, np.float32)
    loss, residuals = Huber(0.0, 1.0, 2.0).evaluate(z.copy(), y, None)
    assert loss == pytest.approx(0.125 + 0.5 + (2 * 5 - 2) + (2 * 7 - 2))
    np.testing.assert_allclose(residuals[0], [0.5, -1.0, 2.0, -2.0])


@pytest.mark.parametrize(("loss", "y"), [(Quantile(10.0, 3.0, 0.8), YR), (Hinge(), Y2)])
def test_smoothing_errs_by_less_than_half_a_width_and_ends_sharp(loss: Loss, y: np.ndarray) -> None:
    assert isinstance(loss, Sharpening)
    z = rng.normal(size=(1, 50))
    sharp = total(loss, z, y, None)
    for width in loss.widths:
        smooth = total(loss.sharpened(width), z, y, None)
        assert 0 <= smooth - sharp <= 50 * width / 2
    assert total(loss.sharpened(0.0), z, y, None) == sharp
    at_kink = np.array([[(YR[0] - 10.0) / 3]]) if y is YR else np.array([[2 * Y2[0] - 1]])
    assert np.isfinite(loss.evaluate(at_kink.astype(np.float64), y[:1], None)[1]).all()


@pytest.mark.parametrize(
    "name",
    ["logistic", "multinomial", "squared", "poisson", "gamma", "tweedie", "two values", "two counts"],
)
def test_first_intercepts_are_the_best_without_features(name: str) -> None:
    loss, y = CASES[name]
    if name == "two values":
        loss = Several((Squared(10.0, 3.0), Squared(0.0, 2.0)))
    mean = np.bincount(y.astype(int), minlength=3)[:3] / 50 if name == "multinomial" else y.mean(axis=0, dtype=float)
    z = np.repeat(loss.start(np.atleast_1d(mean))[:, None], 50, axis=1)
    _, residuals = loss.evaluate(z, y, None)
    np.testing.assert_allclose(residuals.sum(axis=1), 0, atol=1e-4)
