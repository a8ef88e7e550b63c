"""What do ranks do together after each step of a training whose columns are spread over them?

Every rank runs the optimiser on its part of the weights. After a step rank 0 says what is to be done (`_Word`): begin
to save the state, commit one that all have written, share it, leave. The word also holds the step and its loss, so that
a rank that has come to other numbers (which takes a broken machine) ends the training instead of spoiling the model.
"""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from pipelines.errors import TrainingError
from pipelines.training.certificate import Certificate
from pipelines.training.estimators.linear_columns_checkpoints import ColumnCheckpoints
from pipelines.training.estimators.linear_setting import Job
from pipelines.training.estimators.linear_watch import COMMIT_S, END_S, LATE, SHARE_COST, SHARE_S, STOP_S, Telling
from pipelines.training.gang import RankContext, Regroup, StopRequested
from pipelines.training.optimisers import Step
from pipelines.training.optimisers.oracle import State
from pipelines.training.strategies.model_parallel_state import Beginning, Parts, agree, cut_state

logger = logging.getLogger(__name__)

_OWN = "_certificate"
_SAVED = "_checkpoints"

_WORD = struct.Struct("<qd?????")


class _Word(NamedTuple):
    step: int
    loss: float
    save: bool
    commit: bool
    share: bool
    stop: bool
    regroup: bool


