"""What does a rank do between its updates? Look after its servers, tell that it goes on, and save all weights."""

from __future__ import annotations

import json
import logging
import time

from pipelines.training.estimators.linear_setting import Job
from pipelines.training.estimators.linear_watch import COMMIT_S
from pipelines.training.estimators.served_checkpoint import ServedCheckpoints, spill
from pipelines.training.estimators.served_upload import Uploads
from pipelines.training.gang import RankContext
from pipelines.training.strategies.parameter_server import Client
from pipelines.training.strategies.parameter_server.hosting import Hosting, Servers
from pipelines.training.strategies.parameter_server.worker import Done

logger = logging.getLogger(__name__)


class ServedWatch:
    """Called after each update of a rank, and while it waits for the others.

    Parameters
    ----------
    context, job, client, servers, hosting
        The rank's own.
    checkpoints : ServedCheckpoints or None
        Where the weights are saved; None on all ranks but one.
    unit : float
        What turns losses into the label's units.
    """

    def __init__(
        self,
        context: RankContext,
        job: Job,
        client: Client,
        servers: Servers,
        hosting: Hosting,
        checkpoints: ServedCheckpoints | None,
        unit: float,
    ) -> None:
        self._context, self._client, self._servers, self._hosting = context, client, servers, hosting
        self._checkpoints, self._every, self._unit = checkpoints, job.config.checkpoint, unit
        self._saved_at = self._told_at = time.monotonic()
        self._saved_update: int | None = None
        self._uploads: Uploads[float] = Uploads.of(context)

    def pushed(self, done: Done) -> None:
        """Note an update."""
        if self._saved_update is None:
            self._saved_update = done.turn
        now = time.monotonic()
        if now >= self._told_at + COMMIT_S:
            self._told_at = now
            self._context.committed(done.turn)
            self._context.report({"unit": "tick", "scale": self._unit})
        self._hosting.mend(self._servers)
        self._note_upload()
        if self._checkpoints is not None and not self._uploads.busy and self._due(done.turn, now):
            self.save()

    def idle(self) -> None:
        """Note that time passes."""
        now = time.monotonic()
        if now >= self._told_at + COMMIT_S:
            self._told_at = now
            self._context.report({"unit": "tick", "scale": self._unit})
        self._hosting.mend(self._servers)
        self._note_upload()
        every_s = self._every.every_s
        timed = every_s is not None and now - self._saved_at >= every_s
        if self._checkpoints is not None and not self._uploads.busy and timed:
            self.save()

    def save(self) -> None:
        """Save a state between two updates: all wait while it is written to this rank's disk, not while it is stored.

        Storing is over when `finish` has returned.
        """
        checkpoints = self._checkpoints
        assert checkpoints is not None
        self._note_upload(wait=True)
        began = time.monotonic()
        said: list[bytes] = []
        files = spill(self._client.snapshot(said.append), self._servers.layout, self._context.scratch)
        paused_s = time.monotonic() - began
        account = json.loads(said[0])

        def store() -> float:
            checkpoints.save(account["updates"], account, files)
            return paused_s

        self._uploads.begin(store)
        self._saved_at, self._saved_update = time.monotonic(), account["updates"]
        logger.info("update %d is being saved, all waited for %.2f s", account["updates"], paused_s)

    def finish(self) -> None:
        """Wait until what is being saved is stored."""
        self._note_upload(wait=True)

    def _note_upload(self, *, wait: bool = False) -> None:
        paused_s = self._uploads.take(wait=wait)
        if paused_s is not None:
            self._context.report({"unit": "saved", "paused_s": paused_s})

    def _due(self, update: int, now: float) -> bool:
        if self._every.every_s is not None:
            return now - self._saved_at >= self._every.every_s
        assert self._every.every_steps is not None
        assert self._saved_update is not None
        return update - self._saved_update >= self._every.every_steps
