"""Trainings that can't end at a minimum say so, and say why; data that are only uneven train as any."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pipelines.data.config import DataConfig
from pipelines.errors import DataError, TrainingError
from pipelines.features import FeatureConfig
from pipelines.training import blocks
from pipelines.training.config import TrainConfig
from pipelines.training.data import TrainingData
from pipelines.training.estimators import linear_ending, linear_setting
from pipelines.training.fit import fit

Make = Callable[..., pa.Table]


def table_of(rows: int = 400, classes: int = 2) -> pa.Table:
    """Classes that follow each other along x, and noise."""
    x = np.linspace(-1, 1, rows)
    noise = np.random.default_rng(0).normal(size=rows)
    return pa.table({"x": x, "noise": noise, "label": np.arange(rows) * classes // rows})


@pytest.mark.parametrize("solver", ["newton", "lbfgs"])
@pytest.mark.parametrize("max_iter", [8, 500])
def test_separable_classes_have_no_minimum_without_a_penalty(
    trainer: Any, maker: Any, solver: str, max_iter: int
) -> None:
    data = maker.prepare(table_of())
    for ranks in (1, 3):
        found = trainer.fit(data, {"l2": 0.0, "solver": solver, "max_iter": max_iter}, ranks=ranks).summary
        assert (found["stop_reason"], found["converged"]) == ("unbounded", False)
        assert "x" in found["unbounded"]


def test_a_feature_is_named_also_where_the_intercept_does_most(trainer: Any, maker: Any) -> None:
    x = np.random.default_rng(0).integers(80, 5000, 2000).astype(float)
    data = maker.prepare(pa.table({"distance": x, "label": (x > 1000).astype(int)}))
    assert trainer.fit(data, {"l2": 0.0}).summary["unbounded"] == ["distance"]


@pytest.mark.parametrize("params", [{"C": 1.0}, {"l2": 1e-6}, {"l1": 1e-4}], ids=["C", "l2", "l1"])
def test_a_penalty_gives_separable_classes_a_minimum(trainer: Any, maker: Any, params: dict[str, Any]) -> None:
    found = trainer.fit(maker.prepare(table_of()), params).summary
    assert (found["stop_reason"], found["converged"]) == ("tolerance", True)


def test_several_separable_classes_have_no_minimum(trainer: Any, maker: Any) -> None:
    data = maker.prepare(table_of(classes=3).append_column("z", pa.array(np.linspace(-1, 1, 400) ** 2)))
    found = trainer.fit(data, {"l2": 0.0, "max_iter": 3000}).summary
    assert (found["stop_reason"], found["converged"]) == ("unbounded", False)


@pytest.mark.parametrize("loss", ["squared_hinge", "hinge"])
def test_margins_have_a_minimum_without_a_penalty(trainer: Any, maker: Any, loss: str) -> None:
    found = trainer.fit(maker.prepare(table_of()), {"l2": 0.0, "loss": loss}, estimator="linear_svm").summary
    assert "unbounded" not in found
    assert found["loss"] < 1e-5


def with_a_pure_category(label: np.ndarray, pure: float, seed: int = 1) -> pa.Table:
    """Rows of three categories; in one of them, of a few rows, the label is always the same."""
    rng = np.random.default_rng(seed)
    category = rng.integers(0, 2, len(label))
    category[:30] = 2
    label = np.where(category == 2, pure, label)
    names = pa.array(["ash", "birch", "cedar"]).take(pa.array(category))
    return pa.table({"x": rng.normal(size=len(label)), "tree": names, "label": label})


def test_a_category_of_one_class_is_named(trainer: Any, maker: Any) -> None:
    label = np.random.default_rng(3).integers(0, 2, 900)
    data = maker.prepare(with_a_pure_category(label, 1), kind="binary")
    found = trainer.fit(data, {"l2": 0.0}).summary
    assert found["stop_reason"] == "unbounded"
    assert [name for name in found["unbounded"] if "cedar" in name]
    assert not [name for name in found["unbounded"] if name == "x"]


def test_a_category_without_any_count_is_named(trainer: Any, maker: Any) -> None:
    label = np.random.default_rng(3).poisson(2.0, 900).astype(float)
    data = maker.prepare(with_a_pure_category(label, 0.0), kind="regression")
    found = trainer.fit(data, {"loss": "poisson"}).summary
    assert found["stop_reason"] == "unbounded"
    assert [name for name in found["unbounded"] if "cedar" in name]
    assert trainer.fit(data, {"loss": "poisson", "l2": 1e-4}).summary["converged"]


@pytest.mark.parametrize("params", [{"l2": 0.0}, {"l2": 0.0, "solver": "lbfgs"}, {"l2": 0.0, "max_iter": 2}])
def test_classes_that_overlap_have_a_minimum(
    trainer: Any, maker: Any, make_classification: Make, params: dict[str, Any]
) -> None:
    data = maker.prepare(make_classification(1000).drop(["importance"]))
    assert "unbounded" not in trainer.fit(data, params).summary


@pytest.fixture
def sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many small blocks of which every twentieth makes a sample, as large data have."""
    monkeypatch.setattr(linear_setting, "_SAMPLE_ROWS", 200)
    monkeypatch.setattr(linear_setting, "_SAMPLE_ROWS_PER_WEIGHT", 1)
    monkeypatch.setattr(blocks, "BLOCK_VALUES", 64)


