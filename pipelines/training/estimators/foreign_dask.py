"""How do dask-ml's own estimators fit? On dask arrays of known chunks, one per shard, that workers read themselves."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from pipelines import codec
from pipelines.data.mapping import map_shards
from pipelines.data.shards import Shard
from pipelines.errors import InterruptedRunError, MutiraoError, TrainingError, UserCodeError
from pipelines.training.data import TrainingData, count_rows, load_part
from pipelines.training.gang.context import Array

if TYPE_CHECKING:
    from distributed import Client

POLL_S = 0.2


def fit_on_arrays(
    estimator: Any,
    name: str,
    data: TrainingData,
    client: Client | None,
    stop: threading.Event,
    report: Callable[[int], None],
) -> tuple[Any, int]:
    """Fit a dask-ml estimator; returns its scikit-learn twin and the number of rows.

    The arrays are kept in the workers' memory while it fits, since dask-ml's solvers go through them many times.

    Parameters
    ----------
    estimator : dask-ml estimator
    name : str
        Its import path.
    data : TrainingData
    client : Client or None
        None computes in threads of this process.
    stop : Event
        Set it to leave: ``InterruptedRunError``.
    report : callable
        Told the rows that have been counted.

    Raises
    ------
    UserCodeError
        dask-ml raised; the cause is attached.
    """
    from dask import config

    done: dict[str, Any] = {}
    # Without a client, whatever cluster happens to be connected is not meant.
    where = client.as_current() if client is not None else nullcontext()
    with where, config.set({} if client is not None else {"scheduler": "threads"}):
        X, y = _arrays(data, client, report)
        kept = [X, y] if client is None else client.persist([X, y])
        thread = threading.Thread(target=_fit, args=(estimator, kept, name, client, done), daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(POLL_S)
            if stop.is_set():
                if client is not None:
                    client.cancel(kept)
                raise InterruptedRunError(f"{name} was stopped", remedy="It starts over when run again.")
    if "error" in done:
        raise done["error"]
    return twin(estimator), X.shape[0]


def _fit(estimator: Any, arrays: list[Any], name: str, client: Client | None, done: dict[str, Any]) -> None:
    try:
        with client.as_current() if client is not None else nullcontext():
            estimator.fit(*arrays)
            _computed(estimator)
    except MutiraoError as error:
        done["error"] = error
    except Exception as error:  # noqa: BLE001 - foreign code: whatever it raises is reported as its own
        told = UserCodeError(f"the estimator raised {type(error).__name__} while fitting: {error}", on=name)
        told.__cause__ = error
        done["error"] = told


def _arrays(data: TrainingData, client: Client | None, report: Callable[[int], None]) -> tuple[Any, Any]:
    """X and y as dask arrays: a graph of small values, in which every shard is a task that reads it."""
    import dask.array as da
    from dask import delayed

    shards = data.shards.shards
    counts = _counts(data, client, report)
    if not sum(counts):
        raise TrainingError("there are no rows to train on", on=data.source.root)
    plain = delayed(_plain(data), name=f"mutirao-plan-{data.shards.digest[:16]}", pure=True, traverse=False)
    features = len(data.features.names)
    blocks = [
        (delayed(_read, pure=False, nout=2)(plain, codec.dump(shard)), rows)
        for shard, rows in zip(shards, counts, strict=True)
        if rows
    ]
    X = da.concatenate([da.from_delayed(block[0], (rows, features), np.float32) for block, rows in blocks])
    y = da.concatenate([da.from_delayed(block[1], (rows,), np.float64) for block, rows in blocks])
    return X, y


def _counts(data: TrainingData, client: Client | None, report: Callable[[int], None]) -> list[int]:
    """Count every shard's labelled training rows: chunks must be known."""
    counts = [0] * len(data.shards.shards)
    for place, rows in map_shards(client, _count, data.shards.shards, _plain(data)):
        counts[place] = rows
        report(sum(counts))
    return counts


def _plain(data: TrainingData) -> bytes:
    """All but the shards, as text that Dask does not look into."""
    return codec.canonical(data.subset(()).to_plain())


def _count(shard: Shard, plain: bytes) -> int:
    return count_rows(TrainingData.from_plain(json.loads(plain)), [shard], "train", threads=1)


def _read(plain: bytes, shard: bytes) -> tuple[Array, Array]:
    """Read one shard on a worker; a sparse plan is made dense, since dask-ml's solvers take no sparse chunks."""
    rows = load_part(TrainingData.from_plain(json.loads(plain)), [codec.load(Shard, shard)], "train", threads=1)
    X = rows.X if isinstance(rows.X, np.ndarray) else rows.X.toarray()
    return X, rows.y.astype(np.float64)


def _computed(estimator: Any) -> None:
    """Turn fitted attributes that are still dask arrays into NumPy's."""
    for name, value in vars(estimator).items():
        if hasattr(value, "compute"):
            setattr(estimator, name, value.compute())


def twin(estimator: Any) -> Any:
    """Give the scikit-learn estimator with the same fitted state, which needs no Dask to predict."""
    from sklearn import linear_model, naive_bayes

    name = type(estimator).__name__
    if name == "GaussianNB":
        other = naive_bayes.GaussianNB(priors=estimator.priors)
        other.classes_ = np.asarray(estimator.classes_, np.int64)
        other.theta_, other.var_ = np.asarray(estimator.theta_), np.asarray(estimator.sigma_)
        other.class_count_, other.class_prior_ = (
            np.asarray(estimator.class_count_), np.asarray(estimator.class_prior_),
        )  # fmt: skip
        other.epsilon_, other.n_features_in_ = 0.0, other.theta_.shape[1]
        return other
    coef, intercept = np.asarray(estimator.coef_, np.float64), float(getattr(estimator, "intercept_", 0.0) or 0.0)
    if name == "LogisticRegression":
        other = linear_model.LogisticRegression()
        other.coef_, other.intercept_ = coef.reshape(1, -1), np.array([intercept])
        other.classes_ = np.array([0, 1])
    else:
        other = {"LinearRegression": linear_model.LinearRegression, "PoissonRegression": linear_model.PoissonRegressor}[
            name
        ]()
        other.coef_, other.intercept_ = coef, intercept
    if name == "PoissonRegression":
        from sklearn._loss.loss import HalfPoissonLoss

        other._base_loss = HalfPoissonLoss()
    other.n_features_in_ = coef.shape[-1]
    return other
