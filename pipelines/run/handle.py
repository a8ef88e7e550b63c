"""Runs seen from outside: follow, wait, cancel, resume. The driver is always a process of its own."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

from cluster import JobError, JobHandle, cancel, logs, status
from pipelines.codec import from_plain
from pipelines.errors import DeadlineError, NotFoundError, UsageError
from pipelines.plan.cache import StageCache
from pipelines.run.folder import LOST_AFTER_S, START_LIMIT_S, Attempt, RunFolder
from pipelines.run.journal import Event, read_journal, read_progress
from pipelines.run.record import RESUMABLE, RunRecord, fold
from pipelines.run.submission import submit_attempt
from pipelines.spec import find_places

_POLL_S = 0.4
_LOG_TAIL = 4000


class RunHandle:
    """A run seen from outside. Closing or losing the handle ends nothing.

    Parameters
    ----------
    runs : str
        URL of the runs' store.
    run_id : str

    Raises
    ------
    NotFoundError
        There is no such run.
    """

    def __init__(self, runs: str, run_id: str) -> None:
        self.runs, self.run_id = runs, run_id
        self._folder = RunFolder.open(runs, run_id)

    def __repr__(self) -> str:
        return f"RunHandle({self.run_id!r}, status={self.record().status!r})"

    @property
    def pipeline(self) -> str:
        """Name of the spec that is run."""
        return self._folder.plan().pipeline

    def record(self) -> RunRecord:
        """What the run has come to; a run whose driver vanished counts as failed, and can be resumed."""
        record, attempt = self._folder.record(), self._folder.attempt()
        if attempt is None or _over(record, attempt) or not self._vanished(attempt):
            return record
        # it may have written its last words between the two looks
        record = self._folder.record()
        return record if _over(record, attempt) else fold(record, [self._last_words(attempt)])

    def events(self, *, timeout_s: float | None = None) -> Iterator[Event]:
        """Yield what has happened and then what happens, until the newest attempt ends.

        Raises
        ------
        DeadlineError
            `timeout_s` passed before the end; the run goes on.
        """
        started, after = time.monotonic(), None
        record, attempt = RunRecord(self.run_id, ""), self._attempt()
        vanished, shown = False, 0.0
        while True:
            fresh = list(read_journal(self._folder.store, self._folder.path, after=after))
            for key, event in fresh:
                after = key
                record = fold(record, [event])
                yield event
            if _over(record, attempt):
                return
            if fresh:
                continue
            for event in read_progress(self._folder.store, self._folder.path, attempt.number):
                if event.time > shown:
                    yield event
                    shown = event.time
            if vanished:
                yield self._last_words(attempt)
                return
            vanished = self._vanished(attempt)
            if timeout_s is not None and time.monotonic() - started > timeout_s:
                remedy = "It goes on; wait for it again, or cancel it."
                raise DeadlineError(f"the run has not ended after {timeout_s:g} s", on=self.run_id, remedy=remedy)
            if not vanished:
                time.sleep(_POLL_S)

    def wait(self, timeout_s: float | None = None) -> RunRecord:
        """Wait for the end of the newest attempt.

        Raises
        ------
        DeadlineError
            `timeout_s` passed before the end; the run goes on.
        """
        return fold(RunRecord(self.run_id, self.pipeline), self.events(timeout_s=timeout_s))

    def cancel(self, grace_s: float = 60.0) -> RunRecord:
        """Make the driver save the training's state and leave, and see to it that it does within `grace_s` seconds."""
        attempt = self._folder.attempt()
        if attempt is None:
            return self.record()
        self._folder.ask_to_stop(attempt)
        job = self._job(attempt)
        if job is not None:
            cancel(job, grace_s=grace_s)
            return self.record()
        return self.wait(timeout_s=grace_s + LOST_AFTER_S)

    def resume(self) -> RunHandle:
        """Start the run's next attempt: done stages are not repeated, and a training goes on from its checkpoint.

        Raises
        ------
        UsageError
            It has succeeded, or its driver is at work.
        """
        record = self.record()
        if record.status not in RESUMABLE:
            remedy = "Start a new run of the spec."
            raise UsageError(f"it is {record.status}: there is nothing to resume", on=self.run_id, remedy=remedy)
        attempt = self._folder.attempt()
        if attempt is not None and not record.ended_run and not self._vanished(attempt):
            remedy = f"Follow it: mutirao run attach {self.run_id}"
            raise UsageError("its driver is at work", on=self.run_id, remedy=remedy)
        submit_attempt(self._folder)
        return self

    def checks(self) -> dict[str, Any]:
        """What was found in the rows of each part, per column: nulls, ranges, distinct and frequent values.

        Raises
        ------
        NotFoundError
            The features have not been fitted yet.
        """
        key = self._folder.plan().by_name["features"].stage_key
        cache = StageCache(self._folder.store)
        result = cache.lookup(key)
        if result is None:
            raise NotFoundError("the features have not been fitted yet", on=self.run_id, remedy="Wait, or resume it.")
        checks: dict[str, Any] = json.loads(cache.read(key, result, "fitted.json"))["checks"]
        return checks

    def logs(self) -> str:
        """The end of the driver's log, when this machine holds it; else an empty text."""
        attempt = self._folder.attempt()
        job = None if attempt is None else self._job(attempt)
        return "" if job is None else _tail(job)

    def _attempt(self) -> Attempt:
        """The newest attempt; waits for the first one, which whoever made the run is about to claim."""
        deadline = time.monotonic() + START_LIMIT_S
        while True:
            attempt = self._folder.attempt()
            if attempt is not None:
                return attempt
            if time.monotonic() > deadline:
                remedy = f"Start it: mutirao run resume {self.run_id}"
                raise DeadlineError("nobody has started this run", on=self.run_id, remedy=remedy)
            time.sleep(_POLL_S)

    def _job(self, attempt: Attempt) -> JobHandle | None:
        """The attempt's job, when it can be looked at from here."""
        plain = self._folder.job(attempt)
        if plain is None:
            return None
        job = from_plain(JobHandle, plain)
        try:
            status(job)
        except JobError:
            return None
        return job

    def _vanished(self, attempt: Attempt) -> bool:
        """Whether an attempt's driver is gone: its process if that can be seen, else its signs of life."""
        job = self._job(attempt)
        return self._folder.silent(attempt) if job is None else status(job).ended

    def _last_words(self, attempt: Attempt) -> Event:
        """The end that a vanished driver could not write itself."""
        job = self._job(attempt)
        if job is not None and status(job).state == "cancelled":
            message = "the run was stopped before it could save more. `mutirao run resume` goes on where it was."
            data = {"attempt": attempt.number, "exit_code": 130, "type": "InterruptedRunError", "message": message}
            return Event(time.time(), "end", data=data)
        tail = "" if job is None else _tail(job)
        message = "the driver ended without a word" + (f"; its log ends with:\n{tail}" if tail else "")
        message += f"\n`mutirao run resume {self.run_id}` goes on where it was."
        data = {"attempt": attempt.number, "exit_code": 5, "type": "DriverLost", "message": message, "trace": None}
        return Event(time.time(), "end", data=data)


def _over(record: RunRecord, attempt: Attempt) -> bool:
    return record.ended_run and record.attempts >= attempt.number


def _tail(job: JobHandle) -> str:
    text, offset = "", 0
    while True:
        chunk = logs(job, offset=offset)
        if not chunk.text:
            return text.strip()
        text, offset = (text + chunk.text)[-_LOG_TAIL:], chunk.next_offset


def attach(run_id: str, runs: str | None = None) -> RunHandle:
    """Find a run by its id, from any machine that reaches the runs' store.

    Raises
    ------
    NotFoundError
        There is no such run.
    """
    return RunHandle(runs or find_places().runs, run_id)
