"""What one rank of a boosting gang does: read, bin, boost; rank 0 keeps checkpoints and returns the model."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import xgboost as xgb

from pipelines import codec
from pipelines.errors import TrainingError
from pipelines.features.quantiles import SampleRule
from pipelines.storage import open_store
from pipelines.training.checkpoint import latest_checkpoint, save_checkpoint
from pipelines.training.config import CheckpointConfig
from pipelines.training.data import Rows, TrainingData
from pipelines.training.estimators.boosting_cuts import CutSample, reference
from pipelines.training.estimators.boosting_feed import Feed, Part, binned_bytes, cached_bytes, kept_blocks
from pipelines.training.estimators.boosting_params import XGBoostParams
from pipelines.training.estimators.boosting_rounds import Rounds
from pipelines.training.estimators.class_weights import class_factors
from pipelines.training.gang.context import RankContext, StopRequested
from pipelines.training.gang.watcher import address_towards

logger = logging.getLogger(__name__)

REPORT_S = 0.25
BASE_BYTES = 290 << 20
"""A rank beside its rows and bins: libraries (131 MiB), batches in flight, the sample (measured together: 265 MiB)."""


@dataclass(frozen=True)
class Job:
    """What every rank is told, beside its shards."""

    params: XGBoostParams
    booster: dict[str, Any]
    """Parameters as XGBoost takes them."""
    evals: tuple[str, ...]
    class_weight: dict[str, float] | str | None
    checkpoint: CheckpointConfig
    checkpoint_url: str | None
    checkpoint_prefix: str
    cut_rule: SampleRule
    train_share: float
    """Expected share of this rank's rows that are for training."""
    step_s: float
    towards: str
    """A host of the cluster: rank 0 listens for the others on the address that it would reach it from."""
    every_round: bool = False
    """Report every round, so that trainings can be compared round by round."""


def run(context: RankContext) -> bytes:
    """Train; rank 0 returns a summary and the model, see `take_apart`, the others nothing.

    Raises
    ------
    TrainingError
        XGBoost refused data or parameters.
    StopRequested
        After a checkpoint, when the gang was asked to leave.
    """
    job = codec.from_plain(Job, context.arguments["job"])
    data = TrainingData.from_plain(context.arguments["data"])
    clock = _Clock()
    try:
        return _train(context, job, data, clock)
    except xgb.core.XGBoostError as error:
        cause = _agree_on_cause(context, _first_line(error))
        raise TrainingError(f"XGBoost: {cause}", remedy=_remedy(cause)) from error


def _train(context: RankContext, job: Job, data: TrainingData, clock: _Clock) -> bytes:
    parts = _Parts(context, job, data)
    sample = parts.cut_sample()
    with clock.phase("load"):
        blocks = parts.blocks("train", sample)
    # Whoever loads faster waits here, with the gang's deadline, not in XGBoost's.
    context.collective.barrier()
    with clock.phase("cuts"):
        cuts = parts.reference(sample)
    with _communicator(context, job.step_s, job.towards):
        with clock.phase("bins"):
            train = parts.binned("train", blocks, ref=cuts)
            del blocks
            _check_rows(context, train, data)
            watched = [
                (parts.binned(name, parts.blocks(name), ref=train), name) for name in job.evals if name != "train"
            ]
            watched = [*watched, (train, "train")] if "train" in job.evals else watched
            watched.sort(key=lambda pair: job.evals.index(pair[1]))
        booster, rounds, first = _begin(context, job, [train, *(matrix for matrix, _ in watched)])
        _boost(context, job, booster, rounds, train, watched, clock)
    if context.rank:
        return b""
    return _result(context, parts, booster, rounds, clock, first)


