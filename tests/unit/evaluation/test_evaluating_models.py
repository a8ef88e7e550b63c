"""Evaluating a saved model on shards gives what scikit-learn gives on all its predictions at once."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import sklearn.metrics as skm

from pipelines import codec
from pipelines.errors import DataError, SpecError, UsageError
from pipelines.evaluation import EvaluateConfig, Evaluation, compare, evaluate


def run(case, tmp_path, config=None, **options):
    return evaluate(
        case.ref, case.data, config or EvaluateConfig(), client=None, scratch_url=str(tmp_path / "scratch"), **options
    )


@pytest.mark.parametrize("weight", [None, "weight"])
@pytest.mark.parametrize("part", ["validation", "test"])
def test_a_binary_model_measures_as_with_sklearn(make_case, tmp_path, part, weight):
    case = make_case("late", weight=weight)
    metrics = ["auc", "average_precision", "log_loss", "brier", "accuracy", "precision", "recall", "f1"]
    found = run(case, tmp_path, EvaluateConfig(metrics=metrics)).parts[part]
    rows = case.rows(part)
    y, p, w = rows["y"], rows["scores"], rows["weight"] if weight else None
    yes = p >= 0.5
    expected = {
        "auc": skm.roc_auc_score(y, p, sample_weight=w),
        "average_precision": skm.average_precision_score(y, p, sample_weight=w),
        "log_loss": skm.log_loss(y, p, sample_weight=w),
        "brier": skm.brier_score_loss(y, p, sample_weight=w),
        "accuracy": skm.accuracy_score(y, yes, sample_weight=w),
        "precision": skm.precision_score(y, yes, sample_weight=w),
        "recall": skm.recall_score(y, yes, sample_weight=w),
        "f1": skm.f1_score(y, yes, sample_weight=w),
    }
    assert found.measures.metrics == pytest.approx(expected, abs=1e-12)
    kept = len(y) if w is None else int((w > 0).sum())
    assert found.measures.rows == kept
    assert found.measures.weight == pytest.approx(kept if w is None else w.sum())
    assert found.unlabelled > 0
    assert found.baseline["auc"] == 0.5
    assert found.baseline["log_loss"] > found.measures.metrics["log_loss"]
    assert np.sum(found.confusion) == pytest.approx(found.measures.weight)
    assert sum(each.rows for each in found.calibration) == kept


def test_a_regression_measures_as_with_sklearn(make_case, tmp_path):
    case = make_case("delay")
    found = run(case, tmp_path, EvaluateConfig(metrics=["rmse", "mae", "r2", "pinball(0.9)"])).parts["test"]
    rows = case.rows("test")
    y, p = rows["delay"], rows["scores"]
    expected = {
        "rmse": skm.root_mean_squared_error(y, p),
        "mae": skm.mean_absolute_error(y, p),
        "r2": skm.r2_score(y, p),
        "pinball(0.9)": skm.mean_pinball_loss(y, p, alpha=0.9),
    }
    assert found.measures.metrics == pytest.approx(expected, rel=1e-12)
    assert found.baseline["r2"] <= 0 < found.measures.metrics["r2"]
    assert found.intervals["rmse"].low < expected["rmse"] < found.intervals["rmse"].high


def test_a_model_of_several_classes_measures_as_with_sklearn(make_case, tmp_path):
    case = make_case("kind", weight="weight")
    found = run(case, tmp_path).parts["test"]
    rows = case.rows("test")
    y, p, w = rows["y"].astype(int), rows["scores"], rows["weight"]
    onehot = np.eye(3)[y]
    expected = {
        "auc": np.mean([skm.roc_auc_score(onehot[:, k], p[:, k], sample_weight=w) for k in range(3)]),
        "log_loss": skm.log_loss(y, p, sample_weight=w),
        "brier": np.average(((onehot - p) ** 2).sum(axis=1), weights=w),
        "accuracy": skm.accuracy_score(y, p.argmax(axis=1), sample_weight=w),
        "f1": skm.f1_score(y, p.argmax(axis=1), sample_weight=w, average="macro"),
    }
    assert found.measures.metrics == pytest.approx(expected, abs=1e-12)


def test_segments_have_the_same_metrics_in_the_same_pass(make_case, tmp_path):
    case = make_case("late", shards=3)
    config = EvaluateConfig(metrics=["auc", "log_loss"], segments=["carrier", "day", "flight"], max_segments=3)
    found = run(case, tmp_path, config).parts["test"]
    carrier, day, flight = found.segments
    rows = case.rows("test")
    y, p = rows["y"], rows["scores"]
    most = [value for value, _ in Counter(rows["carrier"].tolist()).most_common(3)]
    assert [segment.value for segment in carrier.segments] == most
    for segment in carrier.segments:
        here = rows["carrier"] == segment.value
        expected = {"auc": skm.roc_auc_score(y[here], p[here]), "log_loss": skm.log_loss(y[here], p[here])}
        assert segment.measures.metrics == pytest.approx(expected, abs=1e-12)
        assert segment.measures.rows == here.sum()
        assert segment.small == (here.sum() < 100)
    assert carrier.left_out_values == 1
    assert carrier.left_out_rows == sum(value is None for value in rows["carrier"])
    assert all(segment.small for segment in day.segments)
    assert day.left_out_values == len(set(rows["day"].tolist())) - 3
    assert flight.segments == ()
    assert "1000" in flight.note


def test_null_is_a_segment_and_one_class_is_no_error(make_case, tmp_path):
    case = make_case("late", shards=2)
    config = EvaluateConfig(metrics=["auc", "accuracy"], segments=["carrier", "plane"], max_segments=1000)
    found = run(case, tmp_path, config).parts["test"]
    carrier, plane = found.segments
    assert None in [segment.value for segment in carrier.segments]
    undefined = [segment for segment in plane.segments if segment.measures.metrics["auc"] is None]
    assert undefined
    assert all(segment.measures.undefined["auc"] == "all rows have the same label" for segment in undefined)
    assert all(segment.measures.metrics["accuracy"] is not None for segment in plane.segments)


def test_the_cut_into_shards_does_not_show(make_case, tmp_path):
    config = EvaluateConfig(metrics=["auc", "average_precision", "log_loss", "ece"], segments=["carrier"])
    one, many = (run(make_case("late", shards=n), tmp_path, config) for n in (1, 40))
    assert codec.dump(one) == codec.dump(many)


def test_results_go_through_json(make_case, tmp_path):
    for label in ("late", "delay", "kind"):
        found = run(make_case(label), tmp_path, EvaluateConfig(segments=["carrier"]))
        assert codec.load(Evaluation, codec.dump(found)) == found


def test_required_and_deciding_metrics_are_measured_too(make_case, tmp_path):
    config = EvaluateConfig(metrics=["brier"], require={"auc": ">= 0.5"})
    found = run(make_case("late"), tmp_path, config, also=["f1"])
    assert list(found.parts["test"].measures.metrics) == ["brier", "auc", "f1"]


def test_candidates_and_champions_compare_on_the_same_rows(make_case, tmp_path):
    good, bad = make_case("late"), make_case("late", wrong=True)
    ours, theirs = run(good, tmp_path), run(bad, tmp_path)
    assert compare(ours, theirs, "auc").better
    assert not compare(theirs, ours, "log_loss").better
    weighted = run(make_case("late", weight="weight"), tmp_path)
    assert "different rows" in compare(ours, weighted, "auc").refused


def test_scratch_is_empty_afterwards_also_after_a_failure(make_case, tmp_path, monkeypatch):
    case = make_case("late")
    run(case, tmp_path)
    assert list((tmp_path / "scratch").iterdir()) == []

    def interrupted(progress):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(case, tmp_path, on_done=interrupted)
    assert list((tmp_path / "scratch").iterdir()) == []


def test_a_model_without_scores_for_some_rows_is_an_error(make_case, tmp_path):
    # A linear predictor gives NaN where a feature is missing and not imputed.
    case = make_case("late", features=("x1", "gappy"))
    with pytest.raises(DataError, match="gives no score") as caught:
        run(case, tmp_path)
    assert "part-0.parquet" in str(caught.value)


def test_bad_weights_are_an_error(make_case, tmp_path):
    with pytest.raises(DataError, match="sample weights") as caught:
        run(make_case("late", weight="x1"), tmp_path)
    assert "column x1" in str(caught.value)
    with pytest.raises(DataError, match="sample weights"):
        run(make_case("late", weight="delay"), tmp_path)


def test_null_labels_fail_where_the_spec_says_so(make_case, tmp_path):
    case = make_case("late")
    data = replace(case.data, target=replace(case.data.target, on_null="fail"))
    with pytest.raises(DataError, match="label is null"):
        run(replace(case, data=data), tmp_path)


def test_a_model_of_another_label_is_refused(make_case, tmp_path):
    with pytest.raises(UsageError, match="does not predict") as caught:
        run(replace(make_case("late"), data=make_case("kind").data), tmp_path)
    assert "early" in str(caught.value)


def test_a_config_that_does_not_fit_is_refused_before_anything_is_read(make_case, tmp_path):
    with pytest.raises(SpecError, match=r"evaluate.metrics\[0\]"):
        run(make_case("late"), tmp_path, EvaluateConfig(metrics=["rmse"]))


def test_a_part_without_rows_is_no_error(make_case, tmp_path):
    case = make_case("late")
    data = replace(case.data, split=replace(case.data.split, validation=0.0))
    found = run(replace(case, data=data), tmp_path, EvaluateConfig(segments=["carrier"])).parts["validation"]
    assert found.measures.rows == 0
    assert found.measures.undefined["auc"] == "there are no rows"
