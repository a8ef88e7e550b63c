"""What the ranks of a foreign estimator do: sample together and fit on rank 0, or stream batches on one rank."""

from __future__ import annotations

import io
import logging
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from scipy.sparse import csr_matrix, issparse, vstack

from pipelines import codec
from pipelines.data.order import epoch_order
from pipelines.errors import MutiraoError, TrainingError, UserCodeError
from pipelines.storage import open_store
from pipelines.training.checkpoint import latest_checkpoint, save_checkpoint
from pipelines.training.data import Rows, TrainingData, read_rows
from pipelines.training.estimators.class_weights import class_factors
from pipelines.training.estimators.foreign_class import ForeignClass, find_class
from pipelines.training.estimators.foreign_stored import store_estimator
from pipelines.training.gang.context import Array, RankContext, StopRequested

logger = logging.getLogger(__name__)

REPORT_S = 0.5
_REHEARSAL_ROWS = 256

Drawn: TypeAlias = tuple[Rows, Array]
"""Rows, and the number between 0 and 1 that was drawn for each."""


@dataclass(frozen=True)
class Job:
    """What every rank is told, beside its shards."""

    name: str
    params: dict[str, Any]
    random_state: int
    class_weight: dict[str, float] | str | None
    share: float
    """Probability with which a training row is in the sample."""
    max_rows: int
    """The sample is cut to so many."""
    epochs: int
    """Passes of a streamed training."""
    places: tuple[int, ...]
    """The places in the whole plan of this rank's shards."""
    checkpoint_url: str | None
    checkpoint_prefix: str
    keep: int


# --- a sample in memory ----------------------------------------------------------------------------------------------


def run_sample(context: RankContext) -> bytes:
    """Draw the sample over all ranks and fit on rank 0; the same sample for any number of ranks.

    Returns
    -------
    bytes
        On rank 0 files and facts, see `take_apart`; nothing on the others.
    """
    job, data = _job(context)
    mine = _together(list(_drawn(context, job, data)))
    parts = [mine]
    if context.size > 1:
        gathered = context.collective.allgather(b"" if mine is None else _packed(mine))
        if context.rank:
            return b""
        parts = [_unpacked(each) if each else None for each in gathered]
        del gathered
    del mine
    X, y, weight = _cut([part for part in parts if part is not None], job.max_rows, data)
    del parts
    found = find_class(job.name)
    estimator = found.make(job.params, random_state=job.random_state, threads=context.threads)
    X = _as_it_takes(estimator, X)
    labels = _labels(found, y)
    words = {} if weight is None else {"sample_weight": weight}
    _rehearse(found, job, X, labels)
    context.report({"unit": "fit", "rows": len(y)})
    _call(job.name, lambda: estimator.fit(X, labels, **words))
    return _result(estimator, job.name, X, {"rows_fitted": len(y), "n_iter": _n_iter(estimator)})


def _drawn(context: RankContext, job: Job, data: TrainingData) -> Iterator[Drawn]:
    """Draw rows of this rank's shards, each with its draw: which ones depends on seed and shard plan only."""
    factors = class_factors(job.class_weight, data.target)  # type: ignore[arg-type]  # checked by the config
    report, seen = _Throttle(context), 0
    for place, shard in zip(job.places, data.shards.shards, strict=True):
        random = np.random.default_rng([job.random_state, place])
        for rows in read_rows(data, [shard], "train", threads=context.threads):
            seen += len(rows.y)
            draws = random.random(len(rows.y))
            weight = _weights(rows, factors)
            if job.share >= 1:
                yield Rows(rows.X, rows.y, weight), draws
            else:
                taken = draws < job.share
                yield Rows(rows.X[taken], rows.y[taken], None if weight is None else weight[taken]), draws[taken]
            if context.stop_requested():
                raise StopRequested
            report({"unit": "load", "rows": seen})
    report({"unit": "load", "rows": seen}, force=True)


def _together(pieces: list[Drawn]) -> Drawn | None:
    """Put pieces below each other; None when there are none."""
    if len(pieces) < 2:
        return pieces[0] if pieces else None
    rows = [piece for piece, _ in pieces]
    weights = [each.weight for each in rows if each.weight is not None]
    X: Any = vstack([each.X for each in rows], format="csr") if issparse(rows[0].X) else _stacked(rows)
    y = np.concatenate([each.y for each in rows])
    return Rows(X, y, np.concatenate(weights) if weights else None), np.concatenate([draws for _, draws in pieces])


