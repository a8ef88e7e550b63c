"""What a rank of a linear model does: load its lanes, then lead or follow the optimiser."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

from pipelines import codec
from pipelines.errors import TrainingError
from pipelines.training.batches import LaneStream
from pipelines.training.certificate import Certificate, machines_of
from pipelines.training.config import AsynchronousConfig, SynchronousConfig, TrainConfig
from pipelines.training.data import TrainingData
from pipelines.training.estimators.linear_async import Ranks, follow, lead
from pipelines.training.estimators.linear_columns_watch import ColumnWatching
from pipelines.training.estimators.linear_ending import Objective, ending, sharpening
from pipelines.training.estimators.linear_params import MINI_BATCH, LinearParams
from pipelines.training.estimators.linear_setting import (
    COARSE_VALUES,
    Job,
    Setting,
    bound_diagonal,
    choose_solver,
    make_setting,
    sample_stride,
)
from pipelines.training.estimators.linear_watch import END_S, Checkpoints, GivenUp, Telling, Watching
from pipelines.training.gang import RankContext, Regroup
from pipelines.training.holding import Holding, Resumption, resume
from pipelines.training.loading import Moments, Room, check_finite, moments_size, own_rss_bytes, plan_room
from pipelines.training.optimisers import Outcome, Watch
from pipelines.training.optimisers.first_order import Descent, descend
from pipelines.training.optimisers.lbfgs import lbfgs
from pipelines.training.optimisers.newton import newton
from pipelines.training.optimisers.oracle import State
from pipelines.training.optimisers.space import WHOLE, Space
from pipelines.training.passes import Passes
from pipelines.training.reducers import ReproducibleSum
from pipelines.training.state import array_bytes, decode_state, encode_state
from pipelines.training.strategies.compression import Compression
from pipelines.training.strategies.local_steps import LocalSteps
from pipelines.training.strategies.penalty import Penalty
from pipelines.training.strategies.synchronous import MeanObjective, Team


def program(context: RankContext) -> bytes:
    """Train; rank 0 returns the model, the others what they used."""
    if context.arguments["config"]["strategy"]["name"] == "model_parallel":
        from pipelines.training.estimators import linear_columns_rank  # which takes what both share from here

        return linear_columns_rank.program(context)
    job = job_of(context.arguments)
    tell = Telling(context, every=context.arguments["every_step"])
    return train(context, job, Loaded.of(context, job, tell), tell)


def job_of(arguments: dict[str, Any]) -> Job:
    """Read a rank's arguments."""
    return Job(
        data=TrainingData.from_plain(arguments["data"]),
        config=codec.from_plain(TrainConfig, arguments["config"]),
        lanes=dict(arguments["lanes"]),
        lanes_total=arguments["lanes_total"],
        checkpoint_url=arguments["checkpoint_url"],
        identity=arguments["identity"],
    )


@dataclass(frozen=True)
class Loaded:
    """A rank's lanes, and what all ranks have seen of theirs."""

    held: Holding
    moments: Moments
    load_s: float
    room: Callable[[], Room]

    @classmethod
    def of(cls, context: RankContext, job: Job, tell: Telling) -> Loaded:
        """Load what is not there yet. Called by all ranks."""
        features, began = len(job.data.features.names), time.monotonic()
        room = cache(lambda: plan_room(context.memory_bytes, own_rss_bytes(), features, context.threads))
        held = Holding.of(context, room)
        held.load(context, job.data, job.lanes, room().in_flight_bytes, tell.loaded)
        moments = _agree_on_moments(context, job, held)
        return cls(held, moments, time.monotonic() - began, room)


