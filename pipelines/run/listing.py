"""The runs on a store, newest first."""

from __future__ import annotations

from pipelines.run.folder import RunFolder, list_run_ids
from pipelines.run.handle import RunHandle
from pipelines.run.record import RunRecord
from pipelines.spec import find_places
from pipelines.storage import open_store


def list_runs(runs: str | None = None, *, limit: int = 20) -> list[RunRecord]:
    """List the newest runs of a store.

    A run whose last attempt wrote its record is read from that; only runs under way cost a look at their journal.
    """
    url = runs or find_places().runs
    store = open_store(url)
    return [_record(url, RunFolder(store, run_id)) for run_id in list_run_ids(store, limit)]


def _record(url: str, folder: RunFolder) -> RunRecord:
    saved, attempt = folder.saved_record(), folder.attempt()
    if saved is not None and attempt is not None and saved.attempts >= attempt.number:
        return saved
    return RunHandle(url, folder.run_id).record()
