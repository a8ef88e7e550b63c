"""Calibration curves equal scikit-learn's, and don't depend on how the scores are cut into chunks."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit, logit
from sklearn.calibration import _sigmoid_calibration
from sklearn.isotonic import IsotonicRegression
from sklearn.metrics import log_loss

from pipelines.evaluation import calibrating
from pipelines.evaluation.calibrating import fit_isotonic, fit_sigmoid, log_loss_of
from pipelines.evaluation.groups import Groups, as_groups, group_rows


def chunks(scores, positive, weight=None, pieces=1):
    whole = as_groups(*group_rows(scores, positive, weight))
    cuts = np.array_split(np.arange(len(whole)), pieces)
    return [Groups(whole.scores[c], whole.positive[c], whole.negative[c]) for c in cuts if len(c)]


def case(seed, n, digits, weighted):
    rng = np.random.default_rng(seed)
    scores = rng.random(n).round(digits)
    positive = rng.random(n) < expit(3 * scores - 2 + rng.standard_normal(n))
    positive[:2] = [True, False]
    return scores, positive, rng.uniform(0.1, 5, n) if weighted else None


CASES = {
    "seed": st.integers(0, 10_000), "n": st.integers(2, 200), "digits": st.sampled_from([1, 2, 15]),
    "weighted": st.booleans(), "pieces": st.integers(1, 7),
}  # fmt: skip


@given(**CASES)
def test_isotonic_curves_equal_sklearn(seed, n, digits, weighted, pieces):
    scores, positive, weight = case(seed, n, digits, weighted)
    found = fit_isotonic(chunks(scores, positive, weight, pieces))
    theirs = IsotonicRegression(out_of_bounds="clip", y_min=0, y_max=1).fit(scores, positive, sample_weight=weight)
    asked = np.concatenate([scores, np.linspace(-0.1, 1.1, 50)])
    np.testing.assert_allclose(found.curve.apply(asked), theirs.predict(asked), atol=1e-12)
    assert found.exact


def test_isotonic_steps_are_capped(monkeypatch):
    monkeypatch.setattr(calibrating, "BLOCKS", 16)
    scores = np.linspace(0, 1, 500)
    stream = [Groups(s[::-1], (100 * s[::-1]).round().astype(np.int64), np.full(len(s), 50)) for s in
              np.array_split(scores, 10)[::-1]]  # fmt: skip
    found = fit_isotonic(stream)
    assert not found.exact
    assert found.groups <= 16
    whole = fit_isotonic([Groups(scores[::-1], (100 * scores[::-1]).round().astype(np.int64), np.full(500, 50))])
    # A step of 16 covers the sixteenth part of a curve that rises by 2/3.
    np.testing.assert_allclose(found.curve.apply(scores), whole.curve.apply(scores), atol=2 / 3 / 4)


def sklearn_sigmoid(scores, positive, weight):
    # On log-odds, with A = -slope and B = -intercept.
    a, b = _sigmoid_calibration(logit(np.clip(scores, 1e-12, 1 - 1e-12)), positive.astype(float), weight)
    return -a, -b


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_sigmoid_curves_equal_sklearn(seed, weighted):
    rng = np.random.default_rng(seed)
    odds = rng.standard_normal(3000)
    scores, positive = expit(odds), rng.random(3000) < expit(0.6 * odds - 1)
    weight = rng.uniform(0.1, 5, 3000) if weighted else None
    total = np.ones(3000) if weight is None else weight
    weights = {"positive": total[positive].sum(), "negative": total[~positive].sum()}
    found = fit_sigmoid(chunks(scores, positive, weight, 3), records=3000, **weights)
    assert found.exact
    slope, intercept = sklearn_sigmoid(scores, positive, weight)
    # Both minimise the same convex loss: scikit-learn stops at a gradient of 1e-6, Newton at the optimum.
    theirs = expit(slope * odds + intercept)
    np.testing.assert_allclose(found.curve.apply(scores), theirs, atol=1e-6)


def test_a_sigmoid_on_grouped_neighbours_is_nearly_the_exact_one(monkeypatch):
    rng = np.random.default_rng(0)
    odds = 3 * rng.standard_normal(20_000)
    scores, positive = expit(odds), rng.random(20_000) < expit(0.5 * odds)
    weights = {"positive": float(positive.sum()), "negative": float((~positive).sum())}
    exact = fit_sigmoid(chunks(scores, positive), records=20_000, **weights)
    monkeypatch.setattr(calibrating, "GROUPS", 1000)
    coarse = fit_sigmoid(chunks(scores, positive, pieces=5), records=20_000, **weights)
    assert not coarse.exact
    assert coarse.groups <= 1010
    # Within a thousandth of the rows log-odds differ by some 0.01, and the curve is linear to the second order there.
    np.testing.assert_allclose(coarse.curve.apply(scores), exact.curve.apply(scores), atol=1e-4)


def test_a_model_that_ranks_the_wrong_way_round_is_not_turned_over():
    rng = np.random.default_rng(2)
    scores = rng.random(500)
    positive = rng.random(500) < 1 - scores
    found = fit_sigmoid(
        chunks(scores, positive), positive=float(positive.sum()), negative=float((~positive).sum()), records=500
    )
    assert found.curve.slope == 0
    np.testing.assert_allclose(found.curve.apply(scores), positive.mean(), atol=5e-3)  # Platt's priors shrink it
    np.testing.assert_allclose(fit_isotonic(chunks(scores, positive)).curve.apply(scores).std(), 0, atol=0.05)


def test_scores_that_are_all_the_same_calibrate_to_the_share():
    scores, positive = np.full(400, 0.2), np.arange(400) < 100
    found = fit_sigmoid(chunks(scores, positive), positive=100.0, negative=300.0, records=1)
    np.testing.assert_allclose(found.curve.apply(scores), 0.25, atol=5e-3)
    np.testing.assert_allclose(fit_isotonic(chunks(scores, positive)).curve.apply(scores), 0.25)


def test_extreme_scores_are_clipped():
    scores, positive = np.array([0.0, 1.0, 1.0, 0.0, 0.5]), np.array([False, True, True, True, False])
    found = fit_sigmoid(chunks(scores, positive), positive=3.0, negative=2.0, records=5)
    assert np.isfinite([found.curve.slope, found.curve.intercept]).all()


@given(**CASES)
@settings(max_examples=40)
def test_log_loss_of_groups_equals_sklearn(seed, n, digits, weighted, pieces):
    scores, positive, weight = case(seed, n, digits, weighted)
    total = n if weight is None else weight.sum()
    found = sum(log_loss_of(chunk) for chunk in chunks(scores, positive, weight, pieces)) / total
    assert found == pytest.approx(log_loss(positive, scores, sample_weight=weight, labels=[0, 1]), rel=1e-9)
