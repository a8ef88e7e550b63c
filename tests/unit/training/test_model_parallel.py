"""Columns over ranks give the model that rows over ranks give, in the same bits for any number of ranks."""

from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pipelines.data.split import SplitConfig
from pipelines.errors import DataError, SpecError
from pipelines.features import FeatureConfig
from pipelines.training import data as training_data
from pipelines.training.certificate import weights_digest
from pipelines.training.config import TrainConfig
from pipelines.training.data import TrainingData
from pipelines.training.estimators import linear_columns_checkpoints, linear_columns_rank
from pipelines.training.estimators.linear import LOGISTIC
from pipelines.training.estimators.linear_columns_checkpoints import ColumnCheckpoints
from pipelines.training.estimators.linear_columns_watch import ColumnWatching
from pipelines.training.gang import StopRequested
from pipelines.training.loading import Room

pytestmark = pytest.mark.slow

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
    "labels missing, and a split": {"params": {"l2": 1e-2}, "holes": True, "split": SplitConfig(test=0.3)},
    "weighted": {"params": {"l2": 1e-2}, "weight": "importance"},
    "class weights": {"params": {"l2": 1e-2}, "weight": "importance", "config": {"class_weight": {"1": 3.0}}},
    "multinomial": {"params": {"l2": 1e-2}, "classes": 3},
    "multinomial, sparse, weighted": {"params": {"l2": 1e-2}, "classes": 3, "sparse": True, "weight": "importance"},
    "elastic net": {"params": {"l1": 5e-3, "l2": 1e-2}},
    "squared": {"params": {"l2": 1e-2}, "kind": "regression"},
    "lasso": {"params": {"l1": 5e-3}, "kind": "regression"},
    "huber": {"params": {"l2": 1e-2, "loss": "huber"}, "kind": "regression"},
    "poisson": {"params": {"l2": 1e-2, "loss": "poisson"}, "kind": "regression"},
    "two labels, weighted": {"params": {"l2": 1e-2}, "kind": "regression", "labels": 2, "weight": "importance"},
    "two labels, sparse": {"params": {"l2": 1e-2}, "kind": "regression", "labels": 2, "sparse": True},
    "squared hinge": {"params": {"l2": 1e-2}, "config": {"estimator": "linear_svm"}},
    "squared hinge of classes": {"params": {"l2": 1e-2}, "classes": 3, "config": {"estimator": "linear_svm"}},
}
KINKED: dict[str, dict[str, Any]] = {
    "hinge": {"params": {"l2": 1e-2, "loss": "hinge"}, "config": {"estimator": "linear_svm"}},
    "quantile": {"params": {"l2": 1e-2, "loss": "quantile", "quantile": 0.7}, "kind": "regression"},
    "quantile with l1": {"params": {"l1": 5e-3, "loss": "quantile"}, "kind": "regression"},
}