class _Parts:
    """The rank's splits: kept in memory while they are binned, or read for every pass when they would not fit."""

    def __init__(self, context: RankContext, job: Job, data: TrainingData) -> None:
        self._context, self._job, self._data = context, job, data
        self._factors = class_factors(job.class_weight, data.target)  # type: ignore[arg-type]  # checked by the config
        self._max_bin = job.params.max_bin or 256
        self.streamed = not self._fits()

    def _fits(self) -> bool:
        limit = self._context.memory_bytes
        rows = int(sum(shard.rows for shard in self._data.shards.shards) * self._job.train_share)
        features = len(self._data.features.names)
        needed = BASE_BYTES + cached_bytes(rows, features, self._max_bin)
        if limit is None or needed <= limit or self._data.features.sparse:
            return True
        least = BASE_BYTES + binned_bytes(rows, features, self._max_bin)
        logger.info("rows are read for every pass: %d MiB needed to keep them, limit %d MiB", needed >> 20, limit >> 20)
        if least > limit:
            raise TrainingError(
                "the binned rows do not fit into a worker's memory",
                expected=f"at most {limit >> 20} MiB per rank",
                found=f"about {least >> 20} MiB for {rows} rows of {features} features",
                remedy="Use more workers, give them more memory, or lower max_bin to 256.",
            )
        return False

    def part(self, name: str) -> Part:
        return Part(self._data, name, self._factors, self._context.threads)

    def cut_sample(self) -> CutSample | None:
        """Begin to collect what borders of bins are made of; None where XGBoost makes its own."""
        plan = self._data.features
        if plan.sparse or self._job.params.cuts == "native":
            return None
        return CutSample(self._job.cut_rule, plan.types)

    def reference(self, sample: CutSample | None) -> xgb.DMatrix | None:
        """Agree with the other ranks on the borders, as the matrix that holds them."""
        if sample is None:
            return None
        cuts = sample.cuts(self._context.collective, self._max_bin)
        return reference(cuts, self._data.features.types, self._max_bin)

    def blocks(self, name: str, sample: CutSample | None = None) -> Callable[[], Iterator[Rows]]:
        part = self.part(name)
        report = _Throttle(self._context)

        def loaded(rows: int) -> None:
            report({"unit": "load", "part": name, "rows": rows})

        if self.streamed:
            if sample is not None:
                rows = 0
                for block in part.read(sample):
                    loaded(rows := rows + len(block.y))
            return part.read
        kept = kept_blocks(part, loaded, sample)
        report({"unit": "load", "part": name, "rows": sum(len(block.y) for block in kept)}, force=True)
        return partial(iter, kept)

    def binned(self, name: str, blocks: Callable[[], Iterator[Rows]], ref: xgb.DMatrix | None) -> xgb.QuantileDMatrix:
        plan = self._data.features
        report = _Throttle(self._context)
        feed = Feed(
            blocks,
            plan.types,
            sparse=plan.sparse,
            on_rows=lambda rows, passed: report({"unit": "bins", "part": name, "rows": rows, "pass": passed}),
        )
        return xgb.QuantileDMatrix(
            feed, ref=ref, max_bin=self._max_bin, nthread=self._context.threads, enable_categorical=True
        )


def _check_rows(context: RankContext, train: xgb.DMatrix, data: TrainingData) -> None:
    total = int(context.collective.allreduce(np.array([train.num_row()], np.int64))[0])
    if total == 0:
        raise TrainingError(
            "there are no rows to train on",
            on=data.source.root,
            remedy="See what filter, split and label.on_null leave over.",
        )


def _begin(context: RankContext, job: Job, cache: list[xgb.DMatrix]) -> tuple[xgb.Booster, Rounds, int]:
    """Start, or go on from rank 0's newest checkpoint."""
    payload = b""
    if job.checkpoint_url is not None and context.rank == 0:
        found = latest_checkpoint(open_store(job.checkpoint_url), job.checkpoint_prefix)
        payload = found.payload if found else b""
    payload = context.collective.broadcast(payload if context.rank == 0 else None)
    words = {**job.booster, "nthread": context.threads}
    if not payload:
        return xgb.Booster(words, cache), Rounds(job.params.early_stopping_rounds), 0
    rounds, model = Rounds.unpack(payload, job.params.early_stopping_rounds)
    logger.info("go on from round %d", rounds.done)
    booster = xgb.Booster(words, cache, model_file=bytearray(model))
    return booster, rounds, rounds.done


def _boost(
    context: RankContext,
    job: Job,
    booster: xgb.Booster,
    rounds: Rounds,
    train: xgb.DMatrix,
    watched: list[tuple[xgb.DMatrix, str]],
    clock: _Clock,
) -> None:
    keeper, report = _Keeper(context, job, rounds.done), _Throttle(context)
    rows, total = train.num_row() * context.size, job.params.num_boost_round
    while rounds.done < total and not rounds.exhausted:
        began = time.monotonic()
        with clock.phase("boost"):
            booster.update(train, iteration=rounds.done)
        with clock.phase("evaluate"):
            message = booster.eval_set(watched, rounds.done) if watched else ""
        values = rounds.add(message)
        if context.rank == 0:
            rate = rows / max(time.monotonic() - began, 1e-9)
            message_ = {"unit": "round", "done": rounds.done, "total": total, "metrics": values, "rows_per_s": rate}
            report(message_, force=job.every_round or rounds.done == total or rounds.exhausted)
        leave = _agree_to_leave(context)
        keeper.after_round(booster, rounds, now=leave)
        if leave and rounds.done < total and not rounds.exhausted:
            raise StopRequested


def _agree_to_leave(context: RankContext) -> bool:
    """Ask rank 0: ranks hear of a stop at different times, and must leave after the same round."""
    asked = b"\1" if context.stop_requested() else b"\0"
    return context.collective.broadcast(asked if context.rank == 0 else None) == b"\1"