class ColumnWatching:
    """Called after each step, on all ranks: check, report, share and save the state, and leave when asked."""

    def __init__(
        self,
        context: RankContext,
        job: Job,
        held: Parts,
        segments: Mapping[int, slice],
        tell: Telling,
        *,
        unit: float,
        total: int | None,
        beginning: Beginning,
        checkpoints: ColumnCheckpoints | None,
        certificate: Certificate,
    ) -> None:
        self._context, self._job, self._held, self._segments = context, job, held, segments
        self._tell, self._unit, self._total = tell, unit, total
        self._checkpoints, self.certificate = checkpoints, certificate
        self._size = max((part.stop for part in segments.values()), default=0)
        self._saved_at, self._saved_step = time.monotonic(), max(0, beginning.step)
        self._shared_at = self._committed_at = time.monotonic()
        self._share_s = SHARE_S
        self._newest: tuple[int, State] | None = None
        self._shared: int | None = None
        self.resumed_from = beginning.step if beginning.parts is not None else None
        self.saved = 0
        """Checkpoints that were saved, also by formations before, as far as their last state tells."""
        if context.rank == 0:
            step = max(0, beginning.step)
            logger.info("training begins after step %d; %d are done again", step, beginning.lost_steps)
            word = {"unit": "began", "formation": context.formation, "step": step}
            cost = {"lost_steps": beginning.lost_steps, "lost_s": round(beginning.lost_s, 3)}
            context.report({**word, **cost, "stored": beginning.stored, "saved_at": beginning.saved_at})

    def go_on(self, state: State) -> State:
        """Take what is ours out of a state that is gone on from; returns the optimiser's."""
        state = dict(state)
        self.certificate.go_on(state.pop(_OWN))
        self.saved = int(state.pop(_SAVED))
        return state

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Keep the own parts after the last step when the formation ends under way."""
        try:
            yield
        except Exception as error:
            if isinstance(error, TrainingError):
                self.finish()
            if self._newest is not None:
                step, state = self._newest
                self._held.keep(step, self._cut(state))
            raise

    def __call__(self, step: Step, state: Callable[[], State]) -> None:
        if not np.isfinite(step.loss):
            raise TrainingError(
                f"the loss is not finite at step {step.number}",
                found=f"{step.loss}",
                remedy="Scale the features, or add l2; the last checkpoint is kept.",
            )
        self._newest = step.number, state()
        self._held.hear(step.number)
        word = self._word(step)
        if self._shared is not None:
            self._held.forget_all_but([self._shared])
            self._shared = None
        if self._context.rank == 0:
            metrics = {"loss": step.loss * self._unit, "gradient": step.residual, **step.extra}
            self._tell.stepped("step", step.number, self._total or 0, metrics)
            if time.monotonic() - self._committed_at >= COMMIT_S:
                self._committed_at = time.monotonic()
                self._context.committed(step.number)
        if word.commit:
            self._commit(0.0)
        if word.save:
            self._save(*self._newest)
        if word.stop:
            if not self._commit(STOP_S) and self._checkpoints is not None and self._context.rank == 0:
                self._context.report({"unit": "notice", "text": LATE})
            raise StopRequested
        if word.regroup:
            raise Regroup
        if word.share:
            self._share(*self._newest)

    def _word(self, step: Step) -> _Word:
        """Hear what rank 0 decides."""
        own = None
        if self._context.rank == 0:
            now, stop = time.monotonic(), self._context.stop_requested()
            kept = self._checkpoints
            commit = kept is not None and kept.written()
            save = kept is not None and (stop or (kept.pending is None and self._due(step.number, now)))
            share = self._context.size > 1 and now - self._shared_at >= self._share_s
            own = _WORD.pack(step.number, step.loss, save, commit, share, stop, self._context.regroup_requested())
        word = _Word(*_WORD.unpack(self._context.collective.broadcast(own)))
        if (word.step, word.loss) != (step.number, step.loss):
            raise TrainingError(
                "ranks have come to different numbers",
                on=f"rank {self._context.rank}",
                expected=f"a loss of {word.loss!r} at step {word.step}, as on rank 0",
                found=f"{step.loss!r} at step {step.number}",
                remedy="Use workers of the same kind of processor, with the same versions of NumPy.",
            )
        return word

    def _save(self, step: int, state: State) -> None:
        assert self._checkpoints is not None
        self._checkpoints.begin(step, self._cut(state))
        self._saved_at, self._saved_step = time.monotonic(), step

    def _commit(self, wait_s: float) -> bool:
        if self._checkpoints is None:
            return False
        done = self._checkpoints.commit(self._context.collective, wait_s)
        self.saved += done
        return done

    def finish(self) -> None:
        """Wait for what is being written: whoever is told that the training is done removes the checkpoints."""
        if self._checkpoints is not None:
            self._checkpoints.finish(END_S)

    def _share(self, step: int, state: State) -> None:
        """Let every rank's neighbour have its parts, as often as that costs a small part of the time."""
        began = time.monotonic()
        self._held.share(self._context.collective, step, self._cut(state))
        self._shared = step
        self._shared_at = time.monotonic()
        self._share_s = max(SHARE_S, (self._shared_at - began) / SHARE_COST)

    def _cut(self, state: State) -> dict[int, bytes]:
        own = {_OWN: self.certificate.to_plain(), _SAVED: self.saved}
        return cut_state({**state, **own}, self._segments, self._size)

    def _due(self, step: int, now: float) -> bool:
        every = self._job.config.checkpoint
        if every.every_steps is not None:
            return step - self._saved_step >= every.every_steps
        assert every.every_s is not None
        return now - self._saved_at >= every.every_s


def go_on(
    context: RankContext,
    held: Parts,
    hosts: tuple[tuple[int, ...], ...],
    checkpoints: ColumnCheckpoints | None,
) -> Beginning:
    """Agree on where the training goes on. Called by all ranks."""
    record = checkpoints.latest() if checkpoints is not None and context.rank == 0 else None
    found = agree(context.collective, held, hosts, -1 if record is None else record.step)
    if isinstance(found, Beginning):
        return found
    assert checkpoints is not None
    own = None if record is None else struct.pack("<q", record.step) + record.payload
    payload = context.collective.broadcast(own)
    parts = checkpoints.read(payload[8:], hosts[context.rank])
    step, saved_at = struct.unpack_from("<q", payload)[0], 0.0 if record is None else record.at
    return Beginning(step, parts, found, 0.0, stored=True, saved_at=saved_at)
