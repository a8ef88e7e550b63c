"""What a rank of a linear model does: load its lanes, then lead or follow the optimiser."""

from __future__ import annotations

import json
import logging
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipelines import codec
from pipelines.errors import TrainingError
from pipelines.storage import open_store
from pipelines.training.batches import LaneStream
from pipelines.training.blocks import BlockStore
from pipelines.training.checkpoint import latest_checkpoint, save_checkpoint
from pipelines.training.config import TrainConfig
from pipelines.training.data import TrainingData
from pipelines.training.estimators.class_weights import class_factors
from pipelines.training.estimators.linear import LinearParams
from pipelines.training.gang import RankContext, StopRequested
from pipelines.training.gang.context import Array
from pipelines.training.loading import Moments, check_finite, load_lanes, measure, own_rss_bytes, plan_room
from pipelines.training.objectives import Logistic, Loss, Multinomial, Squared
from pipelines.training.optimisers import Outcome, Step
from pipelines.training.optimisers.first_order import Descent, descend
from pipelines.training.optimisers.lbfgs import lbfgs
from pipelines.training.optimisers.newton import newton
from pipelines.training.optimisers.oracle import State
from pipelines.training.passes import Passes
from pipelines.training.reducers import LaneOrder
from pipelines.training.state import array_bytes, decode_state, encode_state
from pipelines.training.strategies.synchronous import MeanObjective, Team

logger = logging.getLogger(__name__)

NEWTON_WEIGHTS = 500
"""Up to so many weights a Hessian costs less than the gradients it saves."""
_COARSE_VALUES = 1 << 22
"""A pass over fewer values takes a few milliseconds at most."""
_SAMPLE_ROWS = 1 << 16
_SAMPLE_ROWS_PER_WEIGHT = 64
_REPORT_S = 0.25