def _stacked(rows: list[Rows]) -> Array:
    """Stack column-major blocks; np.concatenate would make rows of them."""
    whole = np.empty((sum(len(each.y) for each in rows), rows[0].X.shape[1]), np.float32, order="F")
    start = 0
    for each in rows:
        whole[start : start + len(each.y)] = each.X
        start += len(each.y)
    return whole


def _packed(drawn: Drawn) -> bytes:
    """Pack a rank's rows into an .npz for the way to rank 0."""
    rows, draws = drawn
    arrays = {"y": rows.y, "draws": draws}
    if rows.weight is not None:
        arrays["weight"] = rows.weight
    if isinstance(rows.X, np.ndarray):
        arrays["X"] = rows.X
    else:
        shape = np.array(rows.X.shape)
        arrays |= {"data": rows.X.data, "indices": rows.X.indices, "indptr": rows.X.indptr, "shape": shape}
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def _unpacked(data: bytes) -> Drawn:
    with np.load(io.BytesIO(data), allow_pickle=False) as parts:
        held = {name: parts[name] for name in parts.files}
    X: Any = held.get("X")
    if X is None:
        X = csr_matrix((held["data"], held["indices"], held["indptr"]), shape=tuple(held["shape"]))
    return Rows(X, held["y"], held.get("weight")), held["draws"]


def _cut(parts: list[Drawn], max_rows: int, data: TrainingData) -> tuple[Any, Array, Array | None]:
    """Put the ranks' rows together in the order of the manifest, and cut to the cap: the lowest draws stay."""
    drawn = _together(parts)
    parts.clear()
    if drawn is None or not len(drawn[1]):
        raise TrainingError(
            "there are no rows to train on",
            on=data.source.root,
            remedy="See what filter, split and label.on_null leave over.",
        )
    rows, draws = drawn
    if len(draws) <= max_rows:
        return rows.X, rows.y, rows.weight
    kept = np.sort(np.argpartition(draws, max_rows)[:max_rows])
    return rows.X[kept], rows.y[kept], None if rows.weight is None else rows.weight[kept]


def _rehearse(found: ForeignClass, job: Job, X: Any, labels: Array) -> None:
    """Fit a few rows and store the result: what can't be stored should not be trained for an hour first."""
    if len(labels) <= _REHEARSAL_ROWS:
        return
    few = X[:_REHEARSAL_ROWS], labels[:_REHEARSAL_ROWS]
    estimator = found.make(job.params, random_state=job.random_state, threads=1)
    try:
        estimator.fit(*few)
    except Exception as error:  # noqa: BLE001 - so few rows may be too few for it (a class may lack): no verdict
        logger.info("%s was not rehearsed on %d rows: %s", job.name, _REHEARSAL_ROWS, error)
        return
    store_estimator(estimator, job.name, few[0])


# --- batch after batch -----------------------------------------------------------------------------------------------


def run_stream(context: RankContext) -> bytes:
    """Pass every batch of every shard to ``partial_fit``, shards in a seeded order of their own each epoch."""
    job, data = _job(context)
    factors = class_factors(job.class_weight, data.target)  # type: ignore[arg-type]  # checked by the config
    found = find_class(job.name)
    store = open_store(job.checkpoint_url) if job.checkpoint_url else None
    saved = latest_checkpoint(store, job.checkpoint_prefix) if store else None
    if saved is None:
        estimator, done = found.make(job.params, random_state=job.random_state, threads=context.threads), 0
    else:
        estimator, done = _restored(saved.payload), saved.step
        logger.info("go on from epoch %d", done)
    few: Any = None
    for epoch in range(done, job.epochs):
        for rows in _epoch(context, job, data, epoch):
            X = _as_it_takes(estimator, rows.X)
            few = X[:_REHEARSAL_ROWS] if few is None else few
            _learn(estimator, found, data, Rows(X, rows.y, _weights(rows, factors)))
        if few is None:
            raise TrainingError("there are no rows to train on", on=data.source.root)
        if store is not None:
            files = store_estimator(estimator, job.name, few)
            payload = files["estimator.skops"]
            save_checkpoint(store, job.checkpoint_prefix, epoch + 1, payload, keep=job.keep)
        context.report({"unit": "epoch", "done": epoch + 1, "total": job.epochs})
    if few is None:
        few = np.empty((0, len(data.features.names)), np.float32)
    facts = {"rows_fitted": data.rows and data.rows.get("train"), "n_iter": job.epochs, "resumed_from": done or None}
    return _result(estimator, job.name, few, facts)