def large(pure: slice = slice(0, 0), apart: bool = False) -> pa.Table:
    """4,000 rows; in those of `pure` a flag is set, and the label always 1; or x tells all labels apart."""
    rng = np.random.default_rng(4)
    x, flag = rng.normal(size=4000), np.zeros(4000)
    label = (x > 0 if apart else x + rng.logistic(size=4000) > 0).astype(int)
    flag[pure], label[pure] = 1.0, 1
    return pa.table({"x": x, "flag": flag if pure.stop else rng.normal(size=4000), "label": label})


@pytest.mark.usefixtures("sampled")
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("solver", ["newton", "lbfgs"])
def test_a_sample_is_enough_to_see_that_there_is_a_minimum(
    trainer: Any, maker: Any, monkeypatch: pytest.MonkeyPatch, solver: str, ranks: int
) -> None:
    data = maker.prepare(large())
    quick = trainer.fit(data, {"l2": 0.0, "solver": solver}, ranks=ranks, lanes=2).summary
    monkeypatch.setattr(linear_ending, "_sample_has_minimum", lambda *_: False)
    whole = trainer.fit(data, {"l2": 0.0, "solver": solver}, ranks=ranks, lanes=2).summary
    assert quick["converged"]
    assert quick["loss"] == whole["loss"]
    assert quick["passes"] < whole["passes"] - 1


@pytest.mark.usefixtures("sampled")
@pytest.mark.parametrize("solver", ["newton", "lbfgs"])
def test_a_sample_of_separable_classes_hides_nothing(trainer: Any, maker: Any, solver: str) -> None:
    found = trainer.fit(maker.prepare(large(apart=True)), {"l2": 0.0, "solver": solver}, lanes=2).summary
    assert found["unbounded"] == ["x"]


# The sample has the first block of the first lane, and none of the rows from 70 to 110.
@pytest.mark.usefixtures("sampled")
@pytest.mark.parametrize("pure", [slice(70, 110), slice(0, 4000, 50)], ids=["beside the sample", "everywhere"])
@pytest.mark.parametrize("params", [{}, {"tol": 1e-12}, {"solver": "lbfgs"}], ids=["newton", "to the end", "lbfgs"])
def test_what_a_sample_lacks_is_looked_for_in_the_whole(
    trainer: Any, maker: Any, params: dict[str, Any], pure: slice
) -> None:
    found = trainer.fit(maker.prepare(large(pure)), {"l2": 0.0, **params}, lanes=2).summary
    assert found["stop_reason"] == "unbounded"
    assert found["unbounded"][0] == "flag"


