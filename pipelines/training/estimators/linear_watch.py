"""What does a training say and save on its way? Progress, checkpoints, and leaving when asked."""

from __future__ import annotations

import logging
import time
from typing import Any

import numpy as np

from pipelines.errors import TrainingError
from pipelines.storage import open_store
from pipelines.training.checkpoint import latest_checkpoint, save_checkpoint
from pipelines.training.estimators.linear_params import LinearParams
from pipelines.training.estimators.linear_setting import Job
from pipelines.training.gang import RankContext, StopRequested
from pipelines.training.optimisers import Step
from pipelines.training.optimisers.oracle import State
from pipelines.training.state import decode_state, encode_state
from pipelines.training.strategies.synchronous import Team

logger = logging.getLogger(__name__)

_REPORT_S = 0.25


class Telling:
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


class Watching:
    """After each step of the leader: check, report, save, and leave when asked."""

    def __init__(
        self,
        context: RankContext,
        job: Job,
        team: Team,
        tell: Telling,
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
