"""A batch's own keys, scores and gradient are those of the plain dense formulas."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import check_grad
from scipy.sparse import csr_matrix, random_array

from pipelines.training.blocks import SparseBlock
from pipelines.training.objectives import Logistic, Loss, Multinomial
from pipelines.training.strategies.parameter_server.batch import Objective, evaluate, prepare, unique
from pipelines.training.strategies.parameter_server.layout import Layout
from pipelines.training.value_losses import Squared

FEATURES = 40


def block(*, weighted: bool, seed: int = 0) -> SparseBlock:
    rng = np.random.default_rng(seed)
    X = csr_matrix(random_array((30, FEATURES), density=0.1, rng=rng, dtype=np.float32))
    y = (rng.random(30) < 0.4).astype(np.float32)
    return SparseBlock(X, y, rng.random(30).astype(np.float32) if weighted else None)


@given(st.lists(st.integers(0, 2**31 - 2), max_size=60))
def test_unique_is_numpys(values: list[int]) -> None:
    places = np.array(values, np.int64)
    found, columns = unique(places)
    expected, inverse = np.unique(places, return_inverse=True)
    assert np.array_equal(found, expected)
    assert np.array_equal(columns, inverse)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("loss", [Logistic(), Squared(0.3, 2.0), Multinomial(3)])
@pytest.mark.parametrize("intercept", [False, True])
def test_a_batchs_gradient_is_its_objectives(loss: Loss, weighted: bool, intercept: bool) -> None:
    rows = block(weighted=weighted)
    objective = Objective(loss, FEATURES, l2=0.3, fit_intercept=intercept)
    outputs, layout = loss.outputs, Layout(objective.size, 3)
    batch = prepare(rows, layout, objective)
    keys = layout.keys(batch.places)
    features = {*rows.X.indices.tolist()} | ({FEATURES} if intercept else set())
    assert set(keys.tolist()) == {feature * outputs + output for feature in features for output in range(outputs)}
    X = np.hstack([rows.X.toarray().astype(float), np.ones((30, 1)) * intercept])
    weight = np.ones(30) if rows.weight is None else rows.weight.astype(float)
    penalised = keys < FEATURES * outputs

    def scores(w: np.ndarray) -> np.ndarray:
        whole = np.zeros((FEATURES + 1, outputs))
        whole[keys // outputs, keys % outputs] = w
        return np.ascontiguousarray((X @ whole).T)

    def value(w: np.ndarray) -> float:
        total, _ = loss.evaluate(scores(w), rows.y, weight)
        return total / weight.sum() + 0.15 * float(w[penalised] @ w[penalised])

    w = np.random.default_rng(1).normal(size=len(keys)).astype(np.float32)
    found, total, gradient = evaluate(batch, w, objective)
    assert total == pytest.approx(weight.sum())
    expected = loss.evaluate(scores(w.astype(float)), rows.y, rows.weight)[0]
    assert found == pytest.approx(expected, rel=1e-6)
    # Forward differences of functions of size 1 are good to 1e-7 · √keys; the gradient is rounded to float32.
    assert check_grad(value, lambda _: gradient.astype(float), w.astype(float)) < 1e-5


def test_rows_without_values_are_no_trouble() -> None:
    empty = SparseBlock(csr_matrix((3, FEATURES), dtype=np.float32), np.ones(3, np.float32), None)
    for intercept, expected in ((False, []), (True, [-0.5])):
        objective = Objective(Logistic(), FEATURES, fit_intercept=intercept)
        batch = prepare(empty, Layout(FEATURES + 1, 2), objective)
        loss, _, gradient = evaluate(batch, np.zeros(len(expected), np.float32), objective)
        assert loss == pytest.approx(3 * np.log(2))
        assert gradient.tolist() == expected
