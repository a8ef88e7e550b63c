"""Does ``estimator: xgboost`` train what XGBoost alone would, the same every time, and leave nothing out?"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import psutil
import pytest
import xgboost as xgb
from distributed import Client, LocalCluster
from sklearn.metrics import log_loss, roc_auc_score

from pipelines import codec
from pipelines.cli.training_view import show_training
from pipelines.errors import GangError, InterruptedRunError, SpecError, TrainingError
from pipelines.model import Model, golden_rows
from pipelines.run.journal import Event
from pipelines.run.record import RunRecord, fold
from pipelines.storage import open_store
from pipelines.training.checkpoint import latest_checkpoint
from pipelines.training.config import CheckpointConfig, TrainConfig
from pipelines.training.data import TrainingData
from pipelines.training.estimators.boosting_feed import Feed, Part, binned_bytes, cached_bytes, kept_blocks
from pipelines.training.estimators.boosting_rank import BASE_BYTES
from pipelines.training.fit import Fit, Progress, fit
from pipelines.training.gang import Deadlines

pytestmark = pytest.mark.slow


def config(**params: Any) -> TrainConfig:
    """A small spec."""
    return TrainConfig(estimator="xgboost", params={"num_boost_round": 20, "max_depth": 4, **params})


def train(data: TrainingData, spec: TrainConfig | None = None, **options: Any) -> Fit:
    """Train without Dask: ranks as children of this process."""
    options = {"client": None, "ranks": 1, "threads": 1} | options
    return fit(spec or config(), data, **options)


def native(data: TrainingData, rounds: int = 20, **words: Any) -> xgb.Booster:
    """What XGBoost makes of the same rows by itself."""
    blocks = kept_blocks(Part(data, "train", None, 1))
    matrix = xgb.QuantileDMatrix(Feed(lambda: iter(blocks), data.features.types), enable_categorical=True)
    words = {"objective": "binary:logistic", "max_depth": 4, "seed": 0, "nthread": 1, "tree_method": "hist"} | words
    return xgb.train(words, matrix, rounds)


@pytest.fixture(scope="module")
def cluster():
    with LocalCluster(n_workers=4, threads_per_worker=1, processes=True, dashboard_address=":0") as local:
        yield local


@pytest.fixture(scope="module")
def client(cluster):
    with Client(cluster) as opened:
        yield opened


def test_one_rank_with_native_cuts_makes_the_bytes_that_xgboost_makes(data):
    trained = train(data, config(cuts="native"))
    assert trained.files["model.ubj"] == bytes(native(data).save_raw("ubj"))
    assert trained.summary["n_iter"] == 20


@pytest.mark.parametrize(("ranks", "cuts"), [(1, "sample"), (2, "sample"), (4, "sample"), (4, "native")])
def test_workers_agree_with_native_and_with_themselves(data, client, held_out_rows, ranks, cuts):
    first, second = (train(data, config(cuts=cuts), client=client, ranks=ranks) for _ in range(2))
    assert first.files == second.files, "the same spec on as many workers gives the same bytes"
    X, y = held_out_rows(data)
    model = Model.from_fit(first, data.features, data.target)
    ours, theirs = model.scores_of_matrix(X), native(data).inplace_predict(X)
    # Cuts differ a little: on 623 rows one swapped pair of ranks moves the AUC by 1e-5, and 1e-3 of log loss is far
    # below what one more round brings.
    assert roc_auc_score(y, ours) == pytest.approx(roc_auc_score(y, theirs), abs=2e-3)
    assert log_loss(y, ours) == pytest.approx(log_loss(y, theirs), abs=5e-3)
    assert first.summary["ranks"] == ranks
    golden_rows(model).check(Model.from_files(model.files()))


def test_early_stopping_keeps_the_best_round_and_nothing_after_it(data, held_out_rows):
    spec = config(num_boost_round=300, early_stopping_rounds=4, eval_metric=["auc", "logloss"], learning_rate=0.5)
    trained = train(data, spec)
    history = trained.summary["history"]["validation"]["logloss"]
    best = int(np.argmin(history))
    assert trained.summary["stop_reason"] == "early_stopping"
    assert trained.summary["best_iteration"] == best
    assert trained.summary["n_iter"] == best + 1 < trained.summary["rounds_trained"] == len(history) == best + 5
    assert xgb.Booster(model_file=bytearray(trained.files["model.ubj"])).num_boosted_rounds() == best + 1
    X, y = held_out_rows(data, "validation")
    scores = Model.from_fit(trained, data.features, data.target).scores_of_matrix(X)
    # XGBoost prints ~6 digits of a metric that it adds up in double precision over float32 predictions
    assert log_loss(y, scores) == pytest.approx(history[best], rel=1e-5)


def test_a_rank_without_rows_takes_part(workshop, client, held_out_rows):
    """Rows of one file only survive the filter: two of four ranks have nothing to train on."""
    data = workshop.data(filter="key < 2000", shards=12)
    trained = train(data, config(early_stopping_rounds=50), client=client, ranks=4)
    assert trained.summary["rows"]["train"] < 1500
    X, y = held_out_rows(data, "test")
    scores = Model.from_fit(trained, data.features, data.target).scores_of_matrix(X)
    assert roc_auc_score(y, scores) == pytest.approx(roc_auc_score(y, native(data).inplace_predict(X)), abs=0.02)


def test_more_ranks_than_shards_are_not_started(workshop):
    data = workshop.data(shards=2)
    assert train(data, config(num_boost_round=2), ranks=4).summary["ranks"] <= len(data.shards.shards)


@pytest.mark.parametrize(("label", "kind"), [("band", "multiclass"), ("minutes", "regression")])
def test_every_kind_of_label_is_learned(workshop, held_out_rows, label, kind):
    data = workshop.data(label, kind=kind)
    trained = train(data, config(num_boost_round=30), ranks=2)
    X, y = held_out_rows(data)
    scores = Model.from_fit(trained, data.features, data.target).scores_of_matrix(X)
    if kind == "multiclass":
        assert (scores.argmax(axis=1) == y).mean() > 0.7
    else:
        assert np.corrcoef(scores, y)[0, 1] > 0.8
    assert trained.summary["objective"] == {"multiclass": "multi:softprob", "regression": "reg:squarederror"}[kind]


def test_weights_reach_the_trees(workshop):
    data = workshop.data(weight="weight")
    spec = config(num_boost_round=5, cuts="native").model_copy(
        update={"class_weight": {"true": 3.0}, "sample_weight": "weight"}
    )
    blocks = kept_blocks(Part(data, "train", np.array([1.0, 3.0]), 1))
    matrix = xgb.QuantileDMatrix(Feed(lambda: iter(blocks), data.features.types), enable_categorical=True)
    words = {"objective": "binary:logistic", "max_depth": 4, "seed": 0, "nthread": 1, "tree_method": "hist"}
    assert train(data, spec).files["model.ubj"] == bytes(xgb.train(words, matrix, 5).save_raw("ubj"))


def test_sparse_features_are_learned(workshop, held_out_rows):
    data = workshop.data(categorical="one_hot", sparse=True)
    trained = train(data, ranks=2)
    X, y = held_out_rows(data)
    assert roc_auc_score(y, Model.from_fit(trained, data.features, data.target).scores_of_matrix(X)) > 0.9


def test_monotone_and_interaction_constraints_go_by_name(data, held_out_rows):
    spec = config(monotone_constraints={"x": 1}, interaction_constraints=[["x"], ["z", "carrier"]])
    trained = train(data, spec)
    model = Model.from_fit(trained, data.features, data.target)
    X, _ = held_out_rows(data)
    place = data.features.names.index("x")
    raised = X.copy()
    raised[:, place] += np.float32(0.5)
    known = ~np.isnan(X[:, place])
    assert (model.scores_of_matrix(raised)[known] >= model.scores_of_matrix(X)[known]).all()


def test_rows_that_do_not_fit_are_read_for_every_pass_and_give_the_same_model(workshop, write_data, tmp_path):
    path = write_data(tmp_path / "wide", rows=60_000, files=2, row_group=10_000)
    data = type(workshop)(path).data(shards=8)
    rows = data.rows["train"]
    between = BASE_BYTES + (cached_bytes(rows, 3) + binned_bytes(rows, 3)) // 2
    kept = train(data, config(num_boost_round=3))
    streamed = train(data, config(num_boost_round=3), memory_bytes=between)
    assert (kept.summary["data"], streamed.summary["data"]) == ("kept", "streamed")
    assert kept.files == streamed.files


def test_rows_that_can_not_fit_say_so_before_they_are_read(data):
    with pytest.raises(TrainingError, match=r"do not fit into a worker's memory.*more workers"):
        train(data, memory_bytes=BASE_BYTES)


# --- going on --------------------------------------------------------------------------------------------------------


def test_a_stopped_training_goes_on_from_its_last_round(data, tmp_path):
    spec = config(num_boost_round=60).model_copy(update={"checkpoint": CheckpointConfig(every="1000 rounds")})
    stop = threading.Event()

    def stop_at(progress: Progress) -> None:
        if progress.unit == "round":
            stop.set()

    with pytest.raises(InterruptedRunError):
        train(data, spec, ranks=2, checkpoint_url=str(tmp_path), stop=stop, report=stop_at)
    (prefix,) = {info.key.split("/")[0] for info in open_store(str(tmp_path)).list()}
    saved = latest_checkpoint(open_store(str(tmp_path)), prefix)
    assert saved is not None
    assert 1 <= saved.step < 60
    resumed = train(data, spec, ranks=2, checkpoint_url=str(tmp_path))
    assert resumed.summary["resumed_from"] == saved.step
    whole = train(data, spec, ranks=2)
    # Without row or column sampling nothing is drawn, so the resumed model has the same trees.
    assert resumed.files == whole.files
    assert resumed.summary["history"] == whole.summary["history"]


def test_early_stopping_goes_on_with_its_patience(data, tmp_path):
    every = {"checkpoint": CheckpointConfig(every="3 rounds")}
    words = {"early_stopping_rounds": 4, "learning_rate": 0.5, "eval_metric": "logloss"}
    whole = train(data, config(num_boost_round=300, **words).model_copy(update=every))
    train(data, config(num_boost_round=300, **words).model_copy(update=every), checkpoint_url=str(tmp_path))
    # Trained once more, it goes on from the last checkpoint, and stops at the same round.
    again = train(data, config(num_boost_round=300, **words).model_copy(update=every), checkpoint_url=str(tmp_path))
    assert again.summary["resumed_from"] is not None
    assert again.summary["n_iter"] == whole.summary["n_iter"]
    assert again.files == whole.files


def test_another_spec_does_not_go_on_from_the_checkpoint(data, tmp_path):
    every = {"checkpoint": CheckpointConfig(every="2 rounds", keep=1)}
    train(data, config(num_boost_round=4).model_copy(update=every), checkpoint_url=str(tmp_path))
    other = train(data, config(num_boost_round=4, max_depth=2).model_copy(update=every), checkpoint_url=str(tmp_path))
    assert other.summary["resumed_from"] is None


# --- what goes wrong -------------------------------------------------------------------------------------------------


def test_labels_that_the_objective_refuses_are_one_plain_error(workshop):
    data = workshop.data("minutes", kind="regression")
    with pytest.raises(TrainingError, match=r"XGBoost: .*label"):
        train(data, config(objective="count:poisson"), ranks=2)


def test_a_lost_rank_ends_the_training_at_once_and_is_named(data, client):
    """A rank is killed while trees are grown: the error names it, whatever XGBoost on the others says."""
    killed = threading.Event()

    def kill_one(progress: Progress) -> None:
        if progress.unit == "round" and not killed.is_set():
            killed.set()
            _ranks()[0].kill()

    with pytest.raises(GangError, match=r"rank \d.*killed"):
        train(data, config(num_boost_round=100_000), client=client, ranks=2, report=kill_one,
              deadlines=Deadlines(step_s=60))  # fmt: skip
    assert killed.is_set()
    assert not _ranks()


def _ranks() -> list[psutil.Process]:
    """The ranks among the processes below this one."""
    below = psutil.Process().children(recursive=True)
    return [each for each in below if "pipelines.training.gang.rank" in each.cmdline()]


@pytest.mark.parametrize(("spec", "says"), [
    ({"early_stopping_rounds": 3}, "early stopping needs a validation split"),
    ({"evals": ["validation"]}, "validation split has no rows"),
    ({"objective": "reg:squarederror"}, "does not learn a binary label"),
    ({"monotone_constraints": {"y": 1}}, "there is no feature 'y'"),
])  # fmt: skip
def test_what_can_not_work_is_told_before_any_rank_starts(workshop, spec, says):
    data = workshop.data(validation=0.0)
    with pytest.raises(SpecError, match=says):
        train(data, config(**spec))


def test_what_is_certified_can_be_shown(data, capsys):
    """``mutirao run show`` prints it as that of every estimator."""
    fitted = train(data, config(num_boost_round=3))
    event = Event(0.0, "stage", "train", {"status": "done", "summary": fitted.summary})
    show_training(fold(RunRecord("x", "p"), [event]))
    shown = capsys.readouterr().out
    assert f"sha256 {codec.digest(fitted.files['model.ubj'])}" in shown
    assert "1 ranks of 1 threads" in shown


def test_progress_is_told(data):
    told: list[Progress] = []
    train(data, config(num_boost_round=5), report=told.append)
    assert told[0].unit == "load"
    last = told[-1]
    assert (last.unit, last.done, last.total) == ("round", 5, 5)
    assert last.rows_per_s > 0
    assert "validation-logloss" in last.metrics
