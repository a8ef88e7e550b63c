"""Columns over ranks give the model that rows over ranks give, in the same bits for any number of ranks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pipelines.data import reader
from pipelines.errors import DataError, SpecError
from pipelines.features import FeatureConfig
from pipelines.training import pages
from pipelines.training.config import TrainConfig
from pipelines.training.data import TrainingData
from pipelines.training.estimators import linear_columns_rank
from pipelines.training.estimators.linear import LOGISTIC
from pipelines.training.gang import StopRequested
from pipelines.training.loading import Room

Make = Callable[..., pa.Table]
TIGHT = {"tol": 1e-9, "max_iter": 3000}
# What is promised; both strategies stop at a gradient of 1e-9, which with these penalties is far closer.
WITHIN = 1e-6


def across(blocks: int) -> dict[str, Any]:
    return {"strategy": {"name": "model_parallel", "blocks": blocks}}


def wide(rows: int = 1500, columns: int = 30, seed: int = 0, classes: int = 2) -> pa.Table:
    """Make rows of many numbers, a category and a label that hangs on some of them."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, columns))
    colour = rng.integers(0, 6, rows)
    weights = rng.normal(size=(columns, classes)) * (rng.random((columns, 1)) < 0.4)
    scores = X @ weights + rng.normal(size=(6, classes))[colour]
    label = (scores + rng.gumbel(size=scores.shape)).argmax(axis=1)
    names = pa.array(["red", "green", "blue", "grey", "pink", "teal"]).take(pa.array(colour))
    numbers = {f"x{j:02d}": X[:, j] for j in range(columns)}
    return pa.table({**numbers, "colour": names, "label": label, "importance": rng.uniform(0.1, 3.0, rows)})


CASES: dict[str, dict[str, Any]] = {
    "binary": {"params": {"l2": 1e-2}},
    "without an intercept": {"params": {"l2": 1e-2, "fit_intercept": False}},
    "sparse": {"params": {"l2": 1e-2}, "sparse": True},
    "weighted": {"params": {"l2": 1e-2}, "weight": "importance"},
    "class weights": {"params": {"l2": 1e-2}, "weight": "importance", "config": {"class_weight": {"1": 3.0}}},
    "multinomial": {"params": {"l2": 1e-2}, "classes": 3},
    "multinomial, sparse, weighted": {"params": {"l2": 1e-2}, "classes": 3, "sparse": True, "weight": "importance"},
    "elastic net": {"params": {"l1": 5e-3, "l2": 1e-2}},
    "squared": {"params": {"l2": 1e-2}, "kind": "regression"},
    "lasso": {"params": {"l1": 5e-3}, "kind": "regression"},
}


def prepare(maker: Any, case: dict[str, Any]) -> TrainingData:
    table = wide(classes=case.get("classes", 2))
    if case.get("kind") == "regression":
        y = 300 + 40 * table["x00"].to_numpy() - 25 * table["x07"].to_numpy()
        y += np.random.default_rng(1).normal(size=len(y))
        table = table.set_column(table.column_names.index("label"), "label", pa.array(y))
    if "weight" not in case:
        table = table.drop(["importance"])
    prepared: TrainingData = maker.prepare(
        table, weight=case.get("weight"), kind=case.get("kind", "auto"), sparse=case.get("sparse")
    )
    return prepared


@pytest.mark.parametrize("name", CASES)
def test_the_coefficients_are_those_of_synchronous_training(
    trainer: Any, maker: Any, read_weights: Any, name: str
) -> None:
    case = CASES[name]
    data = prepare(maker, case)
    params, config = {**case["params"], **TIGHT}, case.get("config", {})
    reference = trainer.fit(data, params, **config)
    expected = np.concatenate([each.ravel() for each in read_weights(reference)])
    fits = [trainer.fit(data, params, ranks=ranks, **config, **across(3)) for ranks in (1, 2, 3)]
    found = np.concatenate([each.ravel() for each in read_weights(fits[1])])
    np.testing.assert_allclose(found, expected, rtol=0, atol=WITHIN * max(1.0, np.abs(expected).max()))
    assert fits[0].files == fits[1].files == fits[2].files
    assert fits[1].summary["converged"]
    np.testing.assert_allclose(fits[1].summary["loss"], reference.summary["loss"], rtol=1e-9)
    std = [np.load(__import__("io").BytesIO(each.files["std.npy"])) for each in (fits[0], reference)]
    np.testing.assert_allclose(std[0], std[1], rtol=1e-9)
