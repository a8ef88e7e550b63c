"""What does a training say and save on its way? Progress, checkpoints, and leaving when asked."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from pipelines.errors import TrainingError
from pipelines.storage import open_store
from pipelines.training.checkpoint import Checkpoint, latest_checkpoint, save_checkpoint
from pipelines.training.estimators.linear import LinearParams
from pipelines.training.estimators.linear_setting import Job
from pipelines.training.gang import RankContext, StopRequested
from pipelines.training.holding import Resumption
from pipelines.training.optimisers import Step
from pipelines.training.optimisers.oracle import State
from pipelines.training.state import encode_state
from pipelines.training.strategies.synchronous import Team

logger = logging.getLogger(__name__)

_REPORT_S = 0.25
COMMIT_S = 0.25
"""Between two words to the coordinator that the training makes steps."""
SHARE_S = 0.5
"""Between two states that rank 0 gives to the others: so much is done again when rank 0 is lost."""
SHARE_COST = 0.02
"""The share of the time that this may cost; with large states it is done less often."""


class GivenUp(Exception):
    """Nobody wants the result of this training any more; all ranks know, and are ready for another one."""


class Telling:
    """Reports, a few times a second at most.

    Parameters
    ----------
    context : RankContext
    every : bool
        Report every step, or of mini-batches every epoch, so that trainings can be compared step by step.
    given_up : callable
        Whether nobody wants the result any more.
    """

    def __init__(
        self, context: RankContext, *, every: bool = False, given_up: Callable[[], bool] = lambda: False
    ) -> None:
        self._context, self._every, self.given_up = context, every, given_up
        self._before: tuple[int, dict[str, float]] | None = None
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
        if self._every and "epoch" in metrics:
            self._tell_epoch(int(metrics["epoch"]), metrics)
        elif self._every or self._due(unit):
            self._tell(unit, done, total, metrics)

    def _tell_epoch(self, epoch: int, metrics: dict[str, float]) -> None:
        """Report an epoch that is over: the last of its steps has the mean of its losses."""
        if self._before is not None and epoch > self._before[0]:
            self._tell("epoch", epoch, 0, self._before[1])
        self._before = epoch, metrics

    def _tell(self, unit: str, done: int, total: int, metrics: dict[str, float]) -> None:
        rate = self.rows / max(time.monotonic() - self._began, 1e-9)
        self._context.report({"unit": unit, "done": done, "total": total, "metrics": metrics, "rows_per_s": rate})


class Checkpoints:
    """A training's states on an object store."""

    def __init__(self, job: Job) -> None:
        assert job.checkpoint_url is not None
        self._store, self._keep = open_store(job.checkpoint_url), job.config.checkpoint.keep
        self._prefix = f"linear-{job.identity[:24]}"

    def latest(self) -> Checkpoint | None:
        """Return the newest one that is intact."""
        return latest_checkpoint(self._store, self._prefix)

    def save(self, step: int, state: bytes) -> None:
        """Save one, and remove old ones."""
        save_checkpoint(self._store, self._prefix, step, state, keep=self._keep)


class Watching:
    """After each step of the leader: check, report, share and save the state, and leave when asked."""

    def __init__(
        self,
        context: RankContext,
        job: Job,
        team: Team,
        tell: Telling,
        unit: float,
        solver: str,
        params: LinearParams,
        resumption: Resumption,
        checkpoints: Checkpoints | None,
    ) -> None:
        self._context, self._job, self._team, self._tell, self._unit = context, job, team, tell, unit
        self._total = params.max_iter if solver in ("newton", "lbfgs", "owlqn") else None
        self._checkpoints = checkpoints
        self._saved_at, self._saved_step = time.monotonic(), max(0, resumption.step)
        self._shared_at = self._committed_at = time.monotonic()
        self._share_s = SHARE_S
        self._newest: tuple[int, State] | None = None
        self.resumed_from = resumption.step if resumption.state is not None else None
        self.saved = 0
        team.number = max(0, resumption.step)
        if resumption.state is not None:
            logger.info("training goes on from step %d; %d are done again", resumption.step, resumption.lost_steps)
            self._report_resumption(resumption)

    def _report_resumption(self, resumption: Resumption) -> None:
        found = {"step": resumption.step, "lost_steps": resumption.lost_steps, "lost_s": resumption.lost_s}
        self._context.report({"unit": "resumed", **found, "stored": resumption.stored})

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Keep the state after the last step when the formation ends under way: nothing is lost then."""
        try:
            yield
        except Exception:
            if self._newest is not None:
                step, state = self._newest
                self._team.held.keep(step, encode_state(state))
            raise

    def __call__(self, step: Step, state: Any) -> None:
        if not np.isfinite(step.loss):
            raise TrainingError(
                f"the loss is not finite at step {step.number}",
                found=f"{step.loss}",
                remedy="Scale the features, or add l2; the last checkpoint is kept.",
            )
        metrics = {"loss": step.loss * self._unit, "gradient": step.residual, **step.extra}
        self._tell.stepped("step", step.number, self._total or 0, metrics)
        self._newest = step.number, state()
        self._team.number = step.number
        now = time.monotonic()
        stopping = self._context.stop_requested()
        if self._checkpoints is not None and (stopping or self._due(step.number, now)):
            self._save()
        if now - self._committed_at >= COMMIT_S:
            self._committed_at = now
            self._context.committed(step.number)
        if stopping:
            self._team.stop()
        if self._tell.given_up():
            self._team.end()
            raise GivenUp
        if self._context.regroup_requested():
            self._team.regroup()
        if not self._team.alone and now - self._shared_at >= self._share_s:
            self._share()

    def _save(self) -> None:
        assert self._checkpoints is not None
        assert self._newest is not None
        step, state = self._newest
        self._checkpoints.save(step, encode_state(state))
        self._saved_at, self._saved_step = time.monotonic(), step
        self.saved += 1

    def _share(self) -> None:
        """Give everybody the state, as often as that costs a small part of the time."""
        assert self._newest is not None
        step, state = self._newest
        began = time.monotonic()
        self._team.keep(step, encode_state(state))
        self._shared_at = time.monotonic()
        self._share_s = max(SHARE_S, (self._shared_at - began) / SHARE_COST)

    def _due(self, step: int, now: float) -> bool:
        every = self._job.config.checkpoint
        if every.every_steps is not None:
            return step - self._saved_step >= every.every_steps
        assert every.every_s is not None
        return now - self._saved_at >= every.every_s
