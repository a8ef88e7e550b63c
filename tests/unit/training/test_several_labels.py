"""Several numbers are learned at once as if each were alone: trained, predicted, measured."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pydantic
import pytest
import sklearn.metrics as skm
from sklearn.linear_model import PoissonRegressor, Ridge

from pipelines.data.split import SplitConfig
from pipelines.errors import DataError, UsageError
from pipelines.evaluation import EvaluateConfig, EvaluationData, ModelRef, evaluate
from pipelines.features import LabelConfig
from pipelines.model import golden_rows, save_model
from pipelines.model.model import Model
from pipelines.storage import open_store
from pipelines.training.config import TrainConfig
from pipelines.training.data import TrainingData, load_part
from pipelines.training.fit import fit

LABELS = ["far", "near"]


@pytest.fixture
def table(make_classification: Any) -> pa.Table:
    found = make_classification(1500).drop(["label"])
    rng = np.random.default_rng(7)
    inner = 0.4 * found["x0"].to_numpy() - 0.2 * found["x3"].to_numpy()
    found = found.append_column("far", pa.array(1e5 + 3e3 * inner + 500 * rng.normal(size=1500)))
    found = found.append_column(
        "near", pa.array(0.01 * (found["x1"].to_numpy() - inner) + 0.001 * rng.normal(size=1500))
    )
    found = found.append_column("count", pa.array(rng.poisson(np.exp(inner)).astype(float)))
    return found.append_column("many", pa.array(rng.poisson(20 * np.exp(-inner)).astype(float)))


def prepared(maker: Any, table: pa.Table, labels: list[str], **more: Any) -> TrainingData:
    leave_out = [name for name in ("far", "near", "count", "many") if name not in labels]
    data: TrainingData = maker.prepare(table.drop(leave_out), label=labels, kind="regression", **more)
    return data


def matrix(data: TrainingData) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rows = load_part(data, data.shards.shards, "train")
    X = rows.X.toarray() if data.features.sparse else rows.X
    assert rows.weight is not None
    return X.astype(np.float64), rows.y.astype(np.float64), rows.weight.astype(np.float64)


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["newton", "lbfgs"])
@pytest.mark.parametrize("sparse", [False, True])
def test_ridge_of_several_labels_is_scikit_learns(
    trainer: Any, maker: Any, table: pa.Table, read_weights: Any, solver: str, sparse: bool
) -> None:
    data = prepared(maker, table, LABELS, weight="importance", sparse=sparse)
    X, y, w = matrix(data)
    best = Ridge(alpha=0.1 * w.sum(), solver="cholesky", tol=1e-12).fit(X, y, sample_weight=w)
    params = {"l2": 0.1, "solver": solver, "tol": 1e-9}
    fits = [trainer.fit(data, params, ranks=ranks) for ranks in (1, 2, 3)]
    assert len({each.files["coef.npy"] for each in fits}) == 1
    coef, intercept = read_weights(fits[0])
    # Labels are float32, which holds 1e5 to 4e-3; the other is held to 1e-7 of itself.
    for k in range(2):
        np.testing.assert_allclose(coef[k], best.coef_[k], rtol=0, atol=2e-5 * np.abs(best.coef_[k]).max())
        assert intercept[k] == pytest.approx(best.intercept_[k], rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("labels", "params"),
    [
        (["count", "many"], {"loss": "poisson", "l2": 1e-2}),
        (LABELS, {"loss": "huber", "epsilon": 0.5, "l2": 1e-2}),
        (LABELS, {"loss": "quantile", "quantile": 0.8, "l2": 1e-2}),
        (LABELS, {"loss": "squared", "l1": 0.0, "solver": "momentum", "epochs": 3}),
    ],
    ids=["poisson", "huber", "quantile", "mini-batches"],
)
def test_each_label_is_learned_as_if_it_were_alone(
    trainer: Any, maker: Any, table: pa.Table, read_weights: Any, labels: list[str], params: dict[str, Any]
) -> None:
    together = trainer.fit(prepared(maker, table, labels, weight="importance"), params)
    coef, intercept = read_weights(together)
    for k, label in enumerate(labels):
        alone = prepared(maker, table, [label], weight="importance")
        # With several labels penalties count at the scale of learning: there losses are divided by a label's mean
        # (poisson) or deviation (quantile), and its weights by its deviation (quantile).
        _, y, w = matrix(alone)
        unit = {"poisson": float(np.average(y, weights=w)), "quantile": 1 / (alone.target.std or 1)}
        units = {"l2": params["l2"] * unit[params["loss"]]} if params["loss"] in unit else {}
        one, start = read_weights(trainer.fit(alone, {**params, **units}))
        spread = 1e-4 if params["loss"] == "quantile" else 1e-5
        np.testing.assert_allclose(coef[k], one[0], rtol=0, atol=spread * np.abs(one).max())
        assert intercept[k] == pytest.approx(start[0], rel=1e-4)


def test_counts_of_several_labels_are_scikit_learns(
    trainer: Any, maker: Any, table: pa.Table, read_weights: Any
) -> None:
    data = prepared(maker, table, ["count", "many"], weight="importance")
    X, y, w = matrix(data)
    coef, _ = read_weights(trainer.fit(data, {"loss": "poisson", "l2": 0.01, "tol": 1e-9}))
    for k in range(2):
        mean = np.average(y[:, k], weights=w)
        best = PoissonRegressor(alpha=0.01 * mean, solver="newton-cholesky", tol=1e-10).fit(X, y[:, k], w)
        np.testing.assert_allclose(coef[k], best.coef_, rtol=0, atol=1e-5 * np.abs(best.coef_).max())


def test_rows_that_lack_one_label_are_left_out(trainer: Any, maker: Any, table: pa.Table) -> None:
    far = table["far"].to_pylist()
    near = table["near"].to_pylist()
    far[3], near[4], near[1000] = None, None, math.nan
    holes = table.drop(LABELS).append_column("far", pa.array(far)).append_column("near", pa.array(near))
    data = prepared(maker, holes, LABELS, weight="importance")
    assert data.rows == {"train": 1497, "validation": 0, "test": 0}
    assert trainer.fit(data, {}).summary["rows"] == 1497


def test_predictions_and_metrics_stand_for_each_label(
    trainer: Any, maker: Any, table: pa.Table, tmp_path: Path
) -> None:
    data = prepared(maker, table.drop(["importance"]), LABELS, split=SplitConfig(test=0.3))
    model = Model.from_files(Model.from_fit(trainer.fit(data, {}), data.features, data.target).files())
    assert model.signature_out.names == ["prediction_far", "prediction_near"]
    assert model.describe()["target"]["others"] == ["near"]
    golden_rows(model).check(model)
    predicted = model.predict(table)
    np.testing.assert_array_equal(predicted["prediction_near"].to_numpy(), model.scores(table)[:, 1])

    digest = save_model(model, open_store(str(tmp_path / "models")), "m")
    found = evaluate(
        ModelRef(str(tmp_path / "models"), "m", digest),
        EvaluationData(data.source, data.shards, data.split, data.target),
        EvaluateConfig(metrics=["rmse", "r2", "gamma_deviance"], segments=["colour"]),
        client=None,
        scratch_url=str(tmp_path / "scratch"),
        parts=("test",),
    ).parts["test"]
    rows = load_part(data, data.shards.shards, "test")
    scores = model.scores_of_matrix(rows.X)
    y = rows.y.astype(np.float64)
    metrics = found.measures.metrics
    for k, label in enumerate(LABELS):
        rmse = skm.root_mean_squared_error(y[:, k], scores[:, k])
        assert metrics[f"rmse[{label}]"] == pytest.approx(rmse, rel=1e-4)  # ours are not rounded to float32
        assert metrics[f"r2[{label}]"] == pytest.approx(skm.r2_score(y[:, k], scores[:, k]), rel=1e-4)
    assert metrics["rmse"] == pytest.approx(skm.root_mean_squared_error(y, scores), rel=1e-4)
    assert metrics["r2"] == pytest.approx(skm.r2_score(y, scores), rel=1e-4)
    assert metrics["gamma_deviance"] is None
    assert metrics["gamma_deviance[far]"] is not None
    assert found.measures.undefined["gamma_deviance"].startswith("near: needs labels above 0")
    assert found.baseline["r2"] == pytest.approx(0, abs=0.02)
    segment = found.segments[0].segments[0].measures
    assert {"rmse", "rmse[far]", "rmse[near]"} <= set(segment.metrics)


def test_a_label_that_a_loss_cannot_take_is_named_among_several(maker: Any, table: pa.Table) -> None:
    data = prepared(maker, table, LABELS, weight="importance")
    with pytest.raises(DataError, match=r"column near: loss: gamma can't take"):
        fit(TrainConfig(estimator="linear_regression", params={"loss": "gamma"}), data, client=None, ranks=1)


def test_estimators_of_one_label_refuse_several(maker: Any, table: pa.Table) -> None:
    data = prepared(maker, table, LABELS, weight="importance")
    with pytest.raises(UsageError, match=r"xgboost learns one label; found 2: far, near. .*linear_regression"):
        fit(TrainConfig(estimator="xgboost"), data, client=None, ranks=1)


def test_several_columns_can_be_said_in_three_ways() -> None:
    said: list[Any] = [["a", "b"], {"column": ["a", "b"]}, {"column": "a", "others": ["b"], "kind": "regression"}]
    for label in said:
        config = LabelConfig.model_validate(label)
        assert (config.columns, config.kind) == (("a", "b"), "regression")
        assert LabelConfig.model_validate(config.model_dump(mode="json", exclude_unset=True)) == config
    assert LabelConfig.model_validate({"column": ["a"]}) == LabelConfig(column="a")


@pytest.mark.parametrize(
    ("label", "word"),
    [
        ({"column": ["a", "b"], "kind": "binary"}, "kind: regression only"),
        ({"column": ["a", "b", "a"]}, "twice"),
        ({"column": []}, "at least one column"),
        ({"column": "a", "others": ["b"]}, "kind is auto"),
    ],
)
def test_several_columns_that_make_no_sense_are_refused(label: Any, word: str) -> None:
    with pytest.raises(pydantic.ValidationError, match=word):
        LabelConfig.model_validate(label)