def program(context: RankContext) -> bytes:
    """Train; rank 0 returns the model, the others what they used."""
    arguments = context.arguments
    job = _Job(
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
        tell = _Telling(context)
        lanes = load_lanes(job.data, job.lanes, store, room, threads=context.threads, on_rows=tell.loaded)
        classes = len(job.data.target.classes)
        measured = np.array([measure(blocks, features, classes) for blocks in lanes.values()])
        total = LaneOrder(context.collective, job.lanes_total).sum(measured)
        everyones = context.collective.broadcast(None if total is None else total.tobytes())
        moments = Moments.of(np.frombuffer(everyones), classes)
        check_finite(moments, job.data.features.names)
        load_s = time.monotonic() - began
        setting = _setting(job, moments)
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


@dataclass(frozen=True)
class _Job:
    """A rank's arguments."""

    data: TrainingData
    config: TrainConfig
    lanes: dict[int, list[int]]
    lanes_total: int
    checkpoint_url: str | None
    identity: str

    @property
    def params(self) -> LinearParams:
        return LinearParams.model_validate(self.config.params)


@dataclass(frozen=True, eq=False)
class _Setting:
    """The objective, in the scale that is learned on.

    `weight` is the sum of all rows' weights, class weights included; `start` are the first intercepts; `unit` turns
    losses into the label's units.
    """

    loss: Loss
    class_weight: Array | None
    weight: float
    l2: float
    l1: float
    start: Array
    unit: float


def _setting(job: _Job, moments: Moments) -> _Setting:
    target, params = job.data.target, job.params
    if not moments.weight > 0:
        raise TrainingError(
            "there is nothing to learn from",
            expected="training rows with a label and a positive weight",
            found=f"{moments.rows} rows of weight {moments.weight:g}",
            remedy="Look at the filter, the split and the weights.",
        )
    if target.kind == "regression":
        mean = moments.y / moments.weight
        scale = float(np.sqrt(max(moments.y2 / moments.weight - mean**2, 0.0))) or 1.0
        shift = mean if params.fit_intercept else 0.0
        squared = Squared(shift, scale)
        l2, l1 = _strengths(params, moments.weight, default_C=None)
        # With y and w in units of `scale`, the objective divided by scale² has l1 / scale.
        return _Setting(squared, None, moments.weight, l2, l1 / scale, squared.start(np.array([mean])), scale**2)
    class_weight = _class_weight(job, moments)
    shares = moments.classes if class_weight is None else moments.classes * class_weight
    total = float(shares.sum())
    loss: Loss = Logistic() if target.kind == "binary" else Multinomial(len(target.classes))
    l2, l1 = _strengths(params, total, default_C=1.0)
    start = loss.start(shares[1:] / total if target.kind == "binary" else shares / total)
    return _Setting(loss, class_weight, total, l2, l1, start, 1.0)


def _strengths(params: LinearParams, weight: float, default_C: float | None) -> tuple[float, float]:
    """Return l2 and l1 of the mean objective."""
    silent = params.C is None and params.l2 is None and params.l1 is None
    C = default_C if silent else params.C
    if C is None:
        return params.l2 or 0.0, params.l1 or 0.0
    total = 1.0 / (C * weight)
    return total * (1 - params.l1_ratio), total * params.l1_ratio


def _class_weight(job: _Job, moments: Moments) -> Array | None:
    pairs = zip(job.data.target.classes, moments.classes, strict=True)
    empty = [str(label) for label, weight in pairs if not weight > 0]
    if empty:
        raise TrainingError(
            "classes have no training rows",
            on=f"column {job.data.target.column}",
            found=f"nothing for {', '.join(empty[:5])}",
            remedy="Split with kind: stratified, or leave such rows out with filter.",
        )
    return class_factors(job.config.class_weight, job.data.target)


def _lead(
    context: RankContext, job: _Job, setting: _Setting, team: Team, moments: Moments, tell: _Telling
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
        diagonal=_diagonal(setting, moments),
        coarse_pays=moments.rows * features >= _COARSE_VALUES,
        sample_stride=_sample_stride(moments.rows, outputs * (features + 1)),
        steps_per_epoch=max(1, round(moments.rows / params.batch_rows)),
        on_rows=lambda share: tell.passed(share * moments.rows),
    )
    weights = np.zeros((outputs, features + 1))
    if params.fit_intercept:
        weights[:, -1] = setting.start
    watch = _Watching(context, job, team, tell, setting.unit, solver, params)
    start = watch.resume() or {"weights": weights.reshape(-1)}
    began = time.monotonic()
    outcome = _minimise(solver, objective, start, watch, params)
    if not (np.isfinite(outcome.loss) and np.isfinite(outcome.weights).all()):
        raise TrainingError(
            "the loss is not finite",
            on=f"solver {solver}",
            found=f"{outcome.loss} after {outcome.steps} steps",
            remedy="Scale the features, or add l2.",
        )
    team.end()
    fit_s = time.monotonic() - began
    return _result(job, setting, moments, outcome, solver, watch, fit_s, tell.rows)


def choose_solver(params: LinearParams, setting: _Setting, features: int) -> str:
    """Say which solver ``auto`` is, and refuse Newton's method where it can't be."""
    if params.solver == "newton" and not setting.loss.curved:
        raise TrainingError(
            "Newton's method is for one output", found="more than two classes", remedy="Use solver: auto or lbfgs."
        )
    if params.solver == "lbfgs" and setting.l1:
        raise TrainingError("lbfgs needs a smooth objective", found=f"l1 = {setting.l1:g}", remedy="Use solver: auto.")
    if params.solver != "auto":
        return params.solver
    if setting.loss.curved and features <= NEWTON_WEIGHTS:
        return "newton"
    return "owlqn" if setting.l1 else "lbfgs"


def _minimise(solver: str, objective: MeanObjective, start: State, watch: _Watching, params: LinearParams) -> Outcome:
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


def _diagonal(setting: _Setting, moments: Moments) -> Array:
    """Bound the second derivatives: those of the losses by their largest, times the features' mean squares."""
    squares = moments.x2 / moments.weight
    floor = 1e-6 * float(squares.max(initial=1.0))
    row = np.append(np.maximum(squares, floor), 1.0)
    bound = 1.0 if isinstance(setting.loss, Squared) else 0.25
    return np.tile(bound * row, setting.loss.outputs)


def _sample_stride(rows: int, weights: int) -> int:
    """Every how many blocks make a sample that is large for so many weights, and small against the whole."""
    stride = min(rows // max(_SAMPLE_ROWS, _SAMPLE_ROWS_PER_WEIGHT * weights), 32)
    return stride if stride >= 4 else 1


def _result(
    job: _Job,
    setting: _Setting,
    moments: Moments,
    outcome: Outcome,
    solver: str,
    watch: _Watching,
    fit_s: float,
    rows_passed: float,
) -> dict[str, Any]:
    weights = outcome.weights.reshape(setting.loss.outputs, -1)
    coef, intercept = weights[:, :-1], weights[:, -1]
    if isinstance(setting.loss, Squared):
        coef, intercept = coef * setting.loss.scale, intercept * setting.loss.scale + setting.loss.shift
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
        "l2": setting.l2,
        "l1": setting.l1 * float(np.sqrt(setting.unit)),
        "lanes": job.lanes_total,
        "resumed_from": watch.resumed_from,
        "checkpoints": watch.saved,
        "fit_s": fit_s,
        "passes": rows_passed / moments.rows,
    }
    return {
        "summary": summary,
        "link": setting.loss.link,
        "coef.npy": np.frombuffer(array_bytes(coef), np.uint8),
        "intercept.npy": np.frombuffer(array_bytes(intercept), np.uint8),
        "std.npy": np.frombuffer(array_bytes(moments.std), np.uint8),
    }


class _Telling:
    """Reports, a few times a second at most."""

    def __init__(self, context: RankContext) -> None:
        self._context = context
        self._next: dict[str, float] = {}
        self._began = time.monotonic()
        self.rows = 0.0

    def loaded(self, rows: int) -> None:
        if self._context.stop_requested():
            raise StopRequested  # there is nothing to save yet
        if self._due("load"):
            self._context.report({"unit": "load", "rows": rows})

    def _due(self, unit: str) -> bool:
        due = time.monotonic() >= self._next.get(unit, 0.0)
        if due:
            self._next[unit] = time.monotonic() + _REPORT_S
        return due

    def passed(self, rows: float) -> None:
        if not self.rows:
            self._began = time.monotonic()
        self.rows += rows

    def stepped(self, unit: str, done: int, total: int, metrics: dict[str, float]) -> None:
        if self._due(unit):
            rate = self.rows / max(time.monotonic() - self._began, 1e-9)
            self._context.report({"unit": unit, "done": done, "total": total, "metrics": metrics, "rows_per_s": rate})


class _Watching:
    """After each step of the leader: check, report, save, and leave when asked."""

    def __init__(
        self,
        context: RankContext,
        job: _Job,
        team: Team,
        tell: _Telling,
        unit: float,
        solver: str,
        params: LinearParams,
    ) -> None:
        self._context, self._job, self._team, self._tell, self._unit = context, job, team, tell, unit
        self._total = params.max_iter if solver in ("newton", "lbfgs", "owlqn") else None
        self._store = open_store(job.checkpoint_url) if job.checkpoint_url else None
        self._last_s, self._last_step = time.monotonic(), 0
        self.resumed_from: int | None = None
        self.saved = 0

    def resume(self) -> State | None:
        """Return the state to go on from, if there is one."""
        found = latest_checkpoint(self._store, self._prefix) if self._store else None
        if found is None:
            return None
        state = decode_state(found.payload)
        self.resumed_from = self._last_step = found.step
        logger.info("training goes on from the checkpoint at step %d", found.step)
        return state

    def __call__(self, step: Step, state: Any) -> None:
        if not np.isfinite(step.loss):
            raise TrainingError(
                f"the loss is not finite at step {step.number}",
                found=f"{step.loss}",
                remedy="Scale the features, or add l2; the last checkpoint is kept.",
            )
        metrics = {"loss": step.loss * self._unit, "gradient": step.residual, **step.extra}
        self._tell.stepped("step", step.number, self._total or 0, metrics)
        stopping = self._context.stop_requested()
        if self._store is not None and (stopping or self._due(step.number)):
            keep = self._job.config.checkpoint.keep
            save_checkpoint(self._store, self._prefix, step.number, encode_state(state()), keep=keep)
            self._last_s, self._last_step = time.monotonic(), step.number
            self.saved += 1
        if stopping:
            self._team.leave()

    @property
    def _prefix(self) -> str:
        return f"linear-{self._job.identity[:24]}"

    def _due(self, step: int) -> bool:
        every = self._job.config.checkpoint
        if every.every_steps is not None:
            return step - self._last_step >= every.every_steps
        assert every.every_s is not None
        return time.monotonic() - self._last_s >= every.every_s