class _Keeper:
    """Rank 0's checkpoints, every n rounds or t seconds."""

    def __init__(self, context: RankContext, job: Job, done: int) -> None:
        self._job = job
        self._store = open_store(job.checkpoint_url) if job.checkpoint_url and context.rank == 0 else None
        self._last_round, self._last_time = done, time.monotonic()

    def after_round(self, booster: xgb.Booster, rounds: Rounds, *, now: bool) -> None:
        if self._store is None or rounds.done == self._last_round or not (now or self._due(rounds.done)):
            return
        every = self._job.checkpoint
        payload = rounds.pack(bytes(booster.save_raw("ubj")))
        save_checkpoint(self._store, self._job.checkpoint_prefix, rounds.done, payload, keep=every.keep)
        self._last_round, self._last_time = rounds.done, time.monotonic()

    def _due(self, done: int) -> bool:
        every = self._job.checkpoint
        if every.every_steps is not None:
            return done % every.every_steps == 0
        return every.every_s is not None and time.monotonic() - self._last_time >= every.every_s


def _result(
    context: RankContext, parts: _Parts, booster: xgb.Booster, rounds: Rounds, clock: _Clock, first: int
) -> bytes:
    used = rounds.used
    model = booster[:used] if used < booster.num_boosted_rounds() else booster
    summary = {
        "n_iter": used,
        "stop_reason": "early_stopping" if rounds.exhausted else "rounds",
        "rounds_trained": rounds.done,
        "best_iteration": rounds.best_round,
        "best_score": rounds.best_score,
        "history": rounds.history,
        "resumed_from": first or None,
        "xgboost": xgb.__version__,
        "data": "streamed" if parts.streamed else "kept",
        "seconds": {name: round(spent, 3) for name, spent in clock.spent.items()},
        "cpu_seconds": {name: round(spent, 3) for name, spent in clock.cpu.items()},
    }
    head = codec.canonical(summary)
    return len(head).to_bytes(4, "little") + head + bytes(model.save_raw("ubj"))


def take_apart(result: bytes) -> tuple[dict[str, Any], bytes]:
    """Read what rank 0 returned: a summary, and the model as UBJSON."""
    start = 4 + int.from_bytes(result[:4], "little")
    return json.loads(result[4:start]), result[start:]


# --- between ranks ---------------------------------------------------------------------------------------------------


@contextmanager
def _communicator(context: RankContext, step_s: float, towards: str) -> Iterator[None]:
    """Join XGBoost's own collective: rank 0 runs the tracker, ranks are those of the gang."""
    if context.size == 1:
        with nullcontext():
            yield
        return
    from xgboost.tracker import RabitTracker

    tracker = None
    if context.rank == 0:
        host = address_towards(towards)
        tracker = RabitTracker(context.size, host, sortby="task", timeout=max(1, round(step_s)))
        tracker.start()
    packed = context.collective.broadcast(codec.canonical(tracker.worker_args()) if tracker is not None else None)
    words = json.loads(packed) | {
        "dmlc_task_id": f"{context.rank:06d}",
        "dmlc_timeout": max(1, round(step_s)),
        "dmlc_retry": 3,
    }
    with xgb.collective.CommunicatorContext(**words):
        if xgb.collective.get_rank() != context.rank:
            raise TrainingError(f"XGBoost made rank {context.rank} its rank {xgb.collective.get_rank()}")
        yield
    if tracker is not None:
        tracker.wait_for(timeout=max(1, round(step_s)))


def _agree_on_cause(context: RankContext, text: str) -> str:
    """Find out what was first: of a rank that is gone XGBoost says neither which nor why, the gang's collective does.

    When all are there, one of them has failed by itself, and the others only heard of it.
    """
    texts = [each.decode() for each in context.collective.allgather(text.encode())]
    own = [each for each in texts if not any(word in each.lower() for word in _HEARSAY)]
    return (own or texts)[0]


class _Throttle:
    """Reports of one kind, a few times a second at most."""

    def __init__(self, context: RankContext) -> None:
        self._context, self._last = context, 0.0

    def __call__(self, message: dict[str, Any], *, force: bool = False) -> None:
        now = time.monotonic()
        if force or now - self._last >= REPORT_S:
            self._last = now
            self._context.report(message)


class _Clock:
    """Seconds spent per phase, of the clock and of the processor (all threads)."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}
        self.cpu: dict[str, float] = {"start": time.process_time()}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        began, cpu = time.monotonic(), time.process_time()
        try:
            yield
        finally:
            self.spent[name] = self.spent.get(name, 0.0) + time.monotonic() - began
            self.cpu[name] = self.cpu.get(name, 0.0) + time.process_time() - cpu


_HEARSAY = ("collective", "rabit", "socket", "connection", "broken pipe", "poll", "tracker")


def _first_line(error: Exception) -> str:
    """The telling part of XGBoost's message, which begins with time and place and ends with native frames."""
    text = str(error).split("Stack trace:")[0]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " ".join(line.rpartition("Check failed: ")[2] for line in lines)[:600]


def _remedy(text: str) -> str:
    if "label must be" in text.lower() or "label" in text.lower():
        return "See whether the objective goes with the label's values."
    return ""
