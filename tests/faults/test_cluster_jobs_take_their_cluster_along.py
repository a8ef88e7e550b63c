"""A detached job that owns a cluster: however it ends, its cluster ends with it, and what tasks started too."""

from __future__ import annotations

import os
import signal
import sys
import time
import uuid
from pathlib import Path

import psutil
import pytest

from cluster import JobHandle, JobSpec, JobStatus, cancel, logs, status, submit

pytestmark = pytest.mark.slow

LIMIT_S = 90.0

DRIVER = """
import subprocess, sys, time
from cluster import ClusterSpec, connect

def spawn():
    return subprocess.Popen(["sleep", "1000"], start_new_session=True).pid

if __name__ == "__main__":
    spec = ClusterSpec(workers=1, worker={"memory": "512 MiB"}, dashboard=None, scratch=sys.argv[1])
    with connect(spec) as cluster:
        cluster.client.submit(spawn).result()
        print("ready", flush=True)
        time.sleep(1000)
"""


def running(mark: str) -> list[int]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("MUTIRAO_TEST_MARK") == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


@pytest.fixture
def job(tmp_path: Path) -> tuple[JobHandle, str]:
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)
    mark = uuid.uuid4().hex
    handle = submit(
        JobSpec(
            argv=(sys.executable, str(script), str(tmp_path / "scratch")),
            name="driver",
            folder=str(tmp_path / "jobs"),
            environment={"MUTIRAO_TEST_MARK": mark},
        )
    )
    deadline = time.monotonic() + LIMIT_S
    while "ready" not in logs(handle).text:
        assert time.monotonic() < deadline, logs(handle).text
        assert not status(handle).ended, logs(handle).text
        time.sleep(0.1)
    assert len(running(mark)) >= 3
    return handle, mark


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        ("cancel", JobStatus("cancelled", 128 + signal.SIGTERM)),
        ("kill the driver", JobStatus("failed", -signal.SIGKILL)),
        ("kill the runner", JobStatus("lost")),
    ],
)
def test_nothing_of_the_job_is_left(job: tuple[JobHandle, str], tmp_path: Path, end: str, expected: JobStatus) -> None:
    handle, mark = job
    if end == "cancel":
        assert cancel(handle, grace_s=LIMIT_S) == expected
        assert not list((tmp_path / "scratch").glob("*/workers"))
    else:
        os.kill(handle.child_pid if end == "kill the driver" else handle.pid, signal.SIGKILL)
    deadline = time.monotonic() + LIMIT_S
    # Without its runner nobody sweeps up what tasks left in sessions of their own: workers end, that may stay.
    spared = 1 if end == "kill the runner" else 0
    while len(running(mark)) > spared or not status(handle).ended:
        assert time.monotonic() < deadline, [psutil.Process(pid).cmdline() for pid in running(mark)]
        time.sleep(0.1)
    assert status(handle) == expected
    for pid in running(mark):
        os.kill(pid, signal.SIGKILL)
