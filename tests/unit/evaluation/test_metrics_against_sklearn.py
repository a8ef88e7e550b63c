"""Every metric equals scikit-learn's on the same predictions, with ties and weights, in any partition of the rows."""

import dataclasses
import math
import warnings

import numpy as np
import pytest
import sklearn.metrics as skm
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.calibration import calibration_curve as sk_calibration_curve

from pipelines.evaluation import measure as m
from pipelines.evaluation.baseline import baseline
from pipelines.evaluation.catalogue import names_for
from pipelines.evaluation.deviance import powers_of
from pipelines.evaluation.groups import as_groups, combine, group_rows
from pipelines.evaluation.ranks import rank
from pipelines.evaluation.state import State
from pipelines.evaluation.terms import Question, Rows

SETTINGS = settings(max_examples=30)  # scikit-learn takes a millisecond for each metric
TOLERANCE = 1e-9  # what is promised; what is seen is some 1e-15


def tally(question: Question, rows: Rows, cuts=()) -> m.Tally:
    """Measure rows in pieces, merged as shards are."""
    state = State()
    pieces = [piece for piece in np.split(np.arange(len(rows)), sorted(cuts)) if len(piece)]
    for piece in pieces:
        other = State()
        weight = None if rows.weight is None else rows.weight[piece]
        other.update(question, Rows(rows.y[piece], rows.scores[piece], weight), {})
        state.merge(other)
    ranks = () if question.kind == "regression" or not pieces else ranked(rows, pieces)
    return m.Tally(question.kind, tuple(range(question.classes)), state.rows, state.sums, ranks)


def ranked(rows: Rows, pieces):
    columns = [(rows.scores, rows.y == 1)] if rows.scores.ndim == 1 else [
        (rows.scores[:, k], rows.y == k) for k in range(rows.scores.shape[1])
    ]  # fmt: skip
    found = []
    for scores, positive in columns:
        grouped = [group_rows(scores[p], positive[p], None if rows.weight is None else rows.weight[p]) for p in pieces]
        found.append(rank([as_groups(*combine(*(np.concatenate([g[i] for g in grouped]) for i in range(3))))]))
    return tuple(found)


def check(found, expected):
    assert set(expected) <= set(found.metrics), "a metric is missing"
    for name, value in expected.items():
        if math.isnan(value):
            assert found.metrics[name] is None, name
            assert found.undefined[name]
        else:
            assert found.metrics[name] == pytest.approx(value, rel=TOLERANCE, abs=TOLERANCE), name


