"""Do foreign classes fit as scikit-learn would on the same rows, through dask-ml, batch by batch, or on a sample?"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from distributed import Client, LocalCluster
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression, Ridge, SGDClassifier
from sklearn.metrics import roc_auc_score
from sklearn.naive_bayes import GaussianNB

from pipelines.data.order import epoch_order
from pipelines.errors import InterruptedRunError, SpecError, TrainingError, UserCodeError
from pipelines.model import Model, golden_rows
from pipelines.training.config import TrainConfig
from pipelines.training.data import TrainingData, load_part, read_rows
from pipelines.training.fit import Fit, Progress, fit

pytestmark = pytest.mark.slow


def config(name: str, params: dict[str, Any] | None = None, **words: Any) -> TrainConfig:
    """A spec that names a class."""
    return TrainConfig(estimator=name, params=params or {}, **words)


def train(data: TrainingData, spec: TrainConfig, **options: Any) -> Fit:
    """Train without Dask: ranks as children of this process."""
    options = {"client": None, "ranks": 1, "threads": 1} | options
    return fit(spec, data, **options)


def model_of(trained: Fit, data: TrainingData) -> Model:
    """Bundle, send through files, check golden rows."""
    model = Model.from_fit(trained, data.features, data.target)
    again = Model.from_files(model.files())
    golden_rows(model).check(again)
    assert again.python_only
    return again


@pytest.fixture(scope="module")
def client():
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0") as cluster,
        Client(cluster) as opened,
    ):
        yield opened


@pytest.fixture(scope="module")
def dense(workshop) -> TrainingData:
    return workshop.data(categorical="one_hot", sparse=False)


@pytest.mark.parametrize("ranks", [1, 2])
def test_rows_that_fit_are_all_used_as_scikit_learn_would(dense, client, ranks):
    trained = train(dense, config("sklearn.ensemble.HistGradientBoostingClassifier", {"max_iter": 20}), client=client,
                    ranks=ranks)  # fmt: skip
    rows = load_part(dense, dense.shards.shards, "train")
    expected = HistGradientBoostingClassifier(max_iter=20, random_state=0).fit(rows.X, rows.y.astype(int))
    X = load_part(dense, dense.shards.shards, "test").X
    np.testing.assert_array_equal(model_of(trained, dense).scores_of_matrix(X), expected.predict_proba(X)[:, 1])
    assert trained.summary["fit"] == "whole"
    assert trained.summary["rows_fitted"] == dense.rows["train"]
    assert trained.summary["n_iter"] == 20


def test_a_sample_is_seeded_capped_and_recorded(dense):
    name = "sklearn.tree.DecisionTreeClassifier"
    one, two = (train(dense, config(name, max_sample_rows=500), ranks=ranks) for ranks in (1, 2))
    assert one.summary["fit"] == "sampled"
    # every row is taken with probability 500 / rows, and what is over the cap is cut
    assert 400 < one.summary["rows_fitted"] <= 500
    assert one.summary["max_sample_rows"] == 500
    X = load_part(dense, dense.shards.shards, "test").X
    scores = model_of(one, dense).scores_of_matrix(X)
    np.testing.assert_array_equal(scores, model_of(two, dense).scores_of_matrix(X))
    other = train(dense, config(name, max_sample_rows=500, random_state=1))
    assert not np.array_equal(scores, model_of(other, dense).scores_of_matrix(X))


def test_memory_caps_the_sample_too(dense):
    from pipelines.training.estimators.foreign import _BASE_BYTES, _COPIES

    room = _BASE_BYTES + _COPIES * 4 * len(dense.features.names) * 300
    trained = train(dense, config("sklearn.tree.DecisionTreeClassifier"), memory_bytes=room)
    assert trained.summary["max_sample_rows"] == 300
    assert trained.summary["rows_fitted"] <= 300
    assert "worker's memory" in trained.summary["why"]


def test_partial_fit_sees_every_row_each_epoch(dense, held_out_rows):
    name = "sklearn.naive_bayes.GaussianNB"
    trained = train(dense, config(name, max_sample_rows=500))
    assert trained.summary["fit"] == "streamed"
    assert trained.summary["n_iter"] == 1
    rows = load_part(dense, dense.shards.shards, "train")
    expected = GaussianNB().fit(rows.X, rows.y)
    X, _ = held_out_rows(dense)
    # Gaussian sums over batches in another order, in float64 over float32 values
    np.testing.assert_allclose(
        model_of(trained, dense).scores_of_matrix(X), expected.predict_proba(X)[:, 1], rtol=1e-3, atol=1e-6
    )


def test_epochs_pass_the_shards_in_a_seeded_order(dense, held_out_rows):
    trained = train(dense, config("sklearn.linear_model.SGDClassifier", {"loss": "log_loss", "epochs": 4}))
    assert (trained.summary["fit"], trained.summary["n_iter"]) == ("streamed", 4)
    peer = SGDClassifier(loss="log_loss", random_state=0)
    for epoch in range(4):
        for place in epoch_order(0, epoch, 0, len(dense.shards.shards)):
            for rows in read_rows(dense, [dense.shards.shards[int(place)]], "train"):
                peer.partial_fit(rows.X, rows.y.astype(int), classes=[0, 1])
    X, y = held_out_rows(dense)
    scores = model_of(trained, dense).scores_of_matrix(X)
    np.testing.assert_array_equal(scores, peer.predict_proba(X)[:, 1])
    assert roc_auc_score(y, scores) > 0.75


def test_a_stopped_stream_goes_on_with_the_next_epoch(dense, tmp_path):
    spec = config("sklearn.linear_model.SGDClassifier", {"loss": "log_loss", "epochs": 15})
    stop = threading.Event()

    def stop_after_two(progress: Progress) -> None:
        if progress.unit == "epoch" and progress.done >= 2:
            stop.set()

    with pytest.raises(InterruptedRunError):
        train(dense, spec, checkpoint_url=str(tmp_path), stop=stop, report=stop_after_two)
    resumed = train(dense, spec, checkpoint_url=str(tmp_path))
    assert resumed.summary["resumed_from"] >= 2
    whole = train(dense, spec)
    X = load_part(dense, dense.shards.shards, "test").X
    np.testing.assert_array_equal(
        model_of(resumed, dense).scores_of_matrix(X), model_of(whole, dense).scores_of_matrix(X)
    )


@pytest.mark.parametrize("solver", ["newton", "lbfgs"])
def test_dask_ml_fits_on_arrays_of_known_chunks_and_becomes_its_twin(dense, client, held_out_rows, solver):
    spec = config("dask_ml.linear_model.LogisticRegression", {"solver": solver, "C": 1.0})
    trained = train(dense, spec, client=client, ranks=2)
    assert trained.summary["fit"] == "dask"
    assert trained.summary["rows_fitted"] == dense.rows["train"]
    assert trained.summary["stored_as"] == "LogisticRegression"
    X, y = held_out_rows(dense)
    rows = load_part(dense, dense.shards.shards, "train")
    peer = LogisticRegression().fit(rows.X, rows.y)
    scores = model_of(trained, dense).scores_of_matrix(X)
    # dask-ml penalises the intercept too, and ADMM is a rough solver
    assert roc_auc_score(y, scores) == pytest.approx(roc_auc_score(y, peer.predict_proba(X)[:, 1]), abs=0.01)
    np.testing.assert_allclose(scores, peer.predict_proba(X)[:, 1], atol=0.1)


def test_dask_ml_works_without_a_cluster(dense, held_out_rows):
    trained = train(dense, config("dask_ml.naive_bayes.GaussianNB"))
    rows = load_part(dense, dense.shards.shards, "train")
    X, _ = held_out_rows(dense)
    expected = GaussianNB().fit(rows.X, rows.y.astype(int)).predict_proba(X)[:, 1]
    np.testing.assert_allclose(model_of(trained, dense).scores_of_matrix(X), expected, rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize(("name", "params"), [
    ("dask_ml.linear_model.LinearRegression", {"solver": "newton", "max_iter": 5}),
    ("sklearn.linear_model.Ridge", {}),
])  # fmt: skip
def test_regressions_are_learned(workshop, held_out_rows, name, params):
    data = workshop.data("minutes", kind="regression", categorical="one_hot", sparse=False)
    trained = train(data, config(name, params))
    rows = load_part(data, data.shards.shards, "train")
    X, y = held_out_rows(data)
    peer = Ridge().fit(rows.X, rows.y)
    scores = model_of(trained, data).scores_of_matrix(X)
    assert np.corrcoef(scores, y)[0, 1] == pytest.approx(np.corrcoef(peer.predict(X), y)[0, 1], abs=0.02)


def test_weights_reach_the_estimator(workshop, held_out_rows):
    data = workshop.data(categorical="one_hot", sparse=False, weight="weight")
    spec = config("sklearn.linear_model.LogisticRegression", sample_weight="weight", class_weight={"true": 2.0})
    rows = load_part(data, data.shards.shards, "train")
    weight = rows.weight * np.where(rows.y == 1, np.float32(2), np.float32(1))
    peer = LogisticRegression(random_state=0).fit(rows.X, rows.y.astype(int), weight)
    X, _ = held_out_rows(data)
    np.testing.assert_allclose(
        model_of(train(data, spec), data).scores_of_matrix(X), peer.predict_proba(X)[:, 1], rtol=1e-6
    )


def test_sparse_rows_are_made_dense_only_for_those_that_need_it(workshop, held_out_rows):
    data = workshop.data(categorical="one_hot", sparse=True)
    for name in ("sklearn.linear_model.LogisticRegression", "sklearn.ensemble.HistGradientBoostingClassifier"):
        trained = train(data, config(name, max_sample_rows=100_000), ranks=2)
        X, y = held_out_rows(data)
        model = Model.from_fit(trained, data.features, data.target)
        assert roc_auc_score(y, model.scores_of_matrix(X)) > 0.8


def test_an_estimator_that_raises_is_the_users_error(workshop):
    data = workshop.data(categorical="native")  # missing numbers stay NaN
    with pytest.raises(UserCodeError, match=r"(?s)LogisticRegression: the estimator raised ValueError.*NaN.*Impute"):
        train(data, config("sklearn.linear_model.LogisticRegression"))


def test_the_label_must_be_of_a_kind_that_it_learns(dense):
    with pytest.raises(SpecError, match="learns regression labels"):
        train(dense, config("sklearn.linear_model.Ridge"))


def test_no_rows_are_told(workshop):
    import dataclasses

    data = workshop.data(categorical="one_hot", sparse=False)
    empty = dataclasses.replace(data, source=dataclasses.replace(data.source, filter="key < 0"), rows=None)
    with pytest.raises(TrainingError, match="no rows to train on"):
        train(empty, config("sklearn.linear_model.LogisticRegression"))


def test_progress_is_told(dense):
    told: list[Progress] = []
    train(dense, config("sklearn.linear_model.SGDClassifier", {"epochs": 2}), report=told.append)
    assert (told[-1].unit, told[-1].done, told[-1].total) == ("epoch", 2, 2)
    assert clone(SGDClassifier()) is not None