def prepare(maker: Any, case: dict[str, Any]) -> TrainingData:
    table = wide(classes=case.get("classes", 2))
    if case.get("kind") == "regression":
        y = 300 + 40 * table["x00"].to_numpy() - 25 * table["x07"].to_numpy()
        y += np.random.default_rng(1).normal(size=len(y))
        table = table.set_column(table.column_names.index("label"), "label", pa.array(y))
    if case.get("labels"):
        table = table.append_column("other", pa.array(-3.0 * table["x01"].to_numpy() + table["x02"].to_numpy()))
    if case.get("holes"):
        label = [None if row % 5 == 0 else value for row, value in enumerate(table["label"].to_pylist())]
        table = table.set_column(table.column_names.index("label"), "label", pa.array(label))
    if "weight" not in case:
        table = table.drop(["importance"])
    prepared: TrainingData = maker.prepare(
        table,
        label=["label", "other"] if case.get("labels") else "label",
        weight=case.get("weight"),
        kind=case.get("kind", "auto"),
        sparse=case.get("sparse"),
        split=case.get("split"),
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
    std, other = (np.load(io.BytesIO(each.files["std.npy"])) for each in (fits[0], reference))
    np.testing.assert_allclose(std, other, rtol=1e-9)


@pytest.mark.parametrize("name", KINKED)
def test_losses_with_a_kink_are_sharpened_to_what_synchronous_training_finds(
    trainer: Any, maker: Any, name: str
) -> None:
    case = KINKED[name]
    data, config = prepare(maker, case), case.get("config", {})
    expected = trainer.fit(data, {**case["params"], "max_iter": 3000}, **config).summary["loss"]
    fits = [
        trainer.fit(data, {**case["params"], "max_iter": 3000}, ranks=ranks, **config, **across(3)) for ranks in (1, 2)
    ]
    assert fits[0].files == fits[1].files
    # Both end where smoothing adds at most 1e-6 to the mean loss, in deviations of the label (40 and more here).
    scale = 100.0 if case.get("kind") == "regression" else 1.0
    assert abs(fits[0].summary["loss"] - expected) < 2e-6 * scale


def test_classes_that_can_be_told_apart_have_no_minimum_without_a_penalty(trainer: Any, maker: Any) -> None:
    table = wide(rows=600, columns=8).drop(["importance", "colour"])
    label = pa.array((table["x03"].to_numpy() > 0).astype(int))
    data = maker.prepare(table.set_column(table.column_names.index("label"), "label", label))
    found = trainer.fit(data, {"l2": 0.0, "max_iter": 30}, ranks=2, **across(4)).summary
    assert found["stop_reason"] == "unbounded"
    assert not found["converged"]
    assert found["unbounded"] == ["x03"]


def test_the_certificate_is_of_the_whole_weights(trainer: Any, maker: Any) -> None:
    data = prepare(maker, CASES["binary"])
    fits = [trainer.fit(data, {"l2": 1e-2}, ranks=ranks, **across(3)) for ranks in (1, 2)]
    one, two = (each.summary["certificate"] for each in fits)
    assert one["final"] == two["final"]
    coef, intercept = (np.load(io.BytesIO(fits[0].files[name])) for name in ("coef.npy", "intercept.npy"))
    assert one["final"] == weights_digest(np.append(coef, intercept))
    assert one["of"] == two["of"]


@pytest.mark.parametrize("name", ["binary", "multinomial, sparse, weighted", "elastic net"])
def test_another_cut_gives_the_same_model_to_rounding(trainer: Any, maker: Any, read_weights: Any, name: str) -> None:
    data, params = prepare(maker, CASES[name]), {**CASES[name]["params"], **TIGHT}
    few, many = (read_weights(trainer.fit(data, params, **across(blocks)))[0] for blocks in (2, 11))
    np.testing.assert_allclose(many, few, rtol=0, atol=WITHIN * np.abs(few).max())


def test_a_hashed_column_is_spread_over_ranks(trainer: Any, maker: Any, read_weights: Any) -> None:
    table = wide().drop(["importance"])
    codes = np.random.default_rng(3).integers(0, 5000, table.num_rows)
    table = table.append_column("word", pa.array([f"w{code}" for code in codes]))
    features = [
        FeatureConfig(columns=["x00", "x01", "colour"]),
        FeatureConfig(columns=["word"], encode="hash", buckets=512),
    ]
    data = maker.prepare(table, features=features)
    assert data.features.sparse
    params = {"l2": 1e-2, **TIGHT}
    expected, _ = read_weights(trainer.fit(data, params))
    fits = [trainer.fit(data, params, ranks=ranks, **across(4)) for ranks in (1, 2)]
    found, _ = read_weights(fits[0])
    assert found.shape[1] > 512
    np.testing.assert_allclose(found, expected, rtol=0, atol=WITHIN)
    assert fits[0].files == fits[1].files


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("solver", ["sgd", "momentum", "adam"])
def test_mini_batches_go_the_same_way_on_any_number_of_ranks_to_near_the_optimum(
    trainer: Any, maker: Any, solver: str, sparse: bool
) -> None:
    data = prepare(maker, {"sparse": sparse, "weight": "importance"})
    rate = {"sgd": 0.5, "momentum": 0.05, "adam": 0.02}[solver]
    params = {"l2": 1e-2, "solver": solver, "learning_rate": rate, "batch_rows": 100, "epochs": 12, "tol": 0.0}
    fits = [trainer.fit(data, params, ranks=ranks, **across(3)) for ranks in (1, 3)]
    assert fits[0].files == fits[1].files
    assert fits[0].summary["n_iter"] == 12 * 15
    best = trainer.fit(data, {"l2": 1e-2, **TIGHT}).summary["loss"]
    # The noise of mini-batches leaves a hundredth of the loss, as in synchronous training.
    assert fits[0].summary["loss"] - best < 5e-3


def test_neither_threads_nor_disks_change_bits(trainer: Any, maker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for case in (CASES["weighted"], CASES["multinomial, sparse, weighted"]):
        data = prepare(maker, case)
        plain = trainer.fit(data, case["params"], ranks=1, **across(4))
        assert trainer.fit(data, case["params"], ranks=2, threads=3, **across(4)).files == plain.files
        with monkeypatch.context() as patch:
            patch.setattr(linear_columns_rank, "plan_room", lambda *_: Room(0, 16 << 20))
            outside = trainer.fit(data, case["params"], ranks=2, **across(4))
        assert outside.summary["ranks"][0]["memory_bytes"] == 0
        assert outside.summary["ranks"][0]["disk_bytes"] > 0
        assert outside.files == plain.files


# --- what a rank reads and holds -------------------------------------------------------------------------------------


def test_a_rank_reads_the_columns_that_its_blocks_need_and_no_others(
    trainer: Any, maker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = prepare(maker, CASES["weighted"])
    read: list[list[str]] = []
    plain = training_data.read_batches

    def reading(source: Any, shards: Any, columns: Sequence[str], **options: Any) -> Any:
        read.append(list(columns))
        return plain(source, shards, columns, **options)

    monkeypatch.setattr(training_data, "read_batches", reading)
    trainer.fit(data, {"l2": 1e-2}, ranks=2, **across(4))
    assert len(read) == 4
    seen = [column for columns in read for column in columns if column not in ("label", "importance")]
    # Every input once; only the category, whose six features were cut, may be read for two blocks.
    assert set(seen) == set(data.features.inputs)
    assert {column for column in seen if seen.count(column) > 1} <= {"colour"}
    assert max(map(len, read)) <= len(data.features.names) // 4 + 2


def test_a_rank_holds_its_share_of_the_columns(trainer: Any, maker: Any) -> None:
    data = maker.prepare(wide(rows=20_000, columns=60).drop(["importance", "colour"]))
    whole = trainer.fit(data, {"l2": 1e-2, "tol": 1e-2}, ranks=1, **across(1)).summary["ranks"]
    shares = trainer.fit(data, {"l2": 1e-2, "tol": 1e-2}, ranks=3, **across(3)).summary["ranks"]
    assert [rank["features"] for rank in shares] == [20, 20, 20]
    # Labels are held beside each block: 4 bytes of 84 in a row. Pages that are not full leave some space, too.
    assert max(rank["memory_bytes"] for rank in shares) < 1.15 * whole[0]["memory_bytes"] / 3


def test_ranks_that_read_other_rows_are_told(trainer: Any, maker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    data = prepare(maker, CASES["binary"])
    plain = linear_columns_rank.load_pages

    def turned(data: TrainingData, block: Any, *args: Any, **options: Any) -> Any:
        if block.number == 1:
            data = replace(data, shards=replace(data.shards, shards=data.shards.shards[::-1]))
        return plain(data, block, *args, **options)

    monkeypatch.setattr(linear_columns_rank, "load_pages", turned)
    with pytest.raises(DataError, match=r"different rows.*1500 rows in block 0 on rank 0"):
        trainer.fit(data, {"l2": 1e-2}, ranks=2, **across(2))


def test_features_that_are_missing_are_named(trainer: Any, maker: Any) -> None:
    table = wide(rows=400, columns=5).drop(["importance", "colour"])
    holes = pa.array([None if row % 7 == 0 else 1.0 * row for row in range(400)])
    table = table.set_column(table.column_names.index("x03"), "x03", holes)
    features = [FeatureConfig(columns=[f"x0{j}" for j in range(5)], scale="standard", impute="none")]
    with pytest.raises(DataError, match=r"feature x03: .*impute: mean"):
        trainer.fit(maker.prepare(table, features=features), {"l2": 1e-2}, ranks=2, **across(2))


# --- words -----------------------------------------------------------------------------------------------------------


def test_more_blocks_than_features_are_refused(trainer: Any, maker: Any) -> None:
    data = maker.prepare(wide(rows=200, columns=3).drop(["importance", "colour"]))
    with pytest.raises(SpecError, match=r"train\.strategy\.blocks: there are 3 features.*at most 3"):
        trainer.fit(data, {"l2": 1e-2}, **across(4))


def test_by_default_there_is_a_block_for_each_thread_and_never_more_than_features(trainer: Any, maker: Any) -> None:
    data = maker.prepare(wide(rows=200, columns=3).drop(["importance", "colour"]))
    for ranks, threads, blocks, used in [(1, 2, 2, 1), (2, 1, 2, 2), (4, 2, 3, 3)]:
        found = trainer.fit(data, {"l2": 1e-2}, ranks=ranks, threads=threads, strategy="model_parallel")
        assert found.summary["blocks"] == blocks
        assert len(found.summary["ranks"]) == used


def test_newtons_method_is_refused() -> None:
    config = TrainConfig(estimator="logistic_regression", params={"solver": "newton"}, strategy="model_parallel")
    with pytest.raises(ValueError, match="model_parallel has no Newton's method"):
        LOGISTIC.check(config)


def test_the_summary_says_what_happened(trainer: Any, maker: Any) -> None:
    data = prepare(maker, CASES["binary"])
    trainer.messages.clear()
    summary = json.loads(json.dumps(trainer.fit(data, {"l2": 1e-2}, **across(3)).summary))
    assert summary["solver"] == "lbfgs"
    assert summary["rows"] == 1500
    assert summary["stop_reason"] == "tolerance"
    assert summary["residual"] <= 1e-6
    assert [rank["rank"] for rank in summary["ranks"]] == [0, 1]
    assert sorted(block for rank in summary["ranks"] for block in rank["blocks"]) == [0, 1, 2]
    assert sum(rank["features"] for rank in summary["ranks"]) == len(data.features.names)
    assert {message["unit"] for message in trainer.messages} == {"load", "began", "step"}


# --- checkpoints -----------------------------------------------------------------------------------------------------

SOLVERS: dict[str, dict[str, Any]] = {
    "lbfgs": {"l2": 1e-2, "tol": 1e-9},
    "owlqn": {"l1": 5e-3, "tol": 1e-8},
    "momentum": {"l2": 1e-2, "solver": "momentum", "batch_rows": 200, "epochs": 4},
    "adam": {"l2": 1e-2, "solver": "adam", "batch_rows": 200, "epochs": 4},
}


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_stopped_fit_goes_on_from_its_checkpoint_to_the_same_bits(
    trainer: Any, maker: Any, tmp_path: Path, solver: str
) -> None:
    data, url, params = prepare(maker, CASES["binary"]), str(tmp_path / "checkpoints"), SOLVERS[solver]
    whole = trainer.fit(data, params, **across(3))
    trainer.messages.clear()
    with pytest.raises(StopRequested):
        trainer.fit(data, params, ranks=3, checkpoint_url=url, stop=trainer.has_stepped, **across(3))
    for ranks in (1, 2):
        resumed = trainer.fit(data, params, ranks=ranks, checkpoint_url=url, **across(3))
        assert resumed.summary["resumed_from"] >= 1
        assert resumed.files == whole.files


def test_only_the_newest_checkpoints_are_kept(
    trainer: Any, maker: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    begin = ColumnCheckpoints.begin

    def at_once(checkpoints: ColumnCheckpoints, *args: Any) -> None:
        begin(checkpoints, *args)
        checkpoints.finish(20)

    monkeypatch.setattr(ColumnCheckpoints, "begin", at_once)
    monkeypatch.setattr(linear_columns_checkpoints, "_ASK_S", 0.0)
    data, folder = prepare(maker, CASES["binary"]), tmp_path / "c"
    every = {"every": "5 steps", "keep": 2}
    found = trainer.fit(data, SOLVERS["momentum"], checkpoint_url=str(folder), checkpoint=every, **across(3))
    assert found.summary["checkpoints"] == found.summary["n_iter"] // 5
    assert len(list(folder.rglob("commits/*.json"))) == 2
    assert len([path for path in folder.rglob("parts/*/*") if path.is_file()]) == 2 * 3


def test_steps_go_on_while_a_checkpoint_is_written(
    trainer: Any, maker: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The first parts are written after ten more steps only; the steps after those wait until it is committed."""
    write, call, seen, written = ColumnCheckpoints._write, ColumnWatching.__call__, [0], threading.Event()

    def see(watch: ColumnWatching, step: Any, state: Any) -> None:
        seen.append(step.number)
        if step.number > 16:
            assert written.wait(20), "ten steps were not seen"
            time.sleep(0.0 if committed() else 0.1)  # more than between two questions whether all is written
        call(watch, step, state)

    def committed() -> list[Path]:
        return list(folder.rglob("commits/*.json"))

    def write_late(checkpoints: ColumnCheckpoints, step: int, parts: Any) -> None:
        end = time.monotonic() + 20
        while max(seen) < step + 10 and not written.is_set():
            assert time.monotonic() < end, "no step was made meanwhile"
            time.sleep(0.001)
        write(checkpoints, step, parts)
        written.set()

    monkeypatch.setattr(ColumnWatching, "__call__", see)
    monkeypatch.setattr(ColumnCheckpoints, "_write", write_late)
    data, folder = prepare(maker, CASES["binary"]), tmp_path / "c"
    params, every = {**SOLVERS["momentum"], "epochs": 10}, {"every": "5 steps"}
    found = trainer.fit(data, params, checkpoint_url=str(folder), checkpoint=every, **across(3))
    assert found.summary["checkpoints"] >= 1
    assert committed()


def test_a_checkpoint_of_another_cut_is_not_gone_on_from(trainer: Any, maker: Any, tmp_path: Path) -> None:
    data, url = prepare(maker, CASES["binary"]), str(tmp_path / "checkpoints")
    with pytest.raises(StopRequested):
        trainer.fit(data, SOLVERS["lbfgs"], checkpoint_url=url, stop=trainer.has_stepped, **across(3))
    assert trainer.fit(data, SOLVERS["lbfgs"], checkpoint_url=url, **across(2)).summary["resumed_from"] is None
