"""Every loss of the linear models ends where scikit-learn does, dense or sparse, on any number of ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pydantic
import pytest
from sklearn.linear_model import (
    GammaRegressor,
    HuberRegressor,
    PoissonRegressor,
    QuantileRegressor,
    TweedieRegressor,
)
from sklearn.multiclass import OneVsRestClassifier
from sklearn.svm import SVC, LinearSVC

from pipelines.model.model import Model
from pipelines.training.data import TrainingData, load_part
from pipelines.training.estimators import linear_watch
from pipelines.training.estimators.linear_params import LinearParams, RegressionParams, SvmParams
from pipelines.training.gang import StopRequested

TIGHT = {"tol": 1e-9, "max_iter": 2000}
# Coefficients within 1e-5 of the largest one: float32 data, float64 sums, and what the reference's tolerance leaves.
WITHIN = 1e-5
SLOW_LBFGS = pytest.param("lbfgs", marks=pytest.mark.slow)


def matrix(data: TrainingData) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """The training rows in float64, as scikit-learn takes them."""
    rows = load_part(data, data.shards.shards, "train")
    X = rows.X.toarray() if data.features.sparse else rows.X
    weight = None if rows.weight is None else rows.weight.astype(np.float64)
    return X.astype(np.float64), rows.y.astype(np.float64), weight


def assert_close(found: np.ndarray, expected: np.ndarray, within: float = WITHIN) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=within * np.abs(expected).max())


Numbers = Callable[..., TrainingData]


@pytest.fixture
def numbers(maker: Any, make_classification: Callable[..., pa.Table]) -> Numbers:
    """Make a dataset whose label hangs on the features as a kind of number does."""

    def make(kind: str, rows: int = 2000, *, weight: bool = False, sparse: bool | None = None) -> TrainingData:
        table = make_classification(rows).drop(["label"] if weight else ["label", "importance"])
        rng = np.random.default_rng(5)
        inner = 0.4 * table["x0"].to_numpy() - 0.15 * table["x3"].to_numpy() + 0.1 * table["x1"].to_numpy()
        mean = np.exp(inner)
        y = {
            "counts": lambda: rng.poisson(mean).astype(float),
            "amounts": lambda: 1000 * mean * rng.gamma(2.0, 0.5, rows),
            "claims": lambda: 30 * mean * rng.gamma(2.0, 0.5, rows) * (rng.random(rows) < 0.3),
            "values": lambda: 3e4 + 200 * inner + 50 * rng.standard_t(2.0, rows),
        }[kind]()
        data: TrainingData = maker.prepare(
            table.append_column("label", pa.array(y)),
            kind="regression",
            weight="importance" if weight else None,
            sparse=sparse,
        )
        return data

    return make


@pytest.mark.parametrize("solver", ["newton", SLOW_LBFGS])
@pytest.mark.parametrize(
    ("kind", "params", "reference"),
    [
        ("counts", {"loss": "poisson"}, PoissonRegressor),
        ("amounts", {"loss": "gamma"}, GammaRegressor),
        (
            "claims",
            {"loss": "tweedie", "tweedie_power": 1.4},
            lambda **more: TweedieRegressor(power=1.4, link="log", **more),
        ),
    ],
    ids=["poisson", "gamma", "tweedie"],
)
def test_deviances_are_scikit_learns_in_the_labels_units(
    trainer: Any, numbers: Numbers, read_weights: Any, kind: str, params: dict[str, Any], reference: Any, solver: str
) -> None:
    data = numbers(kind, weight=True)
    X, y, w = matrix(data)
    best = reference(alpha=0.02, solver="newton-cholesky", tol=1e-10, max_iter=1000).fit(X, y, w)
    found = set()
    for ranks in (1, 3):
        fit = trainer.fit(data, {**params, "l2": 0.02, "solver": solver, **TIGHT}, ranks=ranks)
        found.add(fit.files["coef.npy"])
    assert len(found) == 1, "the number of ranks does not change bits"
    assert fit.summary["converged"]
    coef, intercept = read_weights(fit)
    assert_close(np.append(coef[0], intercept), np.append(best.coef_, best.intercept_))


@pytest.mark.parametrize("solver", ["newton", SLOW_LBFGS])
@pytest.mark.parametrize("epsilon", [1.1, 1.35, 3.0])
def test_huber_is_scikit_learns_at_its_scale(
    trainer: Any, numbers: Numbers, read_weights: Any, solver: str, epsilon: float
) -> None:
    data = numbers("values")
    X, y, _ = matrix(data)
    # Far from 0 scikit-learn's own optimiser ends far from the minimum: it gets labels at scale 1, as we make them.
    mean, std = data.target.mean or 0.0, data.target.std or 1.0
    best = HuberRegressor(epsilon=epsilon, alpha=200.0, tol=1e-9, max_iter=10_000).fit(X, (y - mean) / std)
    ours = {"loss": "huber", "epsilon": epsilon * best.scale_, "l2": 200 * best.scale_ / len(y), "solver": solver}
    coef, intercept = read_weights(trainer.fit(data, {**ours, **TIGHT}))
    # Its L-BFGS can't bring the gradient of sums to 1e-9: 1e-4 is what it reaches.
    assert_close(np.append(coef[0] / std, (intercept - mean) / std), np.append(best.coef_, best.intercept_), 1e-4)


def pinball(X: np.ndarray, y: np.ndarray, coef: np.ndarray, intercept: float, q: float, l1: float) -> float:
    r = y - X @ coef - intercept
    return float(np.maximum(q * r, (q - 1) * r).mean() + l1 * np.abs(coef).sum())


@pytest.mark.slow
@pytest.mark.parametrize("l1", [0.0, 1.0])
@pytest.mark.parametrize("quantile", [0.1, 0.5, 0.9])
def test_quantiles_reach_the_linear_programs_optimum(
    trainer: Any, numbers: Numbers, read_weights: Any, quantile: float, l1: float
) -> None:
    data = numbers("values", 1000)
    X, y, _ = matrix(data)
    best = QuantileRegressor(quantile=quantile, alpha=l1, solver="highs").fit(X, y)
    lowest = pinball(X, y, best.coef_, best.intercept_, quantile, l1)
    fit = trainer.fit(data, {"loss": "quantile", "quantile": quantile, "l1": l1})
    coef, intercept = read_weights(fit)
    found = pinball(X, y, coef[0], intercept[0], quantile, l1)
    # What `smoothing` promises is 1e-6 of a deviation of the label; the linear program has its own 1e-7.
    assert abs(found - lowest) <= 1.1e-6 * y.std()
    assert fit.summary["loss"] == pytest.approx(found, rel=1e-6)
    below = float((y < X @ coef[0] + intercept).mean())
    assert below == pytest.approx(quantile, abs=len(coef[0] + 2) / len(y))


def test_the_quantile_without_features_that_count_is_the_labels(trainer: Any, maker: Any, read_weights: Any) -> None:
    rng = np.random.default_rng(2)
    y = rng.exponential(size=999)
    data = maker.prepare(pa.table({"x": rng.normal(size=999), "label": y}), kind="regression")
    coef, intercept = read_weights(trainer.fit(data, {"loss": "quantile", "quantile": 0.75, "l1": 10.0}))
    assert coef[0, 0] == 0
    # The loss bends by the density, 0.25 there: within 1e-6 of its minimum is within √(2e-6 / 0.25) of the quantile.
    assert intercept[0] == pytest.approx(np.quantile(y, 0.75, method="inverted_cdf"), abs=3e-3)


def svm_objective(X: np.ndarray, t: np.ndarray, w: np.ndarray, b: float, C: float, power: int) -> float:
    lacking = np.maximum(1 - t * (X @ w + b), 0) ** power
    return float(lacking.mean() + w @ w / (2 * C * len(t)))


@pytest.fixture
def binary(maker: Any, make_classification: Callable[..., pa.Table]) -> TrainingData:
    data: TrainingData = maker.prepare(make_classification(1000).drop(["importance"]))
    return data


@pytest.mark.parametrize("solver", ["newton", SLOW_LBFGS])
def test_the_squared_hinge_is_linear_svcs(trainer: Any, binary: TrainingData, read_weights: Any, solver: str) -> None:
    X, y, _ = matrix(binary)
    # LinearSVC penalises its intercept, ours is free: without one both are the same.
    best = LinearSVC(C=0.1, dual=False, tol=1e-12, max_iter=100_000, fit_intercept=False).fit(X, y)
    params = {"C": 0.1, "fit_intercept": False, "solver": solver, **TIGHT}
    fits = [trainer.fit(binary, params, estimator="linear_svm", ranks=ranks) for ranks in (1, 2, 3)]
    assert len({fit.files["coef.npy"] for fit in fits}) == 1
    coef, _ = read_weights(fits[0])
    assert_close(coef[0], best.coef_[0])


@pytest.mark.parametrize("C", [0.01, 0.1])
def test_the_hinge_reaches_the_dual_problems_optimum(
    trainer: Any, binary: TrainingData, read_weights: Any, C: float
) -> None:
    X, y, _ = matrix(binary)
    best = SVC(kernel="linear", C=C, tol=1e-9).fit(X, y)  # its intercept is free, as ours
    t = 2 * y - 1
    lowest = svm_objective(X, t, best.coef_[0], best.intercept_[0], C, 1)
    fit = trainer.fit(binary, {"loss": "hinge", "C": C}, estimator="linear_svm")
    coef, intercept = read_weights(fit)
    found = svm_objective(X, t, coef[0], intercept[0], C, 1)
    assert abs(found - lowest) <= 1.1e-6
    assert fit.summary["loss"] == pytest.approx(found, rel=1e-6)
    assert_close(coef[0], best.coef_[0], 1e-3)  # the objective is flat to second order only


@pytest.mark.parametrize("loss", ["squared_hinge", "hinge"])
def test_several_classes_are_one_against_the_rest(
    trainer: Any, maker: Any, make_classification: Callable[..., pa.Table], read_weights: Any, loss: str
) -> None:
    table = make_classification(600, seed=3, classes=3).drop(["importance"])
    data = maker.prepare(table, kind="multiclass")
    X, y, _ = matrix(data)
    fit = trainer.fit(data, {"C": 0.1, "loss": loss, "tol": 1e-8}, estimator="linear_svm")
    coef, intercept = read_weights(fit)
    assert fit.summary["solver"] == "newton"
    best: Any = (
        OneVsRestClassifier(SVC(kernel="linear", C=0.1, tol=1e-6)).fit(X, y)
        if loss == "hinge"
        else OneVsRestClassifier(
            LinearSVC(C=0.1, dual=False, tol=1e-12, max_iter=100_000, intercept_scaling=1e4)
        ).fit(X, y)
    )  # fmt: skip
    power = 1 if loss == "hinge" else 2
    for k, one in enumerate(best.estimators_):
        t = np.where(y == k, 1, -1)
        lowest = svm_objective(X, t, one.coef_[0], one.intercept_[0], 0.1, power)
        assert svm_objective(X, t, coef[k], intercept[k], 0.1, power) - lowest <= 1.1e-6


CHEAP: list[tuple[str, dict[str, Any]]] = [
    ("counts", {"loss": "poisson", "l2": 0.01}),
    ("claims", {"loss": "tweedie", "l2": 0.01}),
    ("values", {"loss": "huber", "epsilon": 0.3, "l2": 0.01}),
    ("values", {"loss": "quantile", "quantile": 0.8, "l2": 0.01}),
]
IDS = ["poisson", "tweedie", "huber", "quantile"]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "params"), CHEAP, ids=IDS)
def test_sparse_rows_and_ranks_give_what_dense_rows_give(
    trainer: Any, numbers: Numbers, read_weights: Any, kind: str, params: dict[str, Any]
) -> None:
    found, bits = [], set()
    for sparse in (False, True):
        data = numbers(kind, 900, weight=True, sparse=sparse)
        assert data.features.sparse is sparse
        for ranks in (1, 2, 3) if sparse else (1,):
            fit = trainer.fit(data, {**params, "tol": 1e-8}, ranks=ranks)
            bits.add(fit.files["coef.npy"])
        coef, intercept = read_weights(fit)
        found.append(np.append(coef, intercept))
    assert len(bits) == 2, "one for dense, one for sparse rows"
    assert_close(found[1], found[0])


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize(("kind", "params"), CHEAP, ids=IDS)
def test_mini_batches_come_near_the_optimum(
    trainer: Any, numbers: Numbers, kind: str, params: dict[str, Any], rule: str
) -> None:
    data = numbers(kind, 1500)
    best = trainer.fit(data, params).summary["loss"]
    rate = {"sgd": 0.1, "momentum": 0.01, "adam": 0.02}[rule]
    more = {"solver": rule, "learning_rate": rate, "batch_rows": 128, "epochs": 40, "tol": 0.0}
    one, two = (trainer.fit(data, {**params, **more}, ranks=ranks) for ranks in (1, 3))
    # Within one part in a hundred of the loss: the noise of mini-batches is not over after forty epochs.
    assert one.summary["loss"] - best < 1e-2 * abs(best)
    assert one.files == two.files


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["squared_hinge", "hinge"])
def test_mini_batches_of_margins_come_near_the_optimum(trainer: Any, binary: TrainingData, loss: str) -> None:
    best = trainer.fit(binary, {"l2": 1e-2, "loss": loss}, estimator="linear_svm").summary["loss"]
    more = {"solver": "adam", "learning_rate": 0.05, "batch_rows": 128, "epochs": 60, "tol": 0.0}
    found = trainer.fit(binary, {"l2": 1e-2, "loss": loss, **more}, estimator="linear_svm").summary["loss"]
    assert found - best < 1e-2 * best


@pytest.mark.slow
@pytest.mark.parametrize("params", [{"solver": "newton"}, {"solver": "lbfgs"}], ids=["newton", "lbfgs"])
def test_a_stopped_fit_goes_on_at_the_width_that_it_had(
    trainer: Any, numbers: Numbers, tmp_path: Any, params: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear_watch, "_REPORT_S", 0.0)  # every step is told
    data = numbers("values", 600)
    said = {"loss": "quantile", "quantile": 0.7, "l2": 1e-3, **params}
    whole = trainer.fit(data, said)
    trainer.messages.clear()
    steps = whole.summary["n_iter"] // 2
    stopping = {"checkpoint_url": str(tmp_path / "checkpoints"), "checkpoint": {"every": "1 step", "keep": 1}}
    with pytest.raises(StopRequested):
        trainer.fit(data, said, ranks=3, **stopping, stop=lambda: _steps(trainer.messages) >= steps)
    resumed = trainer.fit(data, said, **stopping)
    assert resumed.summary["resumed_from"] >= steps
    assert resumed.summary["loss"] == pytest.approx(whole.summary["loss"], abs=1.1e-6 * (data.target.std or 1.0))
    assert resumed.summary["n_iter"] < 1.5 * whole.summary["n_iter"]


def _steps(messages: list[dict[str, Any]]) -> int:
    return max((each["done"] for each in messages if each["unit"] == "step"), default=0)


@pytest.mark.parametrize(
    ("model", "params", "word"),
    [
        (RegressionParams, {"loss": "hinge"}, "quantile"),
        (RegressionParams, {"epsilon": 1.0}, "epsilon belongs to loss: huber, and loss is squared"),
        (RegressionParams, {"loss": "poisson", "quantile": 0.3}, "quantile belongs to loss: quantile"),
        (RegressionParams, {"loss": "huber", "epsilon": 0}, "greater than 0"),
        (RegressionParams, {"loss": "quantile", "quantile": 1.0}, "less than 1"),
        (RegressionParams, {"loss": "tweedie", "tweedie_power": 2}, "for 2 loss: gamma"),
        (RegressionParams, {"loss": "tweedie", "power": 1.5}, "power belong to mini-batches"),
        (SvmParams, {"loss": "logistic"}, "hinge"),
        (LinearParams, {"loss": "hinge"}, "Extra inputs"),
    ],
)
def test_losses_that_make_no_sense_are_refused(model: type[LinearParams], params: dict[str, Any], word: str) -> None:
    with pytest.raises(pydantic.ValidationError, match=word):
        model.model_validate(params)


def test_margins_decide_and_rank_but_are_no_probabilities(
    trainer: Any, maker: Any, make_classification: Callable[..., pa.Table]
) -> None:
    for classes in (2, 3):
        table = make_classification(600, seed=3, classes=classes).drop(["importance"])
        data = maker.prepare(table, kind="auto")
        X, y, _ = matrix(data)
        model = Model.from_fit(trainer.fit(data, {"C": 1.0}, estimator="linear_svm"), data.features, data.target)
        again = Model.from_files(model.files())
        assert not again.probabilistic
        scores = again.scores(table)
        assert ((scores >= 0) & (scores <= 1)).all()
        decided = again.predict(table)["prediction"].to_numpy()
        best = OneVsRestClassifier(LinearSVC(C=1.0, dual=False, tol=1e-8, intercept_scaling=1e3)).fit(X, y)
        # Rows on the edge of two classes fall either way: the reference's penalty on its intercept moves it by a hair.
        assert (decided == best.predict(X)).mean() > 0.995


def test_a_log_link_predicts_in_the_labels_units(trainer: Any, numbers: Numbers) -> None:
    data = numbers("amounts", 900)
    X, y, _ = matrix(data)
    fit = trainer.fit(data, {"loss": "gamma", "l2": 1e-3})
    model = Model.from_files(Model.from_fit(fit, data.features, data.target).files())
    best = GammaRegressor(alpha=1e-3, solver="newton-cholesky", tol=1e-10).fit(X, y)
    np.testing.assert_allclose(model.scores_of_matrix(X.astype(np.float32)), best.predict(X), rtol=1e-4)