@pytest.mark.usefixtures("sampled")
@pytest.mark.parametrize("max_iter", [1, 2, 100])
@pytest.mark.parametrize("size", [1.0, 30.0])
def test_exponentials_of_heavy_tails_are_not_called_endless(
    trainer: Any, maker: Any, size: float, max_iter: int
) -> None:
    rng = np.random.default_rng(7)
    x = rng.standard_t(2, size=(4000, 2)) * size
    label = rng.poisson(np.exp(np.clip(x[:, 0] / size, -3, 3))).astype(float)
    table = pa.table({"x": x[:, 0], "z": x[:, 1], "label": label})
    data = maker.prepare(table, kind="regression", features=[FeatureConfig(columns=["x", "z"], scale="none")])
    found = trainer.fit(data, {"loss": "poisson", "max_iter": max_iter}, lanes=2).summary
    assert "unbounded" not in found
    assert np.isfinite(found["loss"])


@pytest.mark.parametrize("loss", ["poisson", "gamma", "tweedie"])
@pytest.mark.parametrize("params", [{"max_iter": 1}, {"max_iter": 2}, {"solver": "momentum", "epochs": 1}])
@pytest.mark.parametrize("curves", [True, False])
def test_a_training_ended_early_is_not_called_endless(
    trainer: Any, maker: Any, monkeypatch: pytest.MonkeyPatch, loss: str, params: dict[str, Any], curves: bool
) -> None:
    if not curves:
        monkeypatch.setattr(linear_ending, "NEWTON_WEIGHTS", 0)
        params = {"solver": "lbfgs", **params}
    rng = np.random.default_rng(7)
    x = rng.standard_t(2, size=900)
    label = np.exp(np.clip(x, -3, 3)) * rng.gamma(2.0, 0.5, 900)
    found = trainer.fit(maker.prepare(pa.table({"x": x, "label": label}), kind="regression"), {"loss": loss, **params})
    assert found.summary["stop_reason"] == "max_iter"
    assert "unbounded" not in found.summary


@pytest.mark.parametrize("max_iter", [10, 500])
def test_separable_classes_without_curvatures_are_still_known(
    trainer: Any, maker: Any, monkeypatch: pytest.MonkeyPatch, max_iter: int
) -> None:
    monkeypatch.setattr(linear_ending, "NEWTON_WEIGHTS", 0)
    found = trainer.fit(maker.prepare(table_of()), {"l2": 0.0, "solver": "lbfgs", "max_iter": max_iter}).summary
    assert found["stop_reason"] == "unbounded"
    assert "x" in found["unbounded"]


# --- labels and steps that a loss can't take -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loss", "lowest", "expected"),
    [
        ("poisson", -3.0, r"column label: loss: poisson can't take.*at least 0; found -3 in the training split"),
        ("tweedie", -0.5, r"tweedie can't take.*found -0\.5"),
        ("gamma", 0.0, r"gamma can't take.*above 0; found 0 .*tweedie takes zeros"),
        ("gamma", -1.0, r"gamma can't take.*found -1"),
    ],
)
def test_labels_that_a_loss_cannot_take_are_named(maker: Any, loss: str, lowest: float, expected: str) -> None:
    label = np.random.default_rng(0).gamma(2.0, size=300)
    label[211] = lowest
    data = maker.prepare(pa.table({"x": np.arange(300.0), "label": label}), kind="regression")
    with pytest.raises(DataError, match=expected):
        fit(TrainConfig(estimator="linear_regression", params={"loss": loss}), data, client=None, ranks=1)