def _epoch(context: RankContext, job: Job, data: TrainingData, epoch: int) -> Iterator[Rows]:
    shards = data.shards.shards
    report, seen, began = _Throttle(context), 0, time.monotonic()
    for place in epoch_order(job.random_state, epoch, 0, len(shards)):
        for rows in read_rows(data, [shards[int(place)]], "train", threads=context.threads):
            yield rows
            seen += len(rows.y)
            if context.stop_requested():
                raise StopRequested
            rate = seen / max(time.monotonic() - began, 1e-9)
            report({"unit": "epoch", "done": epoch, "total": job.epochs, "rows": seen, "rows_per_s": rate})


def _learn(estimator: Any, found: ForeignClass, data: TrainingData, rows: Rows) -> None:
    words: dict[str, Any] = {} if rows.weight is None else {"sample_weight": rows.weight}
    if found.task == "classifier":
        words["classes"] = np.arange(len(data.target.classes))
    _call(found.name, lambda: estimator.partial_fit(rows.X, _labels(found, rows.y), **words))


def _restored(payload: bytes) -> Any:
    from skops import io as skops_io

    # The checkpoint is this very training's, verified against its digest: its types are those that were just stored.
    return skops_io.loads(payload, trusted=skops_io.get_untrusted_types(data=payload))


# --- both ------------------------------------------------------------------------------------------------------------


def take_apart(result: bytes) -> tuple[dict[str, bytes], dict[str, Any]]:
    """Read what rank 0 returned: the estimator's files, and facts."""
    with np.load(io.BytesIO(result), allow_pickle=False) as parts:
        files = {name: parts[name].tobytes() for name in parts.files if name != "facts"}
        facts: dict[str, Any] = codec.load(dict, parts["facts"].tobytes())
    return files, facts


def _result(estimator: Any, name: str, X: Any, facts: dict[str, Any]) -> bytes:
    files = store_estimator(estimator, name, X[:_REHEARSAL_ROWS])
    packed = {key: np.frombuffer(data, np.uint8) for key, data in files.items()}
    packed["facts"] = np.frombuffer(codec.canonical(facts), np.uint8)
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **packed)
    return buffer.getvalue()


def _job(context: RankContext) -> tuple[Job, TrainingData]:
    return codec.from_plain(Job, context.arguments["job"]), TrainingData.from_plain(context.arguments["data"])


def _weights(rows: Rows, factors: Array | None) -> Array | None:
    if factors is None:
        return rows.weight
    by_class = factors[rows.y.astype(np.int64)].astype(np.float32)
    return by_class if rows.weight is None else by_class * rows.weight


def _labels(found: ForeignClass, y: Array) -> Array:
    return y.astype(np.int64) if found.task == "classifier" else y.astype(np.float64)


def _as_it_takes(estimator: Any, X: Any) -> Any:
    """Make a sparse matrix dense for an estimator that does not take sparse ones."""
    if isinstance(X, np.ndarray):
        return X
    tags = getattr(estimator, "__sklearn_tags__", None)
    return X if tags is not None and tags().input_tags.sparse else X.toarray()


def _call(name: str, step: Any) -> None:
    try:
        step()
    except MutiraoError:
        raise
    except Exception as error:  # the estimator is foreign code: whatever it raises is reported as its own
        remedy = "Impute missing values in `features:`" if "NaN" in str(error) else ""
        raise UserCodeError(
            f"the estimator raised {type(error).__name__} while fitting: {error}", on=name, remedy=remedy
        ) from error


def _n_iter(estimator: Any) -> int | None:
    found = getattr(estimator, "n_iter_", None)
    if found is None:
        return None
    most = float(np.max(found))
    return int(most) if math.isfinite(most) else None


class _Throttle:
    """Reports of one kind, twice a second at most."""

    def __init__(self, context: RankContext) -> None:
        self._context, self._last = context, 0.0

    def __call__(self, message: dict[str, Any], *, force: bool = False) -> None:
        now = time.monotonic()
        if force or now - self._last >= REPORT_S:
            self._last = now
            self._context.report(message)
