"""Submitting a run's driver: a detached job, wherever the cluster of the spec is."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from cluster import JobSpec, submit
from pipelines.codec import to_plain
from pipelines.run.folder import RunFolder
from pipelines.spec import load_spec


def submit_attempt(folder: RunFolder) -> None:
    """Claim a run's next attempt and start its driver; returns when the process runs.

    Raises
    ------
    UsageError
        A driver is at work on it already.
    cluster.JobError
        The process could not be started.
    """
    spec = load_spec(dict(folder.plan().spec))
    attempt = folder.claim()
    job = JobSpec(
        argv=(sys.executable, "-m", "pipelines.run.driver", folder.store.url, folder.run_id, str(attempt.number)),
        name=folder.run_id,
        folder=str(Path.home() / ".mutirao" / "jobs"),
        cwd=os.getcwd(),
        backend=spec.cluster.backend,
    )
    try:
        folder.save_job(attempt, to_plain(submit(job)))
    except BaseException:
        # nobody will follow it: a driver that may have started leaves, and the next attempt need not wait for it
        folder.ask_to_stop(attempt)
        folder.heartbeat(attempt, ended=True)
        raise
