"""Fits of linear models end well or say why: resume, stop, memory, bad input, what is reported."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pydantic
import pytest

from pipelines.data.split import SplitConfig
from pipelines.errors import DataError, SpecError, TrainingError, UsageError
from pipelines.features import FeatureConfig
from pipelines.training.config import TrainConfig
from pipelines.training.data import TrainingData, load_part, read_rows
from pipelines.training.estimators.linear import LINEAR, LOGISTIC
from pipelines.training.estimators.linear_params import LinearParams
from pipelines.training.estimators.registry import resolve
from pipelines.training.fit import fit
from pipelines.training.gang import StopRequested
from pipelines.training.lanes import default_lanes

Make = Callable[..., pa.Table]


@pytest.fixture
def data(maker: Any, make_classification: Make) -> TrainingData:
    prepared: TrainingData = maker.prepare(make_classification(2500).drop(["importance"]), split=SplitConfig(test=0.3))
    return prepared


SOLVERS: list[dict[str, Any]] = [
    {"solver": "newton", "C": 1.0, "tol": 1e-9},
    {"solver": "lbfgs", "C": 1.0, "tol": 1e-9},
    {"solver": "owlqn", "l1": 0.01, "tol": 1e-9},
    {"solver": "momentum", "C": 1.0, "batch_rows": 200, "epochs": 6},
]
IDS = ["newton", "lbfgs", "owlqn", "momentum"]


@pytest.mark.slow
@pytest.mark.parametrize("params", SOLVERS, ids=IDS)
def test_a_stopped_fit_goes_on_from_its_checkpoint_to_the_same_end(
    trainer: Any, data: TrainingData, tmp_path: Path, params: dict[str, Any], read_weights: Any
) -> None:
    url = str(tmp_path / "checkpoints")
    whole = trainer.fit(data, params)
    trainer.messages.clear()
    with pytest.raises(StopRequested):
        trainer.fit(data, params, ranks=3, checkpoint_url=url, stop=trainer.has_stepped)
    resumed = trainer.fit(data, params, checkpoint_url=url)
    assert resumed.summary["resumed_from"] == 1
    assert resumed.summary["n_iter"] >= whole.summary["n_iter"] - 1
    for one, other in zip(read_weights(resumed), read_weights(whole), strict=True):
        if params["solver"] in ("lbfgs", "owlqn", "momentum"):
            assert one.tobytes() == other.tobytes()
        else:
            np.testing.assert_allclose(one, other, atol=1e-7)


def test_checkpoints_are_saved_every_so_many_steps(trainer: Any, data: TrainingData, tmp_path: Path) -> None:
    params = {"solver": "sgd", "batch_rows": 200, "epochs": 4}
    steps = {"every": "5 steps", "keep": 2}
    found = trainer.fit(data, params, checkpoint_url=str(tmp_path / "c"), checkpoint=steps)
    # A state that still waits to be written when the next one is due gives way to it; the last one is always there.
    assert 1 <= found.summary["checkpoints"] <= found.summary["n_iter"] // 5
    commits = sorted(path.name for path in (tmp_path / "c").rglob("*.json"))
    assert 1 <= len(commits) <= 2
    assert commits[0] == f"{10**10 - found.summary['n_iter'] // 5 * 5:011d}.json"


def test_a_checkpoint_of_another_configuration_is_not_gone_on_from(
    trainer: Any, data: TrainingData, tmp_path: Path
) -> None:
    url = str(tmp_path / "checkpoints")
    with pytest.raises(StopRequested):
        trainer.fit(data, SOLVERS[1], checkpoint_url=url, stop=trainer.has_stepped)
    other = trainer.fit(data, {**SOLVERS[1], "C": 2.0}, checkpoint_url=url)
    assert other.summary["resumed_from"] is None


@pytest.mark.parametrize("sparse", [False, True])
def test_rows_beyond_the_memory_are_kept_on_disk_and_give_the_same_bits(
    trainer: Any, maker: Any, make_classification: Make, monkeypatch: pytest.MonkeyPatch, sparse: bool
) -> None:
    data = maker.prepare(make_classification(3000), weight="importance", sparse=sparse)
    inside = trainer.fit(data, {"C": 1.0})
    assert inside.summary["ranks"][0]["disk_bytes"] == 0
    from pipelines.training.estimators import linear_rank
    from pipelines.training.loading import Room

    monkeypatch.setattr(linear_rank, "plan_room", lambda *_: Room(0, 16 << 20))
    outside = trainer.fit(data, {"C": 1.0})
    assert outside.summary["ranks"][0]["memory_bytes"] == 0
    assert outside.summary["ranks"][0]["disk_bytes"] > 0
    assert inside.files == outside.files


def test_the_summary_says_what_happened(trainer: Any, data: TrainingData) -> None:
    found = trainer.fit(data, {"C": 1.0, "solver": "lbfgs"})
    summary = json.loads(json.dumps(found.summary))
    assert summary["rows"] == (data.rows or {})["train"] < 2500
    assert summary["stop_reason"] == "tolerance"
    assert summary["residual"] <= 1e-6
    assert summary["history"] == sorted(summary["history"], reverse=True)
    assert summary["l2"] == pytest.approx(1 / summary["rows"])
    assert [rank["rank"] for rank in summary["ranks"]] == [0, 1]
    assert json.loads(found.files["linear.json"]) == {"link": "logistic", "schema_number": 1}
    # Paces are told once a second.
    assert {message["unit"] for message in trainer.messages} - {"pace"} == {"load", "began", "step"}


def test_more_ranks_than_lanes_are_not_started(trainer: Any, data: TrainingData) -> None:
    found = trainer.fit(data, {"C": 1.0}, ranks=4, lanes=2)
    assert len(found.summary["ranks"]) == 2
    assert found.summary["lanes"] == 2


# --- bad input -------------------------------------------------------------------------------------------------------


def test_features_that_are_missing_are_named(trainer: Any, maker: Any, make_classification: Make) -> None:
    table = make_classification(500).drop(["importance", "colour"])
    holes = pa.array([None if row % 7 == 0 else 1.0 * row for row in range(500)])
    table = table.set_column(table.column_names.index("x2"), "x2", holes)
    features = [FeatureConfig(columns=["x0", "x1", "x2", "x3"], scale="standard", impute="none")]
    data = maker.prepare(table, features=features)
    with pytest.raises(DataError, match=r"feature x2: .*impute: mean"):
        trainer.fit(data, {"C": 1.0})


@pytest.mark.parametrize("bad", [-1.0, float("nan"), None])
def test_weights_that_cannot_be_used_are_named(trainer: Any, maker: Any, make_classification: Make, bad: Any) -> None:
    table = make_classification(300)
    weights = pa.array([bad if row == 211 else 1.0 for row in range(300)])
    table = table.set_column(table.column_names.index("importance"), "importance", weights)
    data = maker.prepare(table, weight="importance")
    with pytest.raises(DataError, match="column importance"):
        trainer.fit(data, {"C": 1.0})


def test_weights_that_are_all_zero_teach_nothing(trainer: Any, maker: Any, make_classification: Make) -> None:
    table = make_classification(300)
    table = table.set_column(table.column_names.index("importance"), "importance", pa.array(np.zeros(300)))
    with pytest.raises(TrainingError, match="nothing to learn from"):
        trainer.fit(maker.prepare(table, weight="importance"), {"C": 1.0})


def test_a_class_of_no_weight_is_named(trainer: Any, maker: Any, make_classification: Make) -> None:
    table = make_classification(300)
    weights = pa.array((table["label"].to_numpy() == 0).astype(float))
    table = table.set_column(table.column_names.index("importance"), "importance", weights)
    with pytest.raises(TrainingError, match=r"classes have no training rows.*nothing for 1"):
        trainer.fit(maker.prepare(table, weight="importance"), {"C": 1.0})


def test_class_weights_of_unknown_labels_are_named(data: TrainingData) -> None:
    with pytest.raises(SpecError, match="maybe"):
        fit(TrainConfig(estimator="logistic_regression", class_weight={"maybe": 2.0}), data, client=None, ranks=1)


def test_a_diverging_descent_says_so(trainer: Any, maker: Any, make_classification: Make) -> None:
    table = make_classification(1000).drop(["importance", "label"])
    data = maker.prepare(table.append_column("label", table["x0"]), kind="regression")
    params = {"solver": "sgd", "learning_rate": 1e4, "batch_rows": 100}
    with pytest.raises(TrainingError, match=r"diverged at step \d+"):
        trainer.fit(data, params)


@pytest.mark.parametrize(
    ("params", "word"),
    [
        ({"l2": -1}, "greater than or equal to 0"),
        ({"C": 1, "l2": 1}, "either C"),
        ({"l1_ratio": 0.5}, "give C too"),
        ({"solver": "lbfgs", "l1": 0.1}, "smooth"),
        ({"solver": "newton", "learning_rate": 0.1}, "learning_rate belong to mini-batches"),
        ({"solver": "adam", "max_iter": 5}, "set epochs"),
        ({"solver": "adma"}, "adam"),
        ({"penalty": "l2"}, "Extra inputs"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(params: dict[str, Any], word: str) -> None:
    with pytest.raises(pydantic.ValidationError, match=word):
        LinearParams.model_validate(params)


def test_labels_and_estimators_must_fit(data: TrainingData) -> None:
    with pytest.raises(ValueError, match="class_weight"):
        LINEAR.check(TrainConfig(estimator="linear_regression", class_weight="balanced"))
    assert isinstance(LOGISTIC.check(TrainConfig(estimator="logistic_regression")), LinearParams)
    assert resolve("logistic_regression") is LOGISTIC
    with pytest.raises(UsageError, match="does not learn a binary label"):
        fit(TrainConfig(estimator="linear_regression"), data, client=None, ranks=1)


@pytest.mark.parametrize(
    ("every", "expected"),
    [
        ("60 s", (60.0, None)),
        ("2 minutes", (120.0, None)),
        (30, (30.0, None)),
        ("500 steps", (None, 500)),
        ("1 round", (None, 1)),
    ],
)
def test_intervals_between_checkpoints(every: Any, expected: tuple[float | None, int | None]) -> None:
    config = TrainConfig(estimator="xgboost", checkpoint={"every": every}).checkpoint
    assert (config.every_s, config.every_steps) == expected


@pytest.mark.parametrize("every", ["often", "0 steps", "-3 s", "5 parsecs"])
def test_intervals_that_are_none_are_refused(every: str) -> None:
    with pytest.raises(pydantic.ValidationError):
        TrainConfig(estimator="xgboost", checkpoint={"every": every})


# --- lanes and rows --------------------------------------------------------------------------------------------------


def test_one_number_of_lanes_serves_up_to_eight_workers() -> None:
    assert {default_lanes(workers) for workers in range(1, 9)} == {32}
    assert default_lanes(9) == 64


def test_parts_are_read_in_a_stream_or_as_one_matrix(data: TrainingData) -> None:
    shards = data.shards.shards
    for part in ("train", "test", None):
        streamed = list(read_rows(data, shards, part, batch_rows=100))
        whole = load_part(data, shards, part)
        np.testing.assert_array_equal(np.concatenate([each.X for each in streamed]), whole.X)
        np.testing.assert_array_equal(np.concatenate([each.y for each in streamed]), whole.y)
        assert whole.X.flags.f_contiguous
        some = load_part(data, shards[2:5], part)
        assert 0 < len(some.y) < len(whole.y)


def test_training_data_survive_the_trip_to_a_rank(data: TrainingData) -> None:
    back = TrainingData.from_plain(json.loads(json.dumps(data.to_plain())))
    assert back.shards == data.shards
    assert back.features == data.features
    assert (back.source, back.split, back.target, back.rows) == (data.source, data.split, data.target, data.rows)
    few = data.subset([3, 1])
    assert few.shards.shards == (data.shards.shards[3], data.shards.shards[1])
