"""Linear models find the optimum: held against scikit-learn in float64, for any solver and number of ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from sklearn.linear_model import ElasticNet, Lasso, LinearRegression, LogisticRegression, Ridge

from pipelines.training.data import TrainingData, load_part

TIGHT = {"tol": 1e-9, "max_iter": 2000}
# Coefficients within 1e-5 of the largest one: what float32 data and float64 sums leave, with a margin of some 100.
WITHIN = 1e-5
SLOW_LBFGS = pytest.param("lbfgs", marks=pytest.mark.slow)


def matrix(data: TrainingData) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """The training rows in float64, as scikit-learn takes them."""
    rows = load_part(data, data.shards.shards, "train")
    X = rows.X.toarray() if data.features.sparse else rows.X
    weight = None if rows.weight is None else rows.weight.astype(np.float64)
    return X.astype(np.float64), rows.y.astype(np.float64), weight


def assert_close(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=WITHIN * np.abs(expected).max())


def penalised_loss(
    X: np.ndarray, y: np.ndarray, coef: np.ndarray, intercept: float, *, l1: float, l2: float, kind: str
) -> tuple[float, float]:
    """The objective and its KKT residual, the slow way."""
    z = X @ coef + intercept
    if kind == "logistic":
        loss, r = np.logaddexp(0, z) - y * z, 1 / (1 + np.exp(-z)) - y
    else:
        loss, r = 0.5 * (z - y) ** 2, z - y
    g = X.T @ r / len(y) + l2 * coef
    inner = np.where(coef != 0, np.abs(g + l1 * np.sign(coef)), np.maximum(np.abs(g) - l1, 0))
    value = loss.mean() + l2 / 2 * coef @ coef + l1 * np.abs(coef).sum()
    return float(value), float(max(inner.max(), abs(r.mean())))


@pytest.fixture
def binary(maker: Any, make_classification: Callable[..., pa.Table]) -> TrainingData:
    data: TrainingData = maker.prepare(make_classification(3000).drop(["importance"]))
    return data


@pytest.fixture
def weighted(maker: Any, make_classification: Callable[..., pa.Table]) -> TrainingData:
    data: TrainingData = maker.prepare(make_classification(3000), weight="importance")
    return data


@pytest.fixture
def regression(maker: Any, make_classification: Callable[..., pa.Table]) -> TrainingData:
    table = make_classification(3000).drop(["importance", "label"])
    rng = np.random.default_rng(5)
    y = 3e4 + 200 * table["x0"].to_numpy() - 80 * table["x3"].to_numpy() + rng.normal(size=3000) * 50
    data: TrainingData = maker.prepare(table.append_column("label", pa.array(y)), kind="regression")
    return data


@pytest.mark.parametrize("solver", ["newton", SLOW_LBFGS])
def test_logistic_regression_is_scikit_learns(
    trainer: Any, binary: TrainingData, read_weights: Any, solver: str
) -> None:
    X, y, _ = matrix(binary)
    reference = LogisticRegression(solver="newton-cholesky", tol=1e-12, C=1 / (1e-3 * len(y)), max_iter=1000).fit(X, y)
    bits = set()
    for ranks in (1, 2, 3, 7):
        fit = trainer.fit(binary, {"l2": 1e-3, "solver": solver, **TIGHT}, ranks=ranks)
        coef, intercept = read_weights(fit)
        assert_close(np.append(coef[0], intercept), np.append(reference.coef_[0], reference.intercept_))
        assert fit.summary["converged"]
        bits.add(coef.tobytes())
    # Lanes are added reproducibly, so the number of ranks does not even change bits.
    assert len(bits) == 1


def test_threads_do_not_change_bits(trainer: Any, binary: TrainingData) -> None:
    one, three = (trainer.fit(binary, {"l2": 1e-3}, threads=threads).files["coef.npy"] for threads in (1, 3))
    assert one == three


@pytest.mark.parametrize("solver", ["newton", SLOW_LBFGS])
def test_sample_and_class_weights_count(trainer: Any, weighted: TrainingData, read_weights: Any, solver: str) -> None:
    X, y, w = matrix(weighted)
    params = {"l2": 1e-3, "solver": solver, **TIGHT}
    for said, factors in [(None, None), ({"1": 3.0}, {0: 1.0, 1: 3.0}), ("balanced", "balanced")]:
        fit = trainer.fit(weighted, params, class_weight=said)
        total = fit.summary["weight"]
        assert w is not None
        if factors == "balanced":
            factors = {label: len(y) / (2 * (y == label).sum()) for label in (0, 1)}
        reference = LogisticRegression(
            solver="newton-cholesky", tol=1e-12, C=1 / (1e-3 * total), class_weight=factors
        ).fit(X, y, sample_weight=w)
        coef, intercept = read_weights(fit)
        assert_close(np.append(coef[0], intercept), np.append(reference.coef_[0], reference.intercept_))


@pytest.mark.slow
def test_C_is_scikit_learns_and_its_default_too(trainer: Any, binary: TrainingData, read_weights: Any) -> None:
    X, y, _ = matrix(binary)
    for params, C in [({}, 1.0), ({"C": 0.01}, 0.01)]:
        reference = LogisticRegression(solver="newton-cholesky", tol=1e-12, C=C).fit(X, y)
        coef, _ = read_weights(trainer.fit(binary, {**params, **TIGHT}))
        assert_close(coef[0], reference.coef_[0])


@pytest.mark.slow
def test_without_an_intercept_there_is_none(trainer: Any, binary: TrainingData, read_weights: Any) -> None:
    X, y, _ = matrix(binary)
    reference = LogisticRegression(solver="newton-cholesky", tol=1e-12, C=1.0, fit_intercept=False).fit(X, y)
    for solver in ("newton", "lbfgs"):
        coef, intercept = read_weights(
            trainer.fit(binary, {"C": 1.0, "fit_intercept": False, "solver": solver, **TIGHT})
        )
        assert intercept == [0.0]
        assert_close(coef[0], reference.coef_[0])


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("solver", ["newton", "owlqn"])
def test_the_elastic_net_meets_its_conditions(
    trainer: Any, binary: TrainingData, read_weights: Any, solver: str, ranks: int
) -> None:
    X, y, _ = matrix(binary)
    l1, l2 = 0.02, 1e-3
    fit = trainer.fit(binary, {"l1": l1, "l2": l2, "solver": solver, "tol": 1e-8, "max_iter": 3000}, ranks=ranks)
    coef, intercept = read_weights(fit)
    value, residual = penalised_loss(X, y, coef[0], intercept[0], l1=l1, l2=l2, kind="logistic")
    assert residual < 1e-6
    reference = LogisticRegression(
        solver="saga", C=1 / ((l1 + l2) * len(y)), l1_ratio=l1 / (l1 + l2), tol=1e-10,
        max_iter=20_000,
    ).fit(X, y)  # fmt: skip
    best, _ = penalised_loss(X, y, reference.coef_[0], reference.intercept_[0], l1=l1, l2=l2, kind="logistic")
    assert value - best < 1e-6
    assert (coef == 0).any()
    assert value == pytest.approx(fit.summary["loss"], abs=1e-9)


def test_C_with_a_ratio_is_scikit_learns_elastic_net(trainer: Any, binary: TrainingData, read_weights: Any) -> None:
    X, y, _ = matrix(binary)
    fit = trainer.fit(binary, {"C": 0.02, "l1_ratio": 0.7, "tol": 1e-9})
    coef, intercept = read_weights(fit)
    strength = 1 / (0.02 * len(y))
    _, residual = penalised_loss(X, y, coef[0], intercept[0], l1=0.7 * strength, l2=0.3 * strength, kind="logistic")
    assert residual < 1e-7


@pytest.mark.parametrize("solver", ["newton", SLOW_LBFGS])
@pytest.mark.parametrize("l2", [0.0, 0.1])
def test_linear_regression_is_scikit_learns_in_the_labels_units(
    trainer: Any, regression: TrainingData, read_weights: Any, solver: str, l2: float
) -> None:
    X, y, _ = matrix(regression)
    reference = Ridge(alpha=l2 * len(y), solver="cholesky", tol=1e-12).fit(X, y)
    fit = trainer.fit(regression, {"l2": l2, "solver": solver, **TIGHT})
    coef, intercept = read_weights(fit)
    if l2:
        assert_close(coef[0], reference.coef_)
    # Without a penalty the one-hot columns are free to share the intercept: predictions are what is determined.
    predicted, expected = (
        X @ coef[0] + intercept,
        reference.predict(X) if l2 else LinearRegression().fit(X, y).predict(X),
    )
    np.testing.assert_allclose(predicted, expected, rtol=0, atol=1e-5 * y.std())
    assert fit.summary["loss"] == pytest.approx(
        0.5 * np.mean((expected - y) ** 2) + l2 / 2 * coef[0] @ coef[0], rel=1e-6
    )


@pytest.mark.parametrize("solver", ["newton", pytest.param("owlqn", marks=pytest.mark.slow)])
@pytest.mark.parametrize("l2", [pytest.param(0.0, marks=pytest.mark.slow), 0.05])
def test_the_lasso_is_scikit_learns(
    trainer: Any, regression: TrainingData, read_weights: Any, solver: str, l2: float
) -> None:
    X, y, _ = matrix(regression)
    l1 = 20.0
    fit = trainer.fit(regression, {"l1": l1, "l2": l2, "solver": solver, "tol": 1e-9, "max_iter": 3000})
    coef, intercept = read_weights(fit)
    value, residual = penalised_loss(X, y, coef[0], intercept[0], l1=l1, l2=l2, kind="squared")
    # In the label's units, whose deviation is some 300.
    assert residual < 1e-6 * y.std()
    reference = (
        ElasticNet(alpha=l1 + l2, l1_ratio=l1 / (l1 + l2), tol=1e-12, max_iter=100_000) if l2
        else Lasso(alpha=l1, tol=1e-12, max_iter=100_000)
    ).fit(X, y)  # fmt: skip
    best, _ = penalised_loss(X, y, reference.coef_, reference.intercept_, l1=l1, l2=l2, kind="squared")
    assert value - best < 1e-6 * y.var()
    assert_close(coef[0], reference.coef_)


@pytest.mark.slow
def test_softmax_regression_is_scikit_learns(
    trainer: Any, maker: Any, make_classification: Callable[..., pa.Table], read_weights: Any
) -> None:
    table = make_classification(3000, seed=3, classes=3).drop(["importance"])
    data = maker.prepare(table, kind="multiclass")
    X, y, _ = matrix(data)
    reference = LogisticRegression(solver="lbfgs", tol=1e-12, C=1 / (1e-3 * len(y)), max_iter=5000).fit(X, y)
    fit = trainer.fit(data, {"l2": 1e-3, **TIGHT})
    coef, intercept = read_weights(fit)
    assert fit.summary["solver"] == "lbfgs"
    # scikit-learn's own tolerance is what limits here: its L-BFGS ends at 1e-6 or so.
    np.testing.assert_allclose(coef, reference.coef_, atol=2e-5 * np.abs(reference.coef_).max())
    np.testing.assert_allclose(
        intercept - intercept.mean(), reference.intercept_ - reference.intercept_.mean(), atol=2e-5
    )


@pytest.mark.parametrize(
    "params",
    [{"l2": 1e-3}, {"l2": 1e-3, "solver": "lbfgs"}, pytest.param({"l1": 0.01, "l2": 1e-3}, marks=pytest.mark.slow)],
)
def test_sparse_rows_give_what_dense_rows_give(
    trainer: Any, maker: Any, make_classification: Callable[..., pa.Table], read_weights: Any, params: dict[str, Any]
) -> None:
    table = make_classification(2000)
    found = []
    for sparse in (False, True):
        data = maker.prepare(table, weight="importance", sparse=sparse)
        assert data.features.sparse is sparse
        coef, intercept = read_weights(trainer.fit(data, {**params, **TIGHT}))
        found.append(np.append(coef, intercept))
    assert_close(found[1], found[0])


@pytest.mark.slow
@pytest.mark.parametrize(("solver", "rate"), [("sgd", 0.5), ("momentum", 0.05), ("adam", 0.02)])
def test_mini_batches_come_near_the_optimum(trainer: Any, binary: TrainingData, solver: str, rate: float) -> None:
    best = trainer.fit(binary, {"l2": 1e-3, **TIGHT}).summary["loss"]
    params = {"l2": 1e-3, "solver": solver, "learning_rate": rate, "batch_rows": 128, "epochs": 20, "tol": 0.0}
    one, two = (trainer.fit(binary, params, ranks=ranks) for ranks in (1, 3))
    # Twenty epochs do not end the noise of mini-batches: within one part in a hundred of the loss.
    assert one.summary["loss"] - best < 3e-3
    assert one.files == two.files, "the order of samples and the arithmetic do not hang on the number of ranks"


@pytest.mark.slow
def test_mini_batches_with_l1_find_zeros(trainer: Any, binary: TrainingData, read_weights: Any) -> None:
    params = {"l1": 0.05, "solver": "sgd", "learning_rate": 0.3, "batch_rows": 128, "epochs": 40}
    coef, _ = read_weights(trainer.fit(binary, params))
    exact, _ = read_weights(trainer.fit(binary, {"l1": 0.05}))
    assert (coef == 0).any()
    np.testing.assert_allclose(coef, exact, atol=0.02)
