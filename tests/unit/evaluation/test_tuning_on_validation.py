"""Calibration and threshold are chosen on validation only, and end up in the model."""

from dataclasses import replace

import numpy as np
import pytest
import sklearn.metrics as skm
from sklearn.isotonic import IsotonicRegression

from pipelines import codec
from pipelines.errors import DataError, GateNotMetError, SpecError
from pipelines.evaluation import EvaluateConfig, ModelRef, Tuning, evaluate, tune
from pipelines.model import save_model
from pipelines.storage import open_store


def run(case, tmp_path, **config):
    return tune(case.ref, case.data, EvaluateConfig(**config), client=None, scratch_url=str(tmp_path / "scratch"))


def with_tuning(case, tuning, name):
    store = open_store(case.ref.url)
    model = tuning.apply(case.model)
    return replace(case, model=model, ref=ModelRef(store.url, name, save_model(model, store, name)))


@pytest.mark.parametrize("method", ["sigmoid", "isotonic"])
def test_calibration_is_fitted_on_validation_and_makes_probabilities_come_true(make_case, tmp_path, method):
    case = make_case("late")
    tuning = run(case, tmp_path, calibrate=method, threshold="f1")
    assert codec.load(Tuning, codec.dump(tuning)) == tuning
    rows = case.rows("validation")
    assert tuning.rows == len(rows["y"])
    assert tuning.calibration.exact
    assert tuning.calibration.log_loss_before == pytest.approx(skm.log_loss(rows["y"], rows["scores"]), rel=1e-9)
    assert tuning.calibration.log_loss_after < tuning.calibration.log_loss_before

    tuned = with_tuning(case, tuning, method)
    ours = tuned.rows("validation")["scores"]
    assert tuning.calibration.log_loss_after == pytest.approx(skm.log_loss(rows["y"], ours), rel=1e-9)
    if method == "isotonic":
        theirs = IsotonicRegression(out_of_bounds="clip").fit(rows["scores"], rows["y"]).predict(rows["scores"])
        np.testing.assert_allclose(ours, theirs, atol=1e-12)
    before = evaluate(case.ref, case.data, EvaluateConfig(), client=None, scratch_url=str(tmp_path))
    after = evaluate(tuned.ref, case.data, EvaluateConfig(), client=None, scratch_url=str(tmp_path))
    for metric in ("ece", "brier", "log_loss"):
        assert after.value(metric, "test") < before.value(metric, "test")
    assert after.threshold == tuning.threshold.threshold
    # The recorded threshold is the best there is on the calibrated scores.
    best = max(skm.f1_score(rows["y"], ours >= t) for t in np.unique(ours)[::5])
    assert tuning.threshold.f1 >= best - 1e-12
    assert tuning.threshold.f1 == pytest.approx(skm.f1_score(rows["y"], ours >= tuning.threshold.threshold))


def test_weights_count(make_case, tmp_path):
    case = make_case("late", weight="weight")
    tuning = run(case, tmp_path, calibrate="isotonic", threshold="youden")
    rows = case.rows("validation")
    w, ours = rows["weight"], tuning.apply(case.model).calibrator.apply(rows["scores"])
    theirs = IsotonicRegression(out_of_bounds="clip").fit(rows["scores"], rows["y"], sample_weight=w)
    np.testing.assert_allclose(ours, theirs.predict(rows["scores"]), atol=1e-12)
    yes = ours >= tuning.threshold.threshold
    assert tuning.threshold.precision == pytest.approx(skm.precision_score(rows["y"], yes, sample_weight=w))
    assert tuning.threshold.accuracy == pytest.approx(skm.accuracy_score(rows["y"], yes, sample_weight=w))


def test_a_model_of_several_classes_gets_a_curve_for_each(make_case, tmp_path):
    case = make_case("kind")
    tuning = run(case, tmp_path, calibrate="sigmoid")
    assert len(tuning.calibrator.curves) == 3
    assert tuning.calibration.log_loss_after < tuning.calibration.log_loss_before
    tuned = with_tuning(case, tuning, "kinds")
    before = evaluate(case.ref, case.data, EvaluateConfig(), client=None, scratch_url=str(tmp_path))
    after = evaluate(tuned.ref, case.data, EvaluateConfig(), client=None, scratch_url=str(tmp_path))
    assert after.value("log_loss", "test") < before.value("log_loss", "test")


@pytest.mark.parametrize(("given", "expected"), [({}, None), ({"threshold": 0.0}, 0.0), ({"threshold": 0.3}, 0.3)])
def test_nothing_is_read_where_there_is_nothing_to_choose(make_case, tmp_path, given, expected):
    case = make_case("late")
    unread = replace(case.data, source=replace(case.data.source, root="/nowhere"))
    tuning = run(replace(case, data=unread), tmp_path, **given)
    assert (tuning.threshold.threshold if tuning.threshold else None) == expected
    assert tuning.rows == 0
    assert tuning.apply(case.model).threshold == expected


def test_a_floor_that_no_threshold_keeps_is_not_met(make_case, tmp_path):
    with pytest.raises(GateNotMetError, match="on validation"):
        run(make_case("late", wrong=True), tmp_path, threshold="precision>=0.99")


def test_rows_of_two_classes_are_needed(make_case, tmp_path):
    case = make_case("late")
    none = replace(case.data, split=replace(case.data.split, validation=0.0))
    with pytest.raises(DataError, match="two classes") as caught:
        run(replace(case, data=none), tmp_path, calibrate="sigmoid")
    assert "split.validation" in str(caught.value)


def test_regressions_are_not_tuned(make_case, tmp_path):
    with pytest.raises(SpecError, match="threshold"):
        run(make_case("delay"), tmp_path, threshold=0.5)
