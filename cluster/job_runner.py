"""Keeps one detached job: starts it, passes SIGTERM on, writes down how it ended, leaves nothing of it behind.

Run as a script, ``python -I job_runner.py FOLDER``, where ``FOLDER/job.json`` says what to start. Only the standard
library is imported, so that it starts in tens of milliseconds in any environment. It writes, each complete or absent:

``started.json``  {"runner": pid, "child": pid} once the job's process runs, or {"error": text} when it can't be started
``exit.json``     {"code": exit code; minus the signal's number when a signal ended it, "cancelled": bool}

The runner leaves its parent (double fork, own session), so it outlives it and becomes nobody's zombie. The job's
process has a session of its own inside. On Linux the runner adopts whatever the job orphans (child subreaper) and kills
it when the job has ended, and the job's process dies with the runner (parent-death signal).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
SWEEP_LIMIT_S = 10.0


def main(folder: Path) -> None:
    """Run the job of `folder` to its end."""
    _detach()
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    cancelled = False
    child: subprocess.Popen[bytes] | None = None

    def pass_on(_number: int, _frame: FrameType | None) -> None:
        nonlocal cancelled
        cancelled = True
        if child is not None and child.poll() is None:
            child.send_signal(signal.SIGTERM)

    signal.signal(signal.SIGTERM, pass_on)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    job = json.loads((folder / "job.json").read_text())
    try:
        child = _start(job, folder)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        _write(folder / "started.json", {"error": str(error)})
        return
    _write(folder / "started.json", {"runner": os.getpid(), "child": child.pid})
    if cancelled:  # the signal came between the start and here
        child.send_signal(signal.SIGTERM)
    code = child.wait()
    _sweep(child.pid)
    _write(folder / "exit.json", {"code": code, "cancelled": cancelled})


def _detach() -> None:
    if os.fork():
        os._exit(0)
    os.setsid()


def _start(job: dict[str, object], folder: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, **dict(job["environment"])}  # type: ignore[call-overload]  # read from JSON: untyped
    with (folder / "log.txt").open("ab") as log:
        return subprocess.Popen(
            list(job["argv"]),  # type: ignore[call-overload]  # read from JSON: untyped
            cwd=str(job["cwd"]),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            # Safe here: this process has one thread.
            preexec_fn=lambda: _prctl(PR_SET_PDEATHSIG, signal.SIGKILL),
        )


def _sweep(child: int) -> None:
    """Kill what the job left: its process group, then what was orphaned to this process, until there is nothing."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    until = time.monotonic() + SWEEP_LIMIT_S
    while time.monotonic() < until:
        orphans = _children(os.getpid())
        if not orphans:
            return
        for pid in orphans:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.01)


def _children(parent: int) -> list[int]:
    """Pids whose parent is `parent`; empty where there is no /proc, or no child."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            if int(entry.read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(entry.parent.name))
    return found


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _write(path: Path, plain: dict[str, object]) -> None:
    draft = path.with_suffix(".draft")
    with draft.open("w") as file:
        json.dump(plain, file)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
