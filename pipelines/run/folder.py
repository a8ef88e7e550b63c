"""The folder of one run on the runs' store.

Layout below the store::

    runs/ID/plan.json            the frozen plan
    runs/ID/manifest.arrow       the dataset as it was planned
    runs/ID/code.zip             the user's own code, if there is any
    runs/ID/chaos.json           the faults to inject, if somebody asked for some
    runs/ID/attempts/N/claim.json  one create-only claim per attempt, so that there is one driver
    runs/ID/attempts/N/job.json  the job that drives it
    runs/ID/attempts/N/stop      asks that driver to save its state and stop
    runs/ID/attempts/N/alive     that driver's last sign of life
    runs/ID/progress.json        how far the stages of the newest attempt are
    runs/ID/journal/…            what happened
    runs/ID/checkpoint/…         the state of a training that is not done
    runs/ID/search/…             the trials of a search, see `pipelines.search.records`
    runs/ID/record.json          what the run has come to, written at its end
    index/TIME-ID                one empty object per run; TIME counts down, so that a listing starts with the newest
"""

from __future__ import annotations

import json
import secrets
import time
from dataclasses import dataclass
from typing import Any

from pipelines.codec import canonical, dump, load
from pipelines.data.dataset import Dataset, load_dataset
from pipelines.errors import NotFoundError, ObjectNotFoundError, UsageError
from pipelines.plan import Compiled, Plan
from pipelines.run.journal import read_journal, read_progress
from pipelines.run.record import RunRecord, fold
from pipelines.storage import ObjectStore, create_once, join_url, open_store
from pipelines.training.gang.chaos import ChaosSpec

HEARTBEAT_S = 2.0
"""How often a driver says that it is alive."""

LOST_AFTER_S = 60.0
"""A driver that has said nothing for so long is taken for lost where its process can't be seen. Clocks of machines may
differ by less than this."""

START_LIMIT_S = 120.0
"""A driver whose process can't be seen, and that has said nothing so long after it was claimed, never will."""

_INDEX_TOP = 10**13 - 1


@dataclass(frozen=True)
class Attempt:
    """One driver's turn at a run; `write_id` tells whose claim it is when a reply was lost."""

    number: int
    started: float
    write_id: str
    schema: int = 1


@dataclass(frozen=True)
class Sign:
    """A driver's sign of life: when, and whether it was the last."""

    time: float
    ended: bool
    schema: int = 1


