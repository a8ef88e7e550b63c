"""What a rank of a linear model does: load its lanes, then lead or follow the optimiser."""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np

from pipelines import codec
from pipelines.errors import TrainingError
from pipelines.training.batches import LaneStream
from pipelines.training.blocks import BlockStore
from pipelines.training.config import TrainConfig
from pipelines.training.data import TrainingData
from pipelines.training.estimators.linear_ending import ending, sharpening
from pipelines.training.estimators.linear_params import LinearParams
from pipelines.training.estimators.linear_setting import (
    COARSE_VALUES,
    Job,
    Setting,
    bound_diagonal,
    choose_solver,
    make_setting,
    sample_stride,
)
from pipelines.training.estimators.linear_watch import Telling, Watching
from pipelines.training.gang import RankContext
from pipelines.training.loading import Moments, check_finite, load_lanes, measure, own_rss_bytes, plan_room
from pipelines.training.optimisers import Outcome, Watch
from pipelines.training.optimisers.first_order import Descent, descend
from pipelines.training.optimisers.lbfgs import lbfgs
from pipelines.training.optimisers.newton import newton
from pipelines.training.optimisers.oracle import State
from pipelines.training.passes import Passes
from pipelines.training.reducers import LaneOrder
from pipelines.training.state import array_bytes, encode_state
from pipelines.training.strategies.synchronous import MeanObjective, Team


def program(context: RankContext) -> bytes:
    """Train; rank 0 returns the model, the others what they used."""
    arguments = context.arguments
    job = Job(
        data=TrainingData.from_plain(arguments["data"]),
        config=codec.from_plain(TrainConfig, arguments["config"]),
        lanes=dict(arguments["lanes"]),
        lanes_total=arguments["lanes_total"],
        checkpoint_url=arguments["checkpoint_url"],
        identity=arguments["identity"],
    )
    features = len(job.data.features.names)
    room = plan_room(context.memory_bytes, own_rss_bytes(), features, context.threads)
    with BlockStore(context.scratch, room.blocks_bytes) as store:
        began = time.monotonic()
        tell = Telling(context)
        lanes = load_lanes(job.data, job.lanes, store, room, threads=context.threads, on_rows=tell.loaded)
        classes = len(job.data.target.classes)
        labels = job.data.labels
        measured = np.array([measure(blocks, features, classes, labels) for blocks in lanes.values()])
        total = LaneOrder(context.collective, job.lanes_total).sum(measured)
        everyones = context.collective.broadcast(None if total is None else total.tobytes())
        moments = Moments.of(np.frombuffer(everyones), classes, labels)
        check_finite(moments, job.data.features.names)
        load_s = time.monotonic() - began
        setting = make_setting(job, moments)
        passes = Passes(lanes, features, setting.loss, class_weight=setting.class_weight, threads=context.threads)
        streams = {number: LaneStream(number, blocks, job.config.random_state) for number, blocks in lanes.items()}
        team = Team(context.collective, passes, streams, job.lanes_total, features)
        used = {
            "rank": context.rank,
            "load_s": load_s,
            "memory_bytes": store.memory_bytes,
            "disk_bytes": store.disk_bytes,
        }
        if context.rank == 0:
            result = _lead(context, job, setting, team, moments, tell)
            return encode_state({**result, "rank": {**used, "compute_s": team.compute_s}})
        team.follow()
        return json.dumps({**used, "compute_s": team.compute_s}).encode()


def _lead(
    context: RankContext, job: Job, setting: Setting, team: Team, moments: Moments, tell: Telling
) -> dict[str, Any]:
    params, features, outputs = job.params, len(job.data.features.names), setting.loss.outputs
    solver = choose_solver(params, setting, features)
    objective = MeanObjective(
        team,
        outputs,
        features,
        l2=setting.l2,
        l1=setting.l1,
        fit_intercept=params.fit_intercept,
        diagonal=bound_diagonal(setting, moments),
        coarse_pays=moments.rows * features >= COARSE_VALUES,
        sample_stride=sample_stride(moments.rows, outputs * (features + 1)),
        steps_per_epoch=max(1, round(moments.rows / params.batch_rows)),
        on_rows=lambda share: tell.passed(share * moments.rows),
    )
    weights = np.zeros((outputs, features + 1))
    if params.fit_intercept:
        weights[:, -1] = setting.start
    watch = Watching(context, job, team, tell, setting.unit, solver, params)
    start = watch.resume() or {"weights": weights.reshape(-1)}
    began = time.monotonic()
    outcome = sharpening(_minimise, setting.loss, team)(solver, objective, start, watch, params)
    if not (np.isfinite(outcome.loss) and np.isfinite(outcome.weights).all()):
        raise TrainingError(
            "the loss is not finite",
            on=f"solver {solver}",
            found=f"{outcome.loss} after {outcome.steps} steps",
            remedy="Scale the features, or add l2.",
        )
    end = ending(objective, setting, outcome, job.data.features.names)
    team.end()
    fit_s = time.monotonic() - began
    return _result(job, setting, moments, outcome, solver, watch, fit_s, tell.rows, end)


def _minimise(solver: str, objective: MeanObjective, start: State, watch: Watch, params: LinearParams) -> Outcome:
    if solver == "newton":
        return newton(objective, start, watch, tol=params.tol, max_iter=params.max_iter)
    if solver in ("lbfgs", "owlqn"):
        return lbfgs(objective, start, watch, tol=params.tol, max_iter=params.max_iter)
    rate = params.learning_rate or (0.01 if solver == "adam" else 0.1)
    settings = Descent(
        rule=solver,  # type: ignore[arg-type]  # one of the three that are left
        epochs=params.epochs,
        learning_rate=rate,
        schedule=params.schedule,
        power=params.power,
        warmup=params.warmup,
        momentum=params.momentum,
        tol=params.tol,
    )
    outcome = descend(objective, start, watch, settings)
    loss, gradient = objective.gradient(outcome.weights)
    inner = np.abs(outcome.weights[objective.penalised]).sum()
    residual = float(np.abs(gradient).max())
    value = loss + objective.l1 * float(inner)
    return Outcome(outcome.weights, value, residual, outcome.steps, outcome.reason, outcome.converged, outcome.history)


def _result(
    job: Job,
    setting: Setting,
    moments: Moments,
    outcome: Outcome,
    solver: str,
    watch: Watching,
    fit_s: float,
    rows_passed: float,
    end: dict[str, Any],
) -> dict[str, Any]:
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
    }
    return {
        "summary": summary,
        "link": setting.loss.link,
        "coef.npy": np.frombuffer(array_bytes(coef), np.uint8),
        "intercept.npy": np.frombuffer(array_bytes(intercept), np.uint8),
        "std.npy": np.frombuffer(array_bytes(moments.std), np.uint8),
    }