def train(context: RankContext, job: Job, loaded: Loaded, tell: Telling) -> bytes:
    """Train on what is loaded; rank 0 returns the model, the others what they used.

    Raises
    ------
    TrainingError
        The training can't go on: raised on all ranks, or on rank 0 once the others are done with it.
    """
    held, moments, features = loaded.held, loaded.moments, len(job.data.features.names)
    setting = make_setting(job, moments)
    streams = {number: LaneStream(number, blocks, job.config.random_state) for number, blocks in held.lanes.items()}
    with closing(_passes(context, held, features, setting)) as passes:
        penalty = Penalty.of(setting.loss.outputs, features, l2=setting.l2, fit_intercept=job.params.fit_intercept)
        team = Team(
            context.collective, passes, streams, features, held, penalty, _compression(context, job), setting.l1
        )  # fmt: skip
        used = {
            "rank": context.rank,
            "load_s": loaded.load_s,
            "memory_bytes": held.store.memory_bytes,
            "disk_bytes": held.store.disk_bytes,
        }
        machines = machines_of(context.collective)
        checkpoints = Checkpoints(context, job) if job.checkpoint_url and context.rank == 0 else None
        start = resume(context, held, lambda: checkpoints.latest() if checkpoints else None)
        if start.state is not None and team.keeps_lanes:
            team.restore(decode_state(start.state))
        solver = choose_solver(job.params, setting, features)
        if solver in MINI_BATCH:
            rule = _descent(job, solver).made(_steps(job, moments), team.l1)
            team.local_steps = LocalSteps(passes, streams, rule, penalty, job.data.features.sparse)
        team.pace = tell.paced(sum(stream.rows for stream in streams.values()))
        strategy = job.config.strategy
        ranks = None
        if isinstance(strategy, AsynchronousConfig):
            room, step_s = loaded.room(), context.arguments["step_s"]
            ranks = Ranks(context, job, held, room, passes, streams, strategy.staleness, step_s)
        if context.rank == 0:
            try:
                result = _lead(context, job, setting, team, moments, tell, start, checkpoints, machines, ranks)
            except (TrainingError, GivenUp):
                team.end()
                if checkpoints is not None:
                    checkpoints.saver.finish(END_S)  # whoever is told removes them
                raise
            return encode_state({**result, "rank": {**used, "compute_s": team.compute_s}})
        if ranks is not None:
            follow(ranks)
        team.follow()
        return json.dumps({**used, **team.traffic, "compute_s": team.compute_s}).encode()


def _compression(context: RankContext, job: Job) -> Compression | None:
    strategy = job.config.strategy
    if not isinstance(strategy, SynchronousConfig) or strategy.compression is None:
        return None
    return Compression.of(strategy.compression, strategy.top_k, context.collective)


def _steps(job: Job, moments: Moments) -> int:
    """Count the steps of an epoch."""
    strategy = job.config.strategy
    accumulate = strategy.accumulate if isinstance(strategy, SynchronousConfig) else 1
    return max(1, round(moments.rows / (job.params.batch_rows * accumulate)))


def _agree_on_moments(context: RankContext, job: Job, held: Holding) -> Moments:
    features, classes, labels = len(job.data.features.names), len(job.data.target.classes), job.data.labels
    width = moments_size(features, classes, labels)
    measured = np.array(list(held.measured.values())).reshape(-1, width)
    total = ReproducibleSum(context.collective).sum(measured)
    everyones = context.collective.broadcast(None if total is None else total.tobytes())
    moments = Moments.of(np.frombuffer(everyones), classes, labels)
    check_finite(moments, job.data.features.names)
    return moments


def _passes(context: RankContext, held: Holding, features: int, setting: Setting) -> Passes:
    def look() -> None:
        if context.leaving():
            raise Regroup

    return Passes(
        held.lanes, features, setting.loss, class_weight=setting.class_weight, threads=context.threads, look=look
    )


def _lead(
    context: RankContext,
    job: Job,
    setting: Setting,
    team: Team,
    moments: Moments,
    tell: Telling,
    resumption: Resumption,
    checkpoints: Checkpoints | None,
    machines: list[dict[str, Any]],
    ranks: Ranks | None,
) -> dict[str, Any]:
    params, features, outputs = job.params, len(job.data.features.names), setting.loss.outputs
    solver = choose_solver(params, setting, features)
    objective = MeanObjective(
        team,
        team.penalty,
        l1=setting.l1,
        diagonal=bound_diagonal(setting, moments),
        coarse_pays=moments.rows * features >= COARSE_VALUES,
        sample_stride=sample_stride(moments.rows, outputs * (features + 1)),
        steps_per_epoch=_steps(job, moments),
        on_rows=lambda share: tell.passed(share * moments.rows),
    )
    weights = np.zeros((outputs, features + 1))
    if params.fit_intercept:
        weights[:, -1] = setting.start
    certificate = Certificate("epoch", objective.steps_per_epoch) if solver in MINI_BATCH else Certificate("step")
    certificate.note_machines(context.formation, machines)
    watch = Watching(context, job, team, tell, setting.unit, solver, params, resumption, checkpoints, certificate)
    start = {"weights": weights.reshape(-1)}
    if resumption.state is not None:
        start = watch.go_on(decode_state(resumption.state))
    began = time.monotonic()
    told: dict[str, Any] = {}
    with watch.keeping():
        if ranks is None:
            outcome = sharpening(partial(minimise, job), setting.loss, team)(solver, objective, start, watch, params)
        else:
            every, descent = context.arguments["every"], _descent(job, solver)
            steps = _steps(job, moments)
            outcome, told = lead(ranks, every, team.penalty, descent, team.l1, steps, params.batch_rows, start, watch)
            outcome = _measured(objective, outcome, WHOLE)
    if not (np.isfinite(outcome.loss) and np.isfinite(outcome.weights).all()):
        raise TrainingError(
            "the loss is not finite",
            on=f"solver {solver}",
            found=f"{outcome.loss} after {outcome.steps} steps",
            remedy="Scale the features, or add l2.",
        )
    end = {**ending(objective, setting, outcome, params.tol, job.data.features.names), **told}
    team.end()
    watch.finish()
    fit_s = time.monotonic() - began
    return result_of(job, setting, moments, outcome, solver, watch, fit_s, tell.rows, end)


