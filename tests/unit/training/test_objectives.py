"""Losses, residuals and curvatures agree with each other and with the plain formulas, also far out."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit, logsumexp

from pipelines.training.objectives import Logistic, Loss, Multinomial, Squared

rng = np.random.default_rng(0)
Y2 = (rng.random(50) < 0.4).astype(np.float32)
Y3 = rng.integers(0, 3, 50).astype(np.float32)
YR = (rng.normal(size=50) * 3 + 10).astype(np.float32)
W = rng.random(50).astype(np.float32)
CASES = [(Logistic(), Y2), (Squared(10.0, 3.0), YR), (Multinomial(3), Y3)]
IDS = ["logistic", "squared", "multinomial"]


def total(loss: Loss, z: np.ndarray, y: np.ndarray, w: np.ndarray | None) -> float:
    return loss.evaluate(z.copy(), y, w)[0]


@pytest.mark.parametrize("weight", [None, W])
@pytest.mark.parametrize(("loss", "y"), CASES, ids=IDS)
def test_residuals_are_the_losses_derivative(loss: Loss, y: np.ndarray, weight: np.ndarray | None) -> None:
    z = rng.normal(size=(loss.outputs, 50)) * 2
    _, residuals = loss.evaluate(z.copy(), y, weight)
    h = 1e-6
    for output in range(loss.outputs):
        for row in (0, 17, 49):
            step = np.zeros_like(z)
            step[output, row] = h
            slope = (total(loss, z + step, y, weight) - total(loss, z - step, y, weight)) / (2 * h)
            assert residuals[output, row] == pytest.approx(slope, abs=1e-7)


@pytest.mark.parametrize("weight", [None, W])
@pytest.mark.parametrize(("loss", "y"), CASES[:2], ids=IDS[:2])
def test_curvatures_are_the_residuals_derivative(loss: Loss, y: np.ndarray, weight: np.ndarray | None) -> None:
    z, h = rng.normal(size=(1, 50)), 1e-6
    ahead, behind = (loss.evaluate(z + step, y, weight)[1] for step in (h, -h))
    np.testing.assert_allclose(loss.curvature(z, y, weight), (ahead - behind)[0] / (2 * h), atol=1e-6)


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


@pytest.mark.parametrize(("loss", "y"), CASES, ids=IDS)
def test_first_intercepts_are_the_best_without_features(loss: Loss, y: np.ndarray) -> None:
    shares = np.bincount(y.astype(int), minlength=3)[:3] / 50 if loss.outputs == 3 else np.array([y.mean()])
    z = np.repeat(loss.start(shares.astype(np.float64))[:, None], 50, axis=1)
    _, residuals = loss.evaluate(z, y, None)
    np.testing.assert_allclose(residuals.sum(axis=1), 0, atol=1e-4)