class RunFolder:
    """Reads and writes the parts of one run's folder."""

    def __init__(self, store: ObjectStore, run_id: str) -> None:
        self.store, self.run_id = store, run_id
        self.path = f"runs/{run_id}"

    @classmethod
    def create(cls, runs: str, compiled: Compiled, code: bytes | None, chaos: ChaosSpec | None = None) -> RunFolder:
        """Make a new run's folder; the plan is written last, and without it there is no run."""
        store = open_store(runs)
        folder = cls(store, new_run_id(compiled.plan.pipeline))
        compiled.manifest.save(store, f"{folder.path}/manifest.arrow")
        if code is not None:
            store.create(f"{folder.path}/code.zip", code)
        if chaos is not None:
            store.create(f"{folder.path}/chaos.json", dump(chaos))
        store.create(f"{folder.path}/plan.json", dump(compiled.plan))
        store.create(f"index/{_INDEX_TOP - int(time.time() * 1000):013d}-{folder.run_id}", b"")
        return folder

    @classmethod
    def open(cls, runs: str, run_id: str) -> RunFolder:
        """Open a run's folder.

        Raises
        ------
        NotFoundError
            There is no such run; the nearest are named.
        """
        folder = cls(open_store(runs), run_id)
        if not run_id or "/" in run_id or folder.store.head(f"{folder.path}/plan.json") is None:
            raise NotFoundError.among("run", run_id, list_run_ids(folder.store, limit=1000), on=runs)
        return folder

    @property
    def checkpoint_url(self) -> str:
        """Where the training saves its state."""
        return join_url(self.store.url, f"{self.path}/checkpoint")

    @property
    def search_folder(self) -> str:
        """Where a search keeps its trials in the store."""
        return f"{self.path}/search"

    @property
    def scratch_url(self) -> str:
        """Where the evaluation may spill."""
        return join_url(self.store.url, f"{self.path}/scratch")

    def plan(self) -> Plan:
        """Read the frozen plan."""
        return load(Plan, self.store.get(f"{self.path}/plan.json"))

    def manifest(self) -> Dataset:
        """Read the dataset as it was planned."""
        return load_dataset(self.store, f"{self.path}/manifest.arrow")

    def code(self) -> bytes | None:
        """Read the user's code archive, if there is one."""
        try:
            return self.store.get(f"{self.path}/code.zip")
        except ObjectNotFoundError:
            return None

    def chaos(self) -> ChaosSpec | None:
        """Read which faults are to be injected, if any."""
        try:
            return load(ChaosSpec, self.store.get(f"{self.path}/chaos.json"))
        except ObjectNotFoundError:
            return None

    # --- attempts -----------------------------------------------------------------------------------------------

    def attempt(self) -> Attempt | None:
        """The newest attempt."""
        numbers = [int(info.key.split("/")[3]) for info in self.store.list(f"{self.path}/attempts")]
        if not numbers:
            return None
        return load(Attempt, self.store.get(f"{self.path}/attempts/{max(numbers):06d}/claim.json"))

    def claim(self) -> Attempt:
        """Open the run's next attempt, once the one before is over; its driver is submitted by whoever claimed it.

        Raises
        ------
        UsageError
            Somebody else claimed the same attempt first.
        """
        last = self.attempt()
        attempt = Attempt(last.number + 1 if last else 1, time.time(), secrets.token_hex(8))
        if not create_once(self.store, f"{self.path}/attempts/{attempt.number:06d}/claim.json", dump(attempt)):
            raise UsageError("somebody else has just taken this run", on=self.run_id, remedy="Attach to it.")
        return attempt

    def save_job(self, attempt: Attempt, job: dict[str, Any]) -> None:
        """Note which job drives an attempt: a `cluster.JobHandle` in plain values."""
        self.store.create(f"{self.path}/attempts/{attempt.number:06d}/job.json", canonical(job))

    def job(self, attempt: Attempt) -> dict[str, Any] | None:
        """The job that drives an attempt, if it was submitted."""
        try:
            job: dict[str, Any] = json.loads(self.store.get(f"{self.path}/attempts/{attempt.number:06d}/job.json"))
        except ObjectNotFoundError:
            return None
        return job

    def heartbeat(self, attempt: Attempt, *, ended: bool = False) -> None:
        """Say that this attempt's driver is alive, or that it has ended."""
        self.store.replace(f"{self.path}/attempts/{attempt.number:06d}/alive", dump(Sign(time.time(), ended)))

    def silent(self, attempt: Attempt) -> bool:
        """Whether an attempt's driver has ended, or has given no sign of life for too long."""
        try:
            sign = load(Sign, self.store.get(f"{self.path}/attempts/{attempt.number:06d}/alive"))
        except ObjectNotFoundError:
            return time.time() - attempt.started > START_LIMIT_S
        return sign.ended or time.time() - sign.time > LOST_AFTER_S

    def ask_to_stop(self, attempt: Attempt) -> None:
        """Ask the driver of an attempt to save its state and stop."""
        self.store.replace(f"{self.path}/attempts/{attempt.number:06d}/stop", b"")

    def asked_to_stop(self, attempt: Attempt) -> bool:
        """Whether somebody asked this attempt's driver to stop, or has begun a newer attempt."""
        newest = self.attempt()
        asked = self.store.head(f"{self.path}/attempts/{attempt.number:06d}/stop") is not None
        return asked or (newest is not None and newest.number > attempt.number)

    def drop_checkpoints(self) -> None:
        """Remove the state of a training whose result is in the cache."""
        for name in ("checkpoint", "search/checkpoint", "search/models"):
            self._drop(name)

    def drop_champions(self) -> None:
        """Remove the copies of champions that were evaluated."""
        self._drop("champion")

    def _drop(self, name: str) -> None:
        for info in list(self.store.list(f"{self.path}/{name}")):
            self.store.delete(info.key)

    # --- what the run has come to -----------------------------------------------------------------------------------

    def record(self) -> RunRecord:
        """Fold the journal, and the progress of the newest attempt, into a record."""
        record = RunRecord(self.run_id, self.plan().pipeline)
        record = fold(record, (event for _, event in read_journal(self.store, self.path)))
        return fold(record, read_progress(self.store, self.path, record.attempts))

    def save_record(self, record: RunRecord) -> None:
        """Write the record at the end of an attempt, so that lists need not read journals."""
        self.store.replace(f"{self.path}/record.json", dump(record))

    def saved_record(self) -> RunRecord | None:
        """Read the record that the last ended attempt wrote."""
        try:
            return load(RunRecord, self.store.get(f"{self.path}/record.json"))
        except ObjectNotFoundError:
            return None


def new_run_id(pipeline: str) -> str:
    """Name a run: its pipeline, when it was made (UTC), and four random hexadecimal digits."""
    return f"{pipeline}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(2)}"


def list_run_ids(store: ObjectStore, limit: int | None = None) -> list[str]:
    """List the runs on a store, newest first."""
    return [info.key.split("-", 1)[1] for info in store.list("index", limit=limit)]
