"""Do calibration curves map scores as their formulas say, whatever the batch?"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit, logit

from pipelines import codec
from pipelines.errors import UsageError
from pipelines.model import Calibrator, IsotonicCurve, SigmoidCurve

probabilities = st.lists(st.floats(0, 1), min_size=1, max_size=50).map(np.array)
knots = st.lists(st.floats(0, 1), min_size=1, max_size=20, unique=True).map(sorted)
sigmoids = st.builds(SigmoidCurve, st.floats(0.1, 5), st.floats(-3, 3))
isotonics = knots.map(lambda x: IsotonicCurve(tuple(x), tuple(np.linspace(0, 1, len(x)).tolist())))


def test_a_sigmoid_of_slope_one_changes_nothing():
    scores = np.linspace(0.001, 0.999, 97)
    # a logit and its inverse: a few units in the last place
    np.testing.assert_allclose(SigmoidCurve(1.0, 0.0).apply(scores), scores, rtol=1e-13)


def test_a_sigmoid_is_linear_in_the_log_odds():
    scores = np.array([0.2, 0.5, 0.7])
    np.testing.assert_array_equal(SigmoidCurve(2.0, -1.0).apply(scores), expit(2.0 * logit(scores) - 1.0))


def test_certain_scores_stay_finite():
    assert SigmoidCurve(1.0, 0.0).apply(np.array([0.0, 1.0])) == pytest.approx([0.0, 1.0], abs=1e-11)


def test_isotonic_is_linear_between_knots_and_flat_outside():
    curve = IsotonicCurve((0.2, 0.4, 0.8), (0.1, 0.3, 0.9))
    np.testing.assert_allclose(curve.apply(np.array([0.0, 0.2, 0.3, 0.6, 1.0])), [0.1, 0.1, 0.2, 0.6, 0.9])


@pytest.mark.parametrize(
    ("x", "y"), [((), ()), ((0.1,), (0.1, 0.2)), ((0.2, 0.2), (0.0, 1.0)), ((0.2, 0.1), (0.0, 1.0))]
)
def test_knots_that_are_no_curve_are_refused(x, y):
    with pytest.raises(UsageError, match="strictly increasing"):
        IsotonicCurve(x, y)


@given(probabilities, st.one_of(sigmoids, isotonics))
def test_each_score_is_mapped_by_itself_and_order_is_kept(scores, curve):
    whole = curve.apply(scores)
    assert np.concatenate([curve.apply(scores[i : i + 1]) for i in range(len(scores))]).tobytes() == whole.tobytes()
    order = np.argsort(scores, kind="stable")
    assert (np.diff(whole[order]) >= -1e-15).all()
    assert ((whole >= 0) & (whole <= 1)).all()


@given(st.lists(st.one_of(sigmoids, isotonics), min_size=1, max_size=4))
def test_calibrators_go_through_json(curves):
    calibrator = Calibrator(tuple(curves))
    assert codec.load(Calibrator, codec.dump(calibrator)) == calibrator


def test_several_classes_sum_to_one_row_by_row():
    random = np.random.default_rng(0)
    scores = random.dirichlet([1, 1, 1], 200)
    calibrator = Calibrator((SigmoidCurve(2.0, 0.1), SigmoidCurve(0.5, 0.0), SigmoidCurve(1.0, -1.0)))
    mapped = calibrator.apply(scores)
    np.testing.assert_allclose(mapped.sum(axis=1), 1, rtol=1e-14)
    assert np.concatenate([calibrator.apply(scores[i : i + 1]) for i in range(200)]).tobytes() == mapped.tobytes()


def test_classes_that_are_all_impossible_become_equally_likely():
    zero = IsotonicCurve((0.5,), (0.0,))
    assert Calibrator((zero, zero)).apply(np.array([[0.3, 0.7]])).tolist() == [[0.5, 0.5]]


def test_not_a_number_stays_so():
    assert np.isnan(SigmoidCurve(1.0, 0.0).apply(np.array([np.nan]))).all()
    assert np.isnan(IsotonicCurve((0.1, 0.2), (0.1, 0.2)).apply(np.array([np.nan]))).all()
    pair = Calibrator((SigmoidCurve(1.0, 0.0), SigmoidCurve(1.0, 0.0)))
    assert np.isnan(pair.apply(np.array([[np.nan, 0.5]]))).all()


def test_curves_must_fit_the_model(models):
    with pytest.raises(UsageError, match="expected 3 curves"):
        models["xgboost multiclass"].with_calibration(Calibrator((SigmoidCurve(1.0, 0.0),) * 2))
    with pytest.raises(UsageError, match="no probabilities"):
        models["linear regression"].with_calibration(Calibrator((SigmoidCurve(1.0, 0.0),)))


def test_calibration_moves_scores_and_not_their_order(models, make):
    model, table = models["xgboost binary"], make.rows(200)
    calibrated = model.with_calibration(Calibrator((SigmoidCurve(0.5, 0.3),)))
    assert not np.array_equal(calibrated.scores(table), model.scores(table))
    order = np.argsort(model.scores(table), kind="stable")
    assert (np.diff(calibrated.scores(table)[order]) >= 0).all()