def test_counts_of_no_weight_leave_nothing_to_learn(trainer: Any, maker: Any) -> None:
    label = np.random.default_rng(0).poisson(0.5, 300).astype(float)
    table = pa.table({"x": np.arange(300.0), "label": label, "weight": (label == 0).astype(float)})
    with pytest.raises(TrainingError, match=r"column label.*weighted mean of 0"):
        trainer.fit(maker.prepare(table, kind="regression", weight="weight"), {"loss": "poisson"})


@pytest.mark.parametrize("loss", ["poisson", "tweedie", "gamma"])
def test_a_descent_of_exponentials_that_diverges_says_where(trainer: Any, maker: Any, loss: str) -> None:
    rng = np.random.default_rng(0)
    data = maker.prepare(
        pa.table({"x": rng.normal(size=500) * 100, "label": rng.gamma(2.0, size=500)}),
        features=[FeatureConfig(columns=["x"], scale="none")],
        kind="regression",
    )
    with pytest.raises(TrainingError, match=r"diverged at step \d+.*smaller learning_rate"):
        trainer.fit(data, {"loss": loss, "solver": "sgd", "learning_rate": 10.0, "batch_rows": 50})


@pytest.mark.parametrize("solver", ["newton", "lbfgs"])
@pytest.mark.parametrize("loss", ["poisson", "tweedie", "gamma"])
def test_exponentials_of_wild_features_still_find_their_minimum(
    trainer: Any, maker: Any, loss: str, solver: str
) -> None:
    """Unscaled features of some thousands, labels over six decades: the first steps go far beyond any exponent."""
    rng = np.random.default_rng(4)
    x = rng.normal(size=600) * 3000
    label = np.exp(x / 1500) * rng.gamma(4.0, 0.25, 600)
    data = maker.prepare(
        pa.table({"x": x, "label": label}), features=[FeatureConfig(columns=["x"], scale="none")], kind="regression"
    )
    found = trainer.fit(data, {"loss": loss, "solver": solver, "tol": 1e-5}).summary
    assert found["converged"]
    assert np.isfinite(found["loss"])


# --- uneven data -----------------------------------------------------------------------------------------------------


def sorted_by_label(make_classification: Make, classes: int = 2) -> pa.Table:
    """Every shard but few holds one class only."""
    return make_classification(1200, classes=classes).drop(["importance"]).sort_by("label")


@pytest.mark.slow
@pytest.mark.parametrize("estimator", ["logistic_regression", "linear_svm"])
@pytest.mark.parametrize("classes", [2, 3])
def test_a_class_that_a_shard_lacks_is_learned(
    trainer: Any, maker: Any, make_classification: Make, read_weights: Any, classes: int, estimator: str
) -> None:
    data = maker.prepare(sorted_by_label(make_classification, classes), kind="auto")
    fits = [trainer.fit(data, {"C": 1.0}, ranks=ranks, estimator=estimator) for ranks in (1, 2, 3)]
    assert all(each.summary["converged"] for each in fits)
    assert len({each.files["coef.npy"] for each in fits}) == 1
    assert len(read_weights(fits[0])[0]) == (1 if classes == 2 else 3)


@pytest.mark.slow
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("solver", ["newton", "lbfgs", "momentum"])
def test_shards_without_rows_after_filtering_train(
    trainer: Any, maker: Any, make_classification: Make, solver: str, sparse: bool
) -> None:
    table = make_classification(1200).drop(["importance"])
    table = table.append_column("day", pa.array(np.arange(1200)))
    # The second file of three, and what is around it, has no row left: whole lanes, and one rank of three, are empty.
    data: TrainingData = maker.prepare(
        table, config=DataConfig(source=".", filter="day < 350 or day >= 850"), sparse=sparse, leave_out=["day"]
    )
    fits = [trainer.fit(data, {"C": 1.0, "solver": solver}, ranks=ranks) for ranks in (1, 2, 3)]
    assert {each.summary["rows"] for each in fits} == {700}
    assert len({each.files["coef.npy"] for each in fits}) == 1
