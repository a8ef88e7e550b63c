"""What does a training say and save on its way? Progress, checkpoints, and leaving when asked."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np

from pipelines.errors import TrainingError
from pipelines.storage import open_store
from pipelines.training.certificate import Certificate
from pipelines.training.checkpoint import Checkpoint, latest_checkpoint, save_checkpoint
from pipelines.training.estimators.linear import FAMILY
from pipelines.training.estimators.linear_params import LinearParams
from pipelines.training.estimators.linear_setting import Job
from pipelines.training.gang import RankContext, StopRequested
from pipelines.training.holding import Holding, Resumption
from pipelines.training.optimisers import Step
from pipelines.training.optimisers.oracle import State
from pipelines.training.saving import Saver
from pipelines.training.state import encode_state

logger = logging.getLogger(__name__)

_REPORT_S = 0.25
COMMIT_S = 0.25
"""Between two words to the coordinator that the training makes steps."""
SHARE_S = 0.5
"""Between two states that rank 0 gives to the others: so much is done again when rank 0 is lost."""
SHARE_COST = 0.02
"""The share of the time that this may cost; with large states it is done less often."""
STOP_S = 15.0
"""For the last checkpoint to be written when the training is stopped: less than `Deadlines.grace_s`."""
LATE = f"the last checkpoint was not written within {STOP_S:g} s; an earlier one is gone on from"
END_S = 30.0
"""For a checkpoint that is being written when the training is done: nobody removes the run's checkpoints before."""
_SAVER = "checkpoints"
_OWN = "_certificate"
_SAVED = "_checkpoints"


class GivenUp(Exception):
    """Nobody wants the result of this training any more."""


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

    def paced(self, rows: int) -> Callable[[int, float], None]:
        """Return what tells the driver how long this rank, which has so many rows, has computed for so many orders."""
        return lambda orders, seconds: self._context.report(
            {"unit": "pace", "orders": orders, "seconds": seconds, "rows": rows}
        )

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
    """A training's states on an object store. A process has one `Saver` for all formations: writes never overlap."""

    def __init__(self, context: RankContext, job: Job) -> None:
        assert job.checkpoint_url is not None
        self._store, self._keep = open_store(job.checkpoint_url), job.config.checkpoint.keep
        self._prefix = f"{FAMILY}-{job.identity[:24]}"
        self._report = context.report
        self.saver: Saver[bytes] = context.kept.values.setdefault(_SAVER, Saver(self._save, self._notice))

    @staticmethod
    def forget(context: RankContext) -> None:
        """Be done with one training's: the process is about to have another's."""
        context.kept.values.pop(_SAVER, None)

    def latest(self) -> Checkpoint | None:
        """Return the newest one that is intact; others are told about."""
        return latest_checkpoint(self._store, self._prefix, on_damage=self._notice)

    def _save(self, step: int, state: bytes) -> None:
        save_checkpoint(self._store, self._prefix, step, state, keep=self._keep)

    def _notice(self, text: str) -> None:
        self._report({"unit": "notice", "text": text})


class Crew(Protocol):
    """Those who train, as who watches their leader sees them."""

    number: int

    @property
    def held(self) -> Holding: ...

    @property
    def alone(self) -> bool: ...

    @property
    def keeps_lanes(self) -> bool: ...

    def lane_state(self) -> dict[str, Any]: ...

    def keep(self, step: int, state: bytes) -> None: ...

    def stop(self) -> None: ...

    def regroup(self) -> None: ...


class Watching:
    """After each step of the leader: check, report, share and save the state, and leave when asked."""

    def __init__(
        self,
        context: RankContext,
        job: Job,
        team: Crew,
        tell: Telling,
        unit: float,
        solver: str,
        params: LinearParams,
        resumption: Resumption,
        checkpoints: Checkpoints | None,
        certificate: Certificate,
    ) -> None:
        self._context, self._job, self._tell, self._unit = context, job, tell, unit
        self.team = team
        self._total = params.max_iter if solver in ("newton", "lbfgs", "owlqn") else None
        self._checkpoints, self.certificate = checkpoints, certificate
        self._saved_at, self._saved_step = time.monotonic(), max(0, resumption.step)
        self._shared_at = self._committed_at = time.monotonic()
        self._share_s = SHARE_S
        self._newest: tuple[int, State] | None = None
        self.resumed_from = resumption.step if resumption.state is not None else None
        self._saved_before = 0
        team.number = max(0, resumption.step)
        logger.info("training begins after step %d; %d are done again", team.number, resumption.lost_steps)
        word = {"unit": "began", "formation": context.formation, "step": team.number}
        cost = {"lost_steps": resumption.lost_steps, "lost_s": round(resumption.lost_s, 3)}
        context.report({**word, **cost, "stored": resumption.stored, "saved_at": resumption.saved_at})

    @property
    def saved(self) -> int:
        """Checkpoints that were saved, also by leaders before, as far as their last state tells."""
        return self._saved_before + (self._checkpoints.saver.saved if self._checkpoints else 0)

    def go_on(self, state: State) -> State:
        """Take what is ours out of a state that is gone on from; returns the optimiser's."""
        state = dict(state)
        self.certificate.go_on(state.pop(_OWN))
        # The saver of a process that has led before has counted its own.
        self._saved_before = max(0, int(state.pop(_SAVED)) - self.saved)
        return state

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Keep the state after the last step when the formation ends under way: nothing is lost then."""
        try:
            yield
        except Exception:
            # What ranks keep for their lanes may be lost with them: only states that were shared are whole then.
            if self._newest is not None and not self.team.keeps_lanes:
                step, state = self._newest
                self.team.held.keep(step, self._encoded(state))
            raise

    def _encoded(self, state: State) -> bytes:
        return encode_state({**state, _OWN: self.certificate.to_plain(), _SAVED: self.saved})

    def finish(self) -> None:
        """Let the last checkpoint be written, for so long."""
        if self._checkpoints is not None:
            self._checkpoints.saver.finish(END_S)

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
        self.certificate.note(step.number, self._newest[1]["weights"])
        self.team.number = step.number
        now = time.monotonic()
        stopping = self._context.stop_requested()
        if self._checkpoints is not None and (stopping or self._due(step.number, now)):
            self._save()
        if now - self._committed_at >= COMMIT_S:
            self._committed_at = now
            self._context.committed(step.number)
        if stopping:
            if self._checkpoints is not None and not self._checkpoints.saver.finish(STOP_S):
                self._context.report({"unit": "notice", "text": LATE})
            self.team.stop()
        if self._tell.given_up():
            raise GivenUp
        if self._context.regroup_requested():
            if self.team.keeps_lanes:
                self._share()
            self.team.regroup()
        if not self.team.alone and now - self._shared_at >= self._share_s:
            self._share()

    def _save(self) -> None:
        assert self._checkpoints is not None
        assert self._newest is not None
        step, state = self._newest
        self._checkpoints.saver.offer(step, self._encoded({**state, **self.team.lane_state()}))
        self._saved_at, self._saved_step = time.monotonic(), step

    def _share(self) -> None:
        """Give everybody the state, as often as that costs a small part of the time."""
        assert self._newest is not None
        step, state = self._newest
        began = time.monotonic()
        self.team.keep(step, self._encoded({**state, **self.team.lane_state()}))
        self._shared_at = time.monotonic()
        self._share_s = max(SHARE_S, (self._shared_at - began) / SHARE_COST)

    def _due(self, step: int, now: float) -> bool:
        every = self._job.config.checkpoint
        if every.every_steps is not None:
            return step - self._saved_step >= every.every_steps
        assert every.every_s is not None
        return now - self._saved_at >= every.every_s
