"""Local steps on sparse rows: what they compute, what they touch, and the same bits for any ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from scipy.sparse import csr_matrix
from scipy.sparse import random as random_sparse

from pipelines.training.batches import LaneStream
from pipelines.training.blocks import Block, DenseBlock, Resident, SparseBlock
from pipelines.training.data import TrainingData
from pipelines.training.gang import Regroup
from pipelines.training.objectives import Logistic, Loss, Multinomial
from pipelines.training.optimisers.rules import Rule
from pipelines.training.passes import HEAD, Passes
from pipelines.training.strategies.local_steps import LocalSteps, Run
from pipelines.training.strategies.penalty import Penalty
from tests.unit.training.conftest import Maker, Trainer, weights_of

FEATURES, ROWS, SEED = 60, 700, 5
LOSSES: dict[str, Loss] = {"logistic": Logistic(), "softmax": Multinomial(3)}


def rows_of(loss: Loss, weighted: bool) -> tuple[csr_matrix, np.ndarray, np.ndarray | None]:
    """Make rows, a fifth of whose features are never there."""
    generator = np.random.default_rng(SEED)
    X = random_sparse(ROWS, FEATURES, density=0.1, format="lil", dtype=np.float32, random_state=SEED)
    X[:, ::5] = 0
    y = generator.integers(0, max(loss.outputs, 2), ROWS).astype(np.float32)
    weight = generator.random(ROWS).astype(np.float32) + 0.5 if weighted else None
    return X.tocsr(), y, weight


def take(block: Block, penalty: Penalty, rule: Rule, loss: Loss, start: np.ndarray, run: Run) -> np.ndarray:
    blocks = [Resident(block)]
    steps = LocalSteps(
        Passes({3: blocks}, FEATURES, loss), {3: LaneStream(3, blocks, SEED)}, rule, penalty,
        sparse=isinstance(block, SparseBlock),
    )  # fmt: skip
    [found] = steps.take(start, run)
    return found


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize(("l2", "l1"), [(0.0, 0.0), (0.3, 0.0), (0.0, 0.02), (0.3, 0.02)])
@pytest.mark.parametrize("name", LOSSES)
def test_sparse_steps_are_those_of_a_plain_loop(
    name: str, l2: float, l1: float, fit_intercept: bool, weighted: bool
) -> None:
    loss = LOSSES[name]
    X, y, weight = rows_of(loss, weighted)
    penalty = Penalty.of(loss.outputs, FEATURES, l2=l2, fit_intercept=fit_intercept)
    rule = Rule("sgd", 0.4, 20, schedule="cosine", l1=np.where(penalty.penalised, l1, 0.0) if l1 else None)
    start = np.random.default_rng(1).normal(size=(1, penalty.penalised.size)) * 0.1
    start[0, penalty.fixed] = 0.0
    run = Run(epoch=2, step=4, steps=10, count=5, number=4)
    found = take(SparseBlock(X, y, weight), penalty, rule, loss, start, run)

    dense = SparseBlock(X, y, weight)
    stream = LaneStream(3, [Resident(dense)], SEED)
    w, total, losses, sizes = start[0].reshape(loss.outputs, -1).copy(), 0.0, 0.0, 0.0
    for step in range(4, 9):
        eta = 0.2 * (1 + np.cos(np.pi * step / 20))
        [part] = stream.take(2, step, 10)
        rows = np.hstack([part.X.toarray().astype(np.float64), np.ones((part.rows, 1))])
        value, residuals = loss.evaluate(w @ rows.T, part.y, part.weight)
        weights = np.ones(part.rows) if part.weight is None else part.weight.astype(np.float64)
        slope = residuals @ rows / weights.sum()
        if not fit_intercept:
            slope[:, -1] = 0
        w -= eta * slope
        total, losses, sizes = total + weights.sum(), losses + value, sizes + eta
    v = w[:, :-1].copy()
    w[:, :-1] = np.sign(v) * np.maximum(np.abs(v) - l1 * sizes, 0) / (1 + l2 * sizes)
    # The minimum of |p - v|²/2 + s·(l1·|p| + l2/2·p²): v - p is s times a subgradient of the penalties.
    p = w[:, :-1]
    pull = (v - p) / sizes - l2 * p
    np.testing.assert_allclose(pull[p != 0], l1 * np.sign(p[p != 0]), atol=1e-9)
    assert np.all(np.abs(pull[p == 0]) <= l1 + 1e-9)
    before = start[0][penalty.penalised]
    np.testing.assert_allclose(found[1], total, rtol=1e-12)
    np.testing.assert_allclose(found[0], losses + total * 0.5 * l2 * (before @ before), rtol=1e-9)
    np.testing.assert_allclose(found[HEAD:] / total, w.reshape(-1) - start[0], rtol=1e-9, atol=1e-12)


def test_weights_whose_features_no_row_has_stay_as_they_are() -> None:
    loss = LOSSES["logistic"]
    X, y, _ = rows_of(loss, weighted=False)
    penalty = Penalty.of(1, FEATURES, l2=0.0, fit_intercept=True)
    start = np.random.default_rng(1).normal(size=(1, FEATURES + 1))
    moved = take(SparseBlock(X, y, None), penalty, Rule("sgd", 0.5, 10), loss, start, Run(0, 0, 10, 10, 0))[HEAD:]
    there = np.append(np.diff(X.tocsc().indptr) > 0, True)
    assert not moved[~there].any()
    assert moved[there].all()


def test_sparse_rows_and_the_same_dense_ones_go_the_same_way() -> None:
    loss = LOSSES["softmax"]
    X, y, weight = rows_of(loss, weighted=True)
    penalty, rule = Penalty.of(3, FEATURES, l2=0.0, fit_intercept=True), Rule("sgd", 0.4, 30)
    start, run = np.zeros((1, 3 * (FEATURES + 1))), Run(0, 0, 15, 15, 0)
    sparse = take(SparseBlock(X, y, weight), penalty, rule, loss, start, run)
    dense = take(DenseBlock(np.ascontiguousarray(X.toarray().T), y, weight), penalty, rule, loss, start, run)
    # Dense mini-batches are computed in float32.
    np.testing.assert_allclose(sparse[HEAD:] / sparse[1], dense[HEAD:] / dense[1], atol=1e-6)


@pytest.mark.parametrize("kind", ["sparse", "dense"])
def test_a_lane_leaves_between_its_steps_when_the_formation_ends(kind: str) -> None:
    loss, looks = LOSSES["logistic"], list[int]()
    X, y, _ = rows_of(loss, weighted=False)

    def look() -> None:
        looks.append(1)
        if len(looks) > 4:
            raise Regroup

    block = SparseBlock(X, y, None) if kind == "sparse" else DenseBlock(np.ascontiguousarray(X.toarray().T), y, None)
    blocks = [Resident(block)]
    penalty, streams = Penalty.of(1, FEATURES, l2=0.0, fit_intercept=True), {0: LaneStream(0, blocks, SEED)}
    passes = Passes({0: blocks}, FEATURES, loss, look=look)
    steps = LocalSteps(passes, streams, Rule("sgd", 0.5, 10), penalty, sparse=kind == "sparse")
    with pytest.raises(Regroup):
        steps.take(np.zeros((1, FEATURES + 1)), Run(0, 0, 10, 10, 0))
    assert len(looks) == 5


@pytest.fixture
def data(maker: Maker, make_classification: Callable[..., pa.Table]) -> TrainingData:
    return maker.prepare(make_classification(), weight="importance", sparse=True)


def local(every: int) -> dict[str, Any]:
    return {"name": "synchronous", "reduce_every": every}


PARAMS = {"solver": "sgd", "batch_rows": 200, "epochs": 5, "learning_rate": 0.3}


@pytest.mark.slow
@pytest.mark.parametrize("penalties", [{}, {"l2": 0.01, "l1": 0.001}])
def test_the_bits_are_the_same_for_any_ranks(trainer: Trainer, data: TrainingData, penalties: dict[str, float]) -> None:
    params = {**PARAMS, "l2": 0.0, **penalties}
    one, two, three = (
        weights_of(trainer.fit(data, params, ranks=ranks, threads=ranks, lanes=6, strategy=local(4)))
        for ranks in (1, 2, 3)
    )
    for other in (two, three):
        assert other[0].tobytes() == one[0].tobytes()
        assert other[1].tobytes() == one[1].tobytes()


def test_without_penalties_local_steps_of_one_lane_are_plain_steps(trainer: Trainer, data: TrainingData) -> None:
    params = {**PARAMS, "l2": 0.0}
    some = trainer.fit(data, params, ranks=1, lanes=1, strategy=local(4))
    plain = trainer.fit(data, params, ranks=1, lanes=1)
    # The average over one lane multiplies with its weight, and divides by it again.
    np.testing.assert_allclose(weights_of(some)[0], weights_of(plain)[0], rtol=1e-9)


@pytest.mark.slow
def test_with_penalties_the_loss_ends_near_the_one_of_plain_steps(trainer: Trainer, data: TrainingData) -> None:
    params = {**PARAMS, "epochs": 30, "l2": 0.01, "l1": 0.002}
    plain = trainer.fit(data, params, lanes=6)
    some = trainer.fit(data, params, lanes=6, strategy=local(4))
    # At the end of a cosine schedule both are near the minimum; what is left hangs on the last, small steps.
    assert some.summary["loss"] == pytest.approx(plain.summary["loss"], rel=2e-3)