def minimise(
    job: Job,
    solver: str,
    objective: Objective,
    start: State,
    watch: Watch,
    params: LinearParams,
    *,
    space: Space = WHOLE,
) -> Outcome:
    """Run a solver; `space` says where its vectors are."""
    if solver == "newton":
        assert isinstance(objective, MeanObjective)  # refused for columns
        return newton(objective, start, watch, tol=params.tol, max_iter=params.max_iter)
    if solver in ("lbfgs", "owlqn"):
        return lbfgs(objective, start, watch, tol=params.tol, max_iter=params.max_iter, space=space)
    return _measured(objective, descend(objective, start, watch, _descent(job, solver), space=space), space)


def _measured(objective: Objective, outcome: Outcome, space: Space) -> Outcome:
    """Say what mini-batches have come to, on the full data."""
    loss, gradient = objective.gradient(outcome.weights)
    value = loss + objective.l1 * space.one_norm(outcome.weights, objective.penalised)
    residual = space.largest(gradient)
    return Outcome(outcome.weights, value, residual, outcome.steps, outcome.reason, outcome.converged, outcome.history)


def _certificate(job: Job, watch: Watching | ColumnWatching, outcome: Outcome) -> dict[str, Any]:
    """State the bits of a training that comes to the same ones whoever takes part."""
    strategy = job.config.strategy
    if isinstance(strategy, AsynchronousConfig) and strategy.staleness:
        return {}
    return {"certificate": watch.certificate.seal(outcome.weights, job.identity)}


def _descent(job: Job, solver: str) -> Descent:
    params, strategy = job.params, job.config.strategy
    return Descent(
        rule=solver,  # type: ignore[arg-type]  # one of MINI_BATCH
        epochs=params.epochs,
        learning_rate=params.learning_rate or (0.01 if solver == "adam" else 0.1),
        schedule=params.schedule,
        power=params.power,
        warmup=params.warmup,
        momentum=params.momentum,
        tol=params.tol,
        reduce_every=strategy.reduce_every if isinstance(strategy, SynchronousConfig) else 1,
    )


def result_of(
    job: Job,
    setting: Setting,
    moments: Moments,
    outcome: Outcome,
    solver: str,
    watch: Watching | ColumnWatching,
    fit_s: float,
    rows_passed: float,
    end: dict[str, Any],
) -> dict[str, Any]:
    """Describe a training, and write its weights in the label's units."""
    weights = setting.loss.units.weights(outcome.weights.reshape(setting.loss.outputs, -1))
    coef, intercept = weights[:, :-1], weights[:, -1]
    summary = {
        "solver": solver,
        "n_iter": outcome.steps,
        "stop_reason": outcome.reason,
        "converged": outcome.converged,
        "loss": outcome.loss * setting.unit,
        "residual": outcome.residual,
        "history": [value * setting.unit for value in outcome.history],
        "rows": moments.rows,
        "weight": setting.weight,
        "l2": setting.asked[0],
        "l1": setting.asked[1],
        "lanes": job.lanes_total,
        "resumed_from": watch.resumed_from,
        "checkpoints": watch.saved,
        "fit_s": fit_s,
        "passes": rows_passed / moments.rows,
        **end,
        **_certificate(job, watch, outcome),
    }
    return {
        "summary": summary,
        "link": setting.loss.link,
        "coef.npy": np.frombuffer(array_bytes(coef), np.uint8),
        "intercept.npy": np.frombuffer(array_bytes(intercept), np.uint8),
        "std.npy": np.frombuffer(array_bytes(moments.std), np.uint8),
    }