def quiet(function, *args, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(function(*args, **kwargs))


def binary_by_sklearn(y, p, w, threshold):
    yes = (p >= threshold).astype(int)
    both = len(set(y.tolist())) == 2
    return {
        "log_loss": quiet(skm.log_loss, y, p, sample_weight=w, labels=[0, 1]),
        "brier": quiet(skm.brier_score_loss, y, p, sample_weight=w, pos_label=1),
        "accuracy": quiet(skm.accuracy_score, y, yes, sample_weight=w),
        "balanced_accuracy": quiet(skm.balanced_accuracy_score, y, yes, sample_weight=w),
        "precision": quiet(skm.precision_score, y, yes, sample_weight=w, zero_division=np.nan),
        "recall": quiet(skm.recall_score, y, yes, sample_weight=w, zero_division=np.nan),
        "f1": quiet(skm.f1_score, y, yes, sample_weight=w, zero_division=np.nan),
        "auc": quiet(skm.roc_auc_score, y, p, sample_weight=w) if both else math.nan,
        "average_precision": quiet(skm.average_precision_score, y, p, sample_weight=w) if 1 in y else math.nan,
    }


# Few distinct scores make ties; 0 and 1 are where the log loss is clipped and bins end.
SCORES = st.one_of(st.sampled_from([0.0, 0.1, 0.3, 0.5, 0.9, 1.0]), st.floats(0, 1))
WEIGHTS = st.one_of(st.none(), st.just("weights"))


@st.composite
def binary_rows(draw):
    n = draw(st.integers(1, 60))
    y = np.array(draw(st.lists(st.integers(0, 1), min_size=n, max_size=n)), np.intp)
    p = np.array(draw(st.lists(SCORES, min_size=n, max_size=n)))
    w = draw(WEIGHTS)
    if w:
        w = np.array(draw(st.lists(st.floats(0.01, 100), min_size=n, max_size=n)))
    return Rows(y, p, w), draw(st.lists(st.integers(0, n), max_size=4)), draw(st.sampled_from([0.5, 0.1, 0.3]))


@given(binary_rows())
@SETTINGS
def test_binary_metrics_equal_sklearn(case):
    rows, cuts, threshold = case
    found = m.measure(tally(Question("binary", 2, threshold), rows, cuts), names_for("binary"))
    check(found, binary_by_sklearn(rows.y, rows.scores, rows.weight, threshold))


@given(binary_rows())
@SETTINGS
def test_any_partition_of_unweighted_rows_gives_the_same_bits(case):
    rows, cuts, threshold = case
    question, rows = Question("binary", 2, threshold), Rows(rows.y, rows.scores)
    assert tally(question, rows, cuts) == tally(question, rows)


@given(binary_rows())
@SETTINGS
def test_any_partition_of_weighted_rows_gives_the_same_sums_and_nearly_the_same_ranks(case):
    rows, cuts, threshold = case
    question = Question("binary", 2, threshold)
    cut, whole = tally(question, rows, cuts), tally(question, rows)
    assert cut.sums == whole.sums
    ours, theirs = m.measure(cut, ["auc", "average_precision"]), m.measure(whole, ["auc", "average_precision"])
    for name, value in theirs.metrics.items():
        # Weights of tied rows are added in the order of the shards: one rounding of 1e-16 each.
        assert value is None or ours.metrics[name] == pytest.approx(value, abs=1e-13)


@given(binary_rows())
@SETTINGS
def test_calibration_curve_equals_sklearn(case):
    rows, cuts, _ = case
    rows = Rows(rows.y, rows.scores)
    found = tally(Question("binary", 2), rows, cuts)
    bins = [each for each in m.calibration_curve(found) if each.rows]
    # One class only can't be given to scikit-learn without a label for the other; the curve itself does not mind.
    observed, predicted = sk_calibration_curve(np.append(rows.y, [0, 1]), np.append(rows.scores, [0.0, 0.0]), n_bins=10)
    mine = tally(Question("binary", 2), Rows(np.append(rows.y, [0, 1]), np.append(rows.scores, [0.0, 0.0])))
    curve = [each for each in m.calibration_curve(mine) if each.rows]
    np.testing.assert_allclose([each.observed for each in curve], observed, atol=TOLERANCE)
    np.testing.assert_allclose([each.predicted for each in curve], predicted, atol=TOLERANCE)
    error = sum(each.weight * abs(each.predicted - each.observed) for each in bins) / len(rows)
    assert m.measure(found, ["ece"]).metrics["ece"] == pytest.approx(error, abs=TOLERANCE)
    assert sum(each.rows for each in bins) == len(rows)


@st.composite
def multiclass_rows(draw):
    n, k = draw(st.integers(1, 60)), draw(st.sampled_from([3, 4, 25]))
    y = np.array(draw(st.lists(st.integers(0, k - 1), min_size=n, max_size=n)), np.intp)
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    p = rng.dirichlet(np.ones(k), n).round(draw(st.sampled_from([1, 2, 16])))
    p[:, 0] += 1 - p.sum(axis=1)
    w = rng.uniform(0.1, 10, n) if draw(st.booleans()) else None
    return Rows(y, np.clip(p, 0, 1), w), k, draw(st.lists(st.integers(0, n), max_size=4))


@given(multiclass_rows())
@SETTINGS
def test_multiclass_metrics_equal_sklearn(case):
    rows, k, cuts = case
    y, p, w = rows.y, rows.scores, rows.weight
    decided, onehot = p.argmax(axis=1), np.eye(k)[y]
    average = {"average": "macro", "zero_division": 0, "sample_weight": w}
    expected = {
        "log_loss": quiet(skm.log_loss, y, p, sample_weight=w, labels=range(k)),
        "brier": float(np.average(((onehot - p) ** 2).sum(axis=1), weights=w)),
        "accuracy": quiet(skm.accuracy_score, y, decided, sample_weight=w),
        "balanced_accuracy": quiet(skm.balanced_accuracy_score, y, decided, sample_weight=w),
        "precision": quiet(skm.precision_score, y, decided, **average),
        "recall": quiet(skm.recall_score, y, decided, **average),
        "f1": quiet(skm.f1_score, y, decided, **average),
        "auc": math.nan,
    }
    if len(set(y.tolist())) == k:
        each = [quiet(skm.roc_auc_score, onehot[:, c], p[:, c], sample_weight=w) for c in range(k)]
        expected["auc"] = float(np.mean(each))
    check(m.measure(tally(Question("multiclass", k), rows, cuts), names_for("multiclass")), expected)


def test_multiclass_auc_is_sklearns_one_against_the_rest():
    rng = np.random.default_rng(3)
    p = rng.dirichlet(np.ones(4), 500)
    y = np.array([rng.choice(4, p=row) for row in p])
    found = m.measure(tally(Question("multiclass", 4), Rows(y, p)), ["auc", "brier"])
    assert found.metrics["auc"] == pytest.approx(skm.roc_auc_score(y, p, multi_class="ovr"), abs=TOLERANCE)
    assert found.metrics["brier"] == pytest.approx(skm.brier_score_loss(y, p, labels=range(4)), abs=TOLERANCE)


@st.composite
def regression_rows(draw):
    n = draw(st.integers(2, 60))
    scale, offset = draw(st.sampled_from([1e-6, 1.0, 1e6])), draw(st.sampled_from([0.0, 1.0, 1e7]))
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    y = offset + scale * rng.standard_normal(n).round(draw(st.sampled_from([0, 1, 16])))
    w = rng.uniform(0.1, 10, n) if draw(st.booleans()) else None
    return Rows(y, y + scale * rng.standard_normal(n), w), draw(st.lists(st.integers(0, n), max_size=4))


@given(regression_rows())
@SETTINGS
def test_regression_metrics_equal_sklearn(case):
    rows, cuts = case
    y, p, w = rows.y, rows.scores, rows.weight
    constant = len(set(y.tolist())) == 1
    expected = {
        "rmse": quiet(skm.root_mean_squared_error, y, p, sample_weight=w),
        "mse": quiet(skm.mean_squared_error, y, p, sample_weight=w),
        "mae": quiet(skm.mean_absolute_error, y, p, sample_weight=w),
        "pinball": quiet(skm.mean_pinball_loss, y, p, sample_weight=w),
        "pinball(0.9)": quiet(skm.mean_pinball_loss, y, p, sample_weight=w, alpha=0.9),
    }
    found = m.measure(tally(Question("regression"), rows, cuts), [*expected, "r2"])
    for name, value in expected.items():  # in units of the label: relative
        assert found.metrics[name] == pytest.approx(value, rel=TOLERANCE), name
    if constant:
        assert found.undefined["r2"] == "the label is constant"
    else:
        # scikit-learn's own mean of labels around 1e7 with a spread of 1e-6 is off by more than the promise.
        loose = 1e-3 if abs(y.mean()) > 1e9 * y.std() else TOLERANCE
        assert found.metrics["r2"] == pytest.approx(quiet(skm.r2_score, y, p, sample_weight=w), rel=loose, abs=loose)


@st.composite
def positive_rows(draw):
    n = draw(st.integers(2, 60))
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    scale = draw(st.sampled_from([1e-3, 1.0, 1e4]))
    y, w = scale * rng.gamma(0.7, size=n), rng.uniform(0.1, 10, n) if draw(st.booleans()) else None
    return Rows(y, scale * rng.gamma(2.0, size=n) + 1e-6, w), draw(st.lists(st.integers(0, n), max_size=4))


@given(positive_rows())
@SETTINGS
def test_deviances_equal_sklearn(case):
    rows, cuts = case
    names = {"poisson_deviance": 1, "gamma_deviance": 2, "tweedie_deviance(1.3)": 1.3}
    question = Question("regression", constant=2.0, deviances=powers_of(names))
    found = m.measure(tally(question, rows, cuts), list(names))
    constant = baseline(tally(question, rows, cuts), list(names), counts=(), constant=2.0)
    for name, power in names.items():
        for value, p in ((found.metrics[name], rows.scores), (constant[name], np.full(len(rows), 2.0))):
            expected = quiet(skm.mean_tweedie_deviance, rows.y, p, sample_weight=rows.weight, power=power)
            assert value == pytest.approx(expected, rel=1e-8, abs=1e-12)
    assert set(m.intervals(tally(question, rows, cuts), list(names))) == set(names)


def test_rows_without_a_deviance_are_counted():
    rows = Rows(np.array([0.0, 1.0, -1.0]), np.array([1.0, 0.0, 2.0]))
    names = ["poisson_deviance", "gamma_deviance"]
    question = Question("regression", constant=1.0, deviances=(1.0, 2.0))
    found = m.measure(tally(question, rows, [1]), names)
    assert found.undefined["poisson_deviance"] == (
        "needs labels of at least 0 and predictions above 0, which 2 rows do not have"
    )
    assert "which 3 rows" in found.undefined["gamma_deviance"]
    assert baseline(tally(question, rows), names, counts=(), constant=1.0) == {}


def test_r2_loses_nothing_on_labels_far_from_zero():
    rng = np.random.default_rng(0)
    y, noise, w = 1e9 + rng.standard_normal(1000), rng.standard_normal(1000), rng.uniform(1, 2, 1000)
    found = m.measure(tally(Question("regression"), Rows(y, y + noise, w)), ["r2"])
    shifted = y - 1e9  # exact
    expected = 1 - np.sum(w * (y - (y + noise)) ** 2) / np.sum(w * (shifted - np.average(shifted, weights=w)) ** 2)
    assert found.metrics["r2"] == pytest.approx(expected, abs=1e-12)


def test_rows_that_a_metric_needs_and_that_are_missing_are_named():
    none = m.measure(tally(Question("binary", 2), Rows(np.empty(0, np.intp), np.empty(0))), ["auc", "log_loss"])
    assert none.undefined == {"auc": "there are no rows", "log_loss": "there are no rows"}
    one = m.measure(tally(Question("binary", 2), Rows(np.ones(3, np.intp), np.full(3, 0.2))), names_for("binary"))
    assert one.undefined["auc"] == "all rows have the same label"
    assert "predicted" in one.undefined["precision"]
    assert one.metrics["average_precision"] == 1.0


def test_scores_that_are_no_probabilities_only_rank():
    rng = np.random.default_rng(3)
    names = ["auc", "accuracy", "log_loss", "brier", "ece"]
    whole = tally(Question("binary", 2), Rows(rng.integers(0, 2, 50), rng.random(50)))
    ranked_only = dataclasses.replace(whole, probabilistic=False)
    found = m.measure(ranked_only, names)
    assert [name for name in names if found.metrics[name] is None] == ["log_loss", "brier", "ece"]
    assert "evaluate.calibrate" in found.undefined["brier"]
    assert m.calibration_curve(ranked_only) == ()
    assert set(m.intervals(ranked_only, names)) == {"auc", "accuracy"}


def test_equal_scores_rank_half_of_the_pairs():
    found = m.measure(tally(Question("binary", 2), Rows(np.array([0, 1, 1, 0]), np.full(4, 0.25))), ["auc"])
    assert found.metrics["auc"] == 0.5


@pytest.mark.parametrize("weighted", [False, True])
def test_baseline_is_the_constant_measured_as_a_model(weighted):
    rng = np.random.default_rng(5)
    w = rng.uniform(0.5, 2, 400) if weighted else None
    y, names = rng.integers(0, 2, 400), ["log_loss", "brier", "accuracy", "auc", "average_precision", "ece"]
    found = baseline(tally(Question("binary", 2), Rows(y, rng.random(400), w)), names, counts=(30, 10), constant=0)
    as_model = m.measure(tally(Question("binary", 2), Rows(y, np.full(400, 0.25), w)), names)
    assert found == pytest.approx(as_model.metrics, abs=1e-12)

    y3, p3, names = rng.integers(0, 3, 400), rng.dirichlet(np.ones(3), 400), ["log_loss", "brier", "accuracy", "auc"]
    found = baseline(tally(Question("multiclass", 3), Rows(y3, p3, w)), names, counts=(5, 3, 2), constant=0)
    shares = np.tile([0.5, 0.3, 0.2], (400, 1))
    assert found == pytest.approx(m.measure(tally(Question("multiclass", 3), Rows(y3, shares, w)), names).metrics)

    yr, names = rng.standard_normal(400) + 3, ["rmse", "mse", "mae", "r2", "pinball(0.8)"]
    question = Question("regression", constant=2.5)
    found = baseline(tally(question, Rows(yr, yr + 1, w)), names, counts=(), constant=2.5)
    assert found == pytest.approx(m.measure(tally(question, Rows(yr, np.full(400, 2.5), w)), names).metrics)


def test_intervals_cover_as_often_as_they_say():
    rng, true_p, inside = np.random.default_rng(8), 0.3, {"accuracy": 0, "auc": 0, "brier": 0}
    rounds = 300
    for _ in range(rounds):
        p = np.where(rng.random(400) < 0.5, 0.8, true_p)
        rows = Rows((rng.random(400) < p).astype(np.intp), p)
        found = m.intervals(tally(Question("binary", 2), rows), ["accuracy", "auc", "brier"])
        truth = {"accuracy": 0.75, "auc": _true_auc(), "brier": (0.8 * 0.2 + 0.3 * 0.7) / 2}
        for name, value in truth.items():
            inside[name] += found[name].low <= value <= found[name].high
    # 95 % of 300 with a binomial spread of 4: 20 below is far outside it, and Hanley & McNeil are on the wide side.
    assert all(count >= 0.95 * rounds - 20 for count in inside.values()), inside


def _true_auc():
    # Scores are 0.3 or 0.8, each half of the rows.
    hit, miss = 0.8 / 1.1, 0.2 / 0.9  # share of 0.8 among positives and among negatives
    return hit * (1 - miss) + 0.5 * (hit * miss + (1 - hit) * (1 - miss))
