"""Where is the state of a training whose columns are spread over ranks saved? In parts, written while it goes on."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence

from pipelines.codec import digest
from pipelines.errors import CorruptArtifactError, MutiraoError
from pipelines.storage import open_store
from pipelines.training.checkpoint import Checkpoint, latest_checkpoint, save_checkpoint
from pipelines.training.estimators.linear import FAMILY
from pipelines.training.estimators.linear_setting import Job
from pipelines.training.gang import Collective, RankContext
from pipelines.training.saving import Saver

logger = logging.getLogger(__name__)

_SAVERS = "column checkpoints"
_ASK_S = 0.05
"""Between two questions whether all ranks have written their parts."""


class ColumnCheckpoints:
    """States on an object store, in parts that each rank writes for its blocks; rank 0 commits them.

    A checkpoint (`pipelines.training.checkpoint`) is a record that names the parts and their digests, and the steps
    whose parts are to be kept. Parts are written in the background, one state at a time. Until all are there and the
    record names them, the checkpoint before is the newest one.
    """

    def __init__(self, context: RankContext, job: Job) -> None:
        assert job.checkpoint_url is not None
        self._report = context.report
        self._store, self._keep = open_store(job.checkpoint_url), job.config.checkpoint.keep
        self._prefix = f"{FAMILY}-{job.identity[:24]}"
        self._steps: list[int] = []
        self._saver: Saver[Mapping[int, bytes]] = Saver(self._write, self._notice)
        # One that a formation has left may still be writing.
        self._savers: list[Saver[Mapping[int, bytes]]] = context.kept.values.setdefault(_SAVERS, [])
        self._savers.append(self._saver)
        self._written: dict[str, list[str]] | None = None
        self._asked_at = 0.0
        self.pending: int | None = None
        """The step whose state is being written, or is to be committed."""

    def latest(self) -> Checkpoint | None:
        """Return the newest record that is intact; for rank 0."""
        found = latest_checkpoint(self._store, self._prefix, on_damage=self._notice)
        self._steps = [] if found is None else json.loads(found.payload)["steps"]
        return found

    def read(self, record: bytes, blocks: Sequence[int]) -> dict[int, bytes]:
        """Read blocks' parts.

        Raises
        ------
        CorruptArtifactError
            A part is not what was written.
        """
        plain, found = json.loads(record), {}
        for number in blocks:
            key, expected = plain["parts"][str(number)]
            found[number] = self._store.get(key)
            if digest(found[number]) != expected:
                raise CorruptArtifactError(
                    "a part of a checkpoint is not what was saved",
                    on=f"{self._store.url}/{key}",
                    expected=expected,
                    found=digest(found[number]),
                    remedy="Remove the checkpoints' folder, to train from the beginning.",
                )
        return found

    def begin(self, step: int, parts: Mapping[int, bytes]) -> None:
        """Begin to write a step's state. Called by all ranks after the same step."""
        self._saver.offer(step, parts)
        self.pending = step

    def written(self) -> bool:
        """Whether it is time to ask all whether theirs are written: this rank's are; for rank 0."""
        if self.pending is None or time.monotonic() - self._asked_at < _ASK_S or not self._saver.finish(0.0):
            return False
        self._asked_at = time.monotonic()
        return True

    def commit(self, collective: Collective, wait_s: float) -> bool:
        """Commit what was begun if all have written it; returns whether it is there now. Called by all ranks together.

        What can't be written is told, and ends nothing: earlier checkpoints are there.

        Parameters
        ----------
        wait_s : float
            For this rank's own parts. With 0 a rank that is not done yet is asked again later.
        """
        if self.pending is None:
            return False
        done = self._saver.finish(wait_s)
        own = {"done": done or wait_s > 0, "written": self._written if done else None}
        everyones = [json.loads(each) for each in collective.allgather(json.dumps(own).encode())]
        if not all(each["done"] for each in everyones):
            return False
        step, self.pending = self.pending, None
        named: dict[str, list[str]] = {}
        for each in everyones:
            if each["written"] is None:
                return False
            named |= each["written"]
        return collective.broadcast(self._record(step, named) if collective.rank == 0 else None) == b"1"

    def finish(self, limit_s: float) -> None:
        """Wait until nothing is written any more, at most `limit_s` seconds in all."""
        end = time.monotonic() + limit_s
        for saver in self._savers:
            saver.finish(max(0.0, end - time.monotonic()))

    def _write(self, step: int, parts: Mapping[int, bytes]) -> None:
        self._written = None
        written = {}
        for number, part in parts.items():
            found = digest(part)
            key = f"{self._folder(step)}/{number}-{found[:16]}"
            self._store.replace(key, part)
            written[str(number)] = [key, found]
        self._written = written

    def _record(self, step: int, named: Mapping[str, list[str]]) -> bytes:
        steps = [*(each for each in self._steps if each != step), step][-self._keep :]
        record = json.dumps({"parts": named, "steps": steps}, sort_keys=True).encode()
        try:
            save_checkpoint(self._store, self._prefix, step, record, keep=self._keep)
        except MutiraoError as error:
            self._notice(f"the checkpoint of step {step} was not saved: {error}")
            return b"0"
        self._steps = steps
        self._collect()
        return b"1"

    def _notice(self, text: str) -> None:
        logger.warning("%s", text)
        self._report({"unit": "notice", "text": text})

    def _collect(self) -> None:
        kept = tuple(f"{self._folder(step)}/" for step in self._steps)
        try:
            for info in list(self._store.list(f"{self._prefix}/parts")):
                if not info.key.startswith(kept):
                    self._store.delete(info.key)
        except MutiraoError as error:
            logger.warning("old parts under %s/%s were not removed: %s", self._store.url, self._prefix, error)

    def _folder(self, step: int) -> str:
        return f"{self._prefix}/parts/{step:011d}"
