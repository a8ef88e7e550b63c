"""What a spec asks of an evaluation is read strictly, and nothing undefined ever passes."""

import math

import pytest
from pydantic import ValidationError

from pipelines import codec
from pipelines.evaluation import (
    EvaluateConfig,
    Evaluation,
    Measures,
    PartEvaluation,
    check_gates,
    check_metrics,
    check_segments,
    compare,
)
from pipelines.evaluation.catalogue import metric
from pipelines.evaluation.config import parse_bound, parse_threshold


def evaluation(digest="rows", kind="binary", undefined=None, classes=(0, 1), **metrics):
    measures = Measures(10, 10.0, metrics, undefined or {})
    return Evaluation(kind, "model", {"test": PartEvaluation(measures, digest)}, classes)


@pytest.mark.parametrize(
    ("text", "value", "met"),
    [
        (">= 0.75", 0.75, True), (">=0.75", 0.7499, False), ("> 0.75", 0.75, False), ("<= 1e-3", 0.001, True),
        ("< -.5", -0.6, True), (">= 0.75", None, False), ("<= 0.75", math.nan, False),
    ],
)  # fmt: skip
def test_bounds(text, value, met):
    assert parse_bound(text).met_by(value) is met


@pytest.mark.parametrize(
    "text", ["0.75", 0.75, ">= ", "≥ 0.7", ">= 0.7 or so", "=> 0.7", "== 1", ">= inf", ">= nan", None, True]
)
def test_what_is_no_bound_is_refused(text):
    with pytest.raises(ValueError, match=r">= 0\.75"):
        parse_bound(text)


def test_requirements_read_the_test_part_unless_they_name_another():
    config = EvaluateConfig(require={"auc": ">=0.75", "brier": {"validation": "< 0.2", "test": "< .3"}})
    assert config.require == {"auc": {"test": ">= 0.75"}, "brier": {"validation": "< 0.2", "test": "< 0.3"}}
    assert codec.load(EvaluateConfig, codec.dump(config)) == config


@pytest.mark.parametrize(
    ("given", "at", "said"),
    [
        ({"metrics": ["auc", "roc_auc"]}, ("metrics", 1), "Did you mean auc?"),
        ({"metrics": ["log_los"]}, ("metrics", 0), "log_loss"),
        ({"metrics": ["pinball(1.5)"]}, ("metrics", 0), "between 0 and 1"),
        ({"metrics": ["tweedie_deviance(2)"]}, ("metrics", 0), "2 is gamma_deviance"),
        ({"metrics": ["mean_poisson_deviance"]}, ("metrics", 0), "Did you mean poisson_deviance"),
        ({"require": {"auk": ">= 1"}}, ("require", "auk", "[key]"), "auc"),
        ({"require": {"auc": 0.75}}, ("require", "auc", "test"), "'>= 0.75'"),
        ({"require": {"auc": {"train": ">= 1"}}}, ("require", "auc", "train", "[key]"), "test"),
        ({"threshold": "best"}, ("threshold",), "precision>=0.9"),
        ({"threshold": 1.5}, ("threshold",), "between 0 and 1"),
        ({"threshold": True}, ("threshold",), "not a threshold"),
        ({"calibrate": "platt"}, ("calibrate",), "sigmoid"),
        ({"segment": ["x"]}, ("segment",), "not permitted"),
    ],
)  # fmt: skip
def test_faults_have_their_place_and_their_fix(given, at, said):
    with pytest.raises(ValidationError) as caught:
        EvaluateConfig.model_validate(given)
    (fault,) = caught.value.errors()
    assert fault["loc"] == at
    assert said in fault["msg"]


def test_thresholds():
    assert parse_threshold(0).number == 0
    assert parse_threshold("precision >= 0.9").objective == "precision"
    with pytest.raises(ValueError, match="not a threshold"):
        parse_threshold("precision>=90")


def test_metrics_that_do_not_fit_the_label_are_faults():
    config = EvaluateConfig(metrics=["rmse", "auc"], require={"r2": ">= 0"}, threshold="f1", calibrate="sigmoid")
    assert [fault.path for fault in check_metrics(config, "binary")] == ["evaluate.metrics[0]", "evaluate.require.r2"]
    paths = [fault.path for fault in check_metrics(config, "regression")]
    assert paths == ["evaluate.metrics[1]", "evaluate.threshold", "evaluate.calibrate"]
    assert "auc" in check_metrics(config, "binary")[0].fix


def test_segments_are_columns_that_exist_once():
    config = EvaluateConfig(segments=["carier", "carrier", "carrier"])
    faults = check_segments(config, ["carrier", "month"])
    assert [fault.path for fault in faults] == ["evaluate.segments[0]", "evaluate.segments[2]"]
    assert "carrier" in faults[0].fix


def test_gates_hold_requirements_against_what_was_measured():
    config = EvaluateConfig(
        require={"auc": ">= 0.8", "brier": "<= 0.2", "f1": ">= 0", "accuracy": {"validation": ">= 0"}}
    )
    found = check_gates(config, evaluation(undefined={"f1": "no positive rows"}, auc=0.79, brier=0.2, f1=None))
    assert [(gate.metric, gate.met) for gate in found] == [
        ("auc", False), ("brier", True), ("f1", False), ("accuracy", False),
    ]  # fmt: skip
    assert str(found[0]) == "auc on test >= 0.8: not met, measured 0.79"
    assert found[2].reason == "no positive rows"
    assert found[3].reason == "validation was not evaluated"


@pytest.mark.parametrize(
    ("name", "candidate", "champion", "least", "better"),
    [
        ("auc", 0.81, 0.80, 0.0, True), ("auc", 0.80, 0.80, 0.0, False), ("auc", 0.805, 0.80, 0.01, False),
        ("log_loss", 0.50, 0.52, 0.0, True), ("log_loss", 0.52, 0.50, 0.0, False), ("rmse", 3.0, 4.0, 0.5, True),
    ],
)  # fmt: skip
def test_better_is_in_the_metrics_own_direction(name, candidate, champion, least, better):
    kind = "regression" if name == "rmse" else "binary"
    found = compare(
        evaluation(kind=kind, **{name: candidate}),
        evaluation(kind=kind, **{name: champion}),
        name,
        min_improvement=least,
    )
    assert found.better is better
    assert found.refused == ""
    assert found.improvement == pytest.approx(
        abs(candidate - champion) * (1 if better or "805" in str(candidate) else -1)
    )


@pytest.mark.parametrize(
    ("champion", "said"),
    [
        (evaluation(digest="other rows", auc=0.1), "different rows"),
        (evaluation(kind="regression", auc=0.1), "regression"),
        (evaluation(classes=("a", "b"), auc=0.1), "classes"),
        (evaluation(undefined={"auc": "one class"}, auc=None), "one class"),
        (evaluation(brier=0.1), "not measured"),
    ],
)
def test_what_cannot_be_compared_is_refused_and_never_better(champion, said):
    found = compare(evaluation(auc=0.9), champion, "auc")
    assert not found.better
    assert said in found.refused


def test_evaluations_go_through_json():
    found = evaluation(auc=0.5, f1=None, undefined={"f1": "no rows"})
    assert codec.load(Evaluation, codec.dump(found)) == found


def test_names_of_metrics_are_looked_up():
    assert metric("pinball(0.90)").name == "pinball(0.9)"
    assert metric("brier").higher_is_better is False
    with pytest.raises(ValueError, match="There are auc"):
        metric("zzz")
