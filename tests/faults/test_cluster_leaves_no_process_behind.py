"""However the process that owns a local cluster ends, none of the cluster's processes outlives it for long.

Each case runs an owner as a real process, marked by an environment variable that all its descendants inherit, ends it
in some way, and looks through every process of the machine for the mark.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.slow

LIMIT_S = 60.0  # generous: what takes a second alone takes longer on a loaded machine

OWNER = """
import os, re, signal, sys, time
from cluster import ClusterSpec, connect

def hold_the_interpreter_lock():
    re.match(r"(a+)+$", "a" * 60 + "b")  # exponential, in C, without ever letting go

def sleep():
    time.sleep(1000)

def spawn():
    import subprocess
    return subprocess.Popen(["sleep", "1000"]).pid

if __name__ == "__main__":
    case, scratch = sys.argv[1:]
    spec = ClusterSpec(workers=2, worker={"memory": "512 MiB"}, dashboard=None, scratch=scratch)
    if case == "starting":
        print("ready", flush=True)
    with connect(spec) as cluster:
        client = cluster.client
        busy = []
        if case == "stuck":
            busy = [client.submit(hold_the_interpreter_lock, pure=False) for _ in range(2)]
        elif case == "busy":
            busy = [client.submit(sleep, pure=False) for _ in range(2)]
        elif case == "stopped":
            os.kill(client.submit(os.getpid).result(), signal.SIGSTOP)
        elif case == "children":
            client.submit(spawn).result()
        time.sleep(0.5)
        print("ready", flush=True)
        if case == "raises":
            raise RuntimeError("the block failed")
        if case != "returns" and case != "children":
            time.sleep(1000)
"""


@dataclass
class Owner:
    """A running owner and its mark."""

    process: subprocess.Popen[str]
    mark: str
    scratch: Path

    def await_ready(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def running(self) -> list[psutil.Process]:
        """Processes with the mark, zombies left out (they wait for their parent and run nothing)."""
        found = []
        for process in psutil.process_iter():
            try:
                marked = process.environ().get("MUTIRAO_TEST_MARK") == self.mark
                if marked and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def await_nothing_left(self) -> None:
        deadline = time.monotonic() + LIMIT_S
        while self.running():
            assert time.monotonic() < deadline, f"still running: {[p.cmdline() for p in self.running()]}"
            time.sleep(0.1)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], Owner]]:
    owners: list[Owner] = []
    script = tmp_path / "owner.py"
    script.write_text(OWNER)

    def run(case: str) -> Owner:
        mark = uuid.uuid4().hex
        process = subprocess.Popen(
            [sys.executable, str(script), case, str(tmp_path / "scratch")],
            env={**os.environ, "MUTIRAO_TEST_MARK": mark},
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        owners.append(Owner(process, mark, tmp_path / "scratch"))
        return owners[-1]

    yield run
    for owner in owners:
        for process in owner.running():
            process.kill()
        owner.process.wait()
        assert owner.process.stdout is not None
        owner.process.stdout.close()


@pytest.mark.parametrize("case", ["idle", "busy", "stuck", "stopped", "starting"])
def test_a_killed_owner_takes_its_workers_along(start: Callable[[str], Owner], case: str) -> None:
    owner = start(case)
    owner.await_ready()
    if case == "starting":
        time.sleep(1.5)
    else:
        assert len(owner.running()) >= 3
    owner.process.kill()
    owner.await_nothing_left()


@pytest.mark.parametrize("case", ["busy", "stuck", "stopped"])
def test_sigterm_closes_the_cluster_and_ends_with_its_exit_code(start: Callable[[str], Owner], case: str) -> None:
    owner = start(case)
    owner.await_ready()
    owner.process.send_signal(signal.SIGTERM)
    assert owner.process.wait(LIMIT_S) == 128 + signal.SIGTERM
    owner.await_nothing_left()


@pytest.mark.parametrize("case", ["busy", "starting"])
def test_ctrl_c_in_the_terminal_closes_the_cluster(start: Callable[[str], Owner], case: str) -> None:
    """The terminal sends SIGINT to the whole process group, workers included."""
    owner = start(case)
    owner.await_ready()
    if case == "starting":
        time.sleep(1.5)
    os.killpg(owner.process.pid, signal.SIGINT)
    assert owner.process.wait(LIMIT_S) != 0
    owner.await_nothing_left()


@pytest.mark.parametrize(("case", "code"), [("returns", 0), ("raises", 1), ("children", 0)])
def test_leaving_the_block_stops_everything_also_what_tasks_started(
    start: Callable[[str], Owner], case: str, code: int
) -> None:
    owner = start(case)
    owner.await_ready()
    assert owner.process.wait(LIMIT_S) == code
    owner.await_nothing_left()
    kept = {path.name for path in owner.scratch.glob("*/*")}
    assert kept == ({"logs", "owner.lock"} if case == "raises" else set())
