"""Detached jobs: submit, status, logs, wait, cancel.

A job is an argv. Locally it is a child process that outlives whoever submitted it (see `cluster.job_runner`),
identified by its number, boot and start, so that a number that was given to somebody else is never signalled.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Literal

import psutil

from cluster.errors import ClusterDeadlineError, ClusterUsageError, JobError
from cluster.process_identity import identity, is_alive

State = Literal["running", "succeeded", "failed", "cancelled", "lost"]

START_LIMIT_S = 30.0
KILL_LIMIT_S = 15.0
_POLL_S = 0.05


@dataclass(frozen=True)
class JobResources:
    """What a job asks its place for; a local job takes what the machine has."""

    memory_bytes: int | None = None
    cpus: float | None = None
    gpus: int = 0


@dataclass(frozen=True)
class JobSpec:
    """What to run: an argv, and what it needs around it.

    ``folder`` is where the job's own new folder is made, which holds its log and exit code and is its working directory
    unless ``cwd`` is given. ``environment`` is added to that of the submitter. ``files`` are copied into the job's
    folder: name there → path here.
    """

    argv: tuple[str, ...]
    name: str
    folder: str
    cwd: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    resources: JobResources = JobResources()
    backend: str = "local"


@dataclass(frozen=True)
class JobHandle:
    """Where a job is. Goes through JSON; any process on the same host can use it."""

    backend: str
    name: str
    host: str
    pid: int
    identity: str
    child_pid: int
    child_identity: str
    folder: str
    log_path: str


@dataclass(frozen=True)
class JobStatus:
    """How a job is.

    ``exit_code`` is minus the signal's number when a signal ended it, and None while it runs or when it is lost: it
    ended without anybody to write down how (the machine went down, its runner was killed).
    """

    state: State
    exit_code: int | None = None

    @property
    def ended(self) -> bool:
        return self.state != "running"


@dataclass(frozen=True)
class LogChunk:
    """A piece of a log, and where the next one starts."""

    text: str
    next_offset: int


def submit(job: JobSpec) -> JobHandle:
    """Start a job and return once its process runs; it goes on when the caller ends.

    Raises
    ------
    ClusterUsageError
        The spec can't be used: no such backend, an empty argv, a file that is not there.
    JobError
        The job's process could not be started; the reason is in the message.
    """
    _check(job)
    folder = _prepare(job)
    runner = [sys.executable, "-I", str(Path(__file__).with_name("job_runner.py")), str(folder)]
    # Returns when the runner has detached itself. Its own complaints go into the job's log.
    with (folder / "log.txt").open("ab") as log:
        try:
            subprocess.run(
                runner,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                check=True,
                timeout=START_LIMIT_S,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise JobError(f"the job's runner can't be started ({error})", on=job.name, found=_said(folder)) from error
    started = _await_start(folder, job)
    log_path = str(folder / "log.txt")
    # A job that has ended already has no identity; no process matches an empty one.
    pid, child = started["runner"], started["child"]
    return JobHandle(
        backend=job.backend,
        name=job.name,
        host=platform.node(),
        pid=pid,
        identity=identity(pid) or "",
        child_pid=child,
        child_identity=identity(child) or "",
        folder=str(folder),
        log_path=log_path,
    )


def status(handle: JobHandle) -> JobStatus:
    """Tell how a job is, without waiting. Raises `JobError` on another host than the job's."""
    _same_host(handle)
    ended = _read(Path(handle.folder) / "exit.json")
    if ended is None and (is_alive(handle.pid, handle.identity) or is_alive(handle.child_pid, handle.child_identity)):
        return JobStatus("running")
    # The runner may have written the file and ended between the two looks.
    ended = ended or _read(Path(handle.folder) / "exit.json")
    if ended is None:
        return JobStatus("lost")
    code = int(ended["code"])
    if code == 0:
        return JobStatus("succeeded", 0)
    return JobStatus("cancelled" if ended["cancelled"] else "failed", code)


def logs(handle: JobHandle, *, offset: int = 0, max_bytes: int = 2**20) -> LogChunk:
    """Read at most `max_bytes` of the job's output from a byte offset on. A negative offset counts from the end."""
    _same_host(handle)
    try:
        with Path(handle.log_path).open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            start = file.seek(max(0, size + offset) if offset < 0 else min(offset, size))
            data = file.read(max_bytes)
    except OSError as error:
        raise JobError(f"the log can't be read ({error.strerror})", on=handle.log_path) from error
    return LogChunk(data.decode(errors="replace"), start + len(data))


def wait(handle: JobHandle, timeout_s: float) -> JobStatus:
    """Wait until the job has ended. Raises `ClusterDeadlineError` when it has not after `timeout_s`."""
    if not _until(lambda: status(handle).ended, timeout_s):
        raise ClusterDeadlineError("the job still runs", on=handle.name, expected=f"its end within {timeout_s:g} s")
    return status(handle)


def cancel(handle: JobHandle, *, grace_s: float = 30.0) -> JobStatus:
    """Stop a job: SIGTERM to its process alone, time to close what it started, then SIGKILL to all that it started.

    Returns when nothing of it runs any more, at the latest about `KILL_LIMIT_S` after the grace. A job that has
    ended is left alone.

    Raises
    ------
    JobError
        Something of the job could not be killed.
    """
    if status(handle).ended and not is_alive(handle.child_pid, handle.child_identity):
        return status(handle)
    tree = _tree(handle)
    _signal_runner(handle)
    if not _until(lambda: status(handle).ended, grace_s):
        tree |= _tree(handle)
        _kill(tree - _processes(handle.pid, handle.identity))  # the runner stays, to write down how it ended
        _until(lambda: status(handle).ended, KILL_LIMIT_S / 2)
    _kill(tree)
    if not _until(lambda: not any(process.is_running() and not _zombie(process) for process in tree), KILL_LIMIT_S / 2):
        left = ", ".join(str(process.pid) for process in tree if process.is_running())
        raise JobError("processes of the job can't be killed", on=handle.name, found=f"still running: {left}")
    return status(handle)


def _check(job: JobSpec) -> None:
    if job.backend != "local":
        raise ClusterUsageError(f"there is no place {job.backend!r} for jobs here; there is: local", on=job.name)
    if not job.argv:
        raise ClusterUsageError("the argv is empty", on=job.name)
    if not job.name or "/" in job.name or job.name.startswith("."):
        raise ClusterUsageError("a job's name must do as the name of a folder", on="name", found=repr(job.name))
    for name, source in job.files.items():
        if not Path(source).is_file():
            raise ClusterUsageError("a file of the job is not there", on=source)
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise ClusterUsageError("a file of the job would lie outside of its folder", on=name)


def _prepare(job: JobSpec) -> Path:
    try:
        base = Path(job.folder).expanduser().absolute()
        base.mkdir(parents=True, exist_ok=True)
        folder = Path(mkdtemp(prefix=f"{job.name}-", dir=base))
        for name, source in job.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, folder / name)
        plain = {"argv": list(job.argv), "environment": dict(job.environment), "cwd": job.cwd or str(folder)}
        (folder / "job.json").write_text(json.dumps(plain))
    except OSError as error:
        raise JobError(
            f"the job's folder can't be made ({error.strerror})",
            on=job.folder,
            remedy="Choose a folder on a disk with space.",
        ) from error
    return folder


def _await_start(folder: Path, job: JobSpec) -> dict[str, Any]:
    _until(lambda: (folder / "started.json").exists(), START_LIMIT_S)
    started = _read(folder / "started.json")
    if started is None:
        raise JobError(f"the job did not start within {START_LIMIT_S:g} s", on=job.name, found=_said(folder))
    if "error" in started:
        raise JobError(f"the job's program can't be started ({started['error']})", on=job.name)
    return started


def _said(folder: Path) -> str:
    return (folder / "log.txt").read_text(errors="replace")[-500:] or "an empty log"


def _same_host(handle: JobHandle) -> None:
    if handle.host != platform.node():
        raise JobError(
            "a local job can only be seen on its own host", on=handle.name, expected=handle.host, found=platform.node()
        )


def _signal_runner(handle: JobHandle) -> None:
    for process in _processes(handle.pid, handle.identity):
        process.send_signal(signal.SIGTERM)


def _tree(handle: JobHandle) -> set[psutil.Process]:
    """Everything of the job that runs now; each found process knows its own start and is never mistaken later."""
    roots = _processes(handle.pid, handle.identity) | _processes(handle.child_pid, handle.child_identity)
    below: set[psutil.Process] = set()
    for root in roots:
        try:
            below |= set(root.children(recursive=True))
        except psutil.Error:
            continue
    return roots | below


def _processes(pid: int, expected: str) -> set[psutil.Process]:
    """The process in a set, or an empty set when it is gone."""
    try:
        process = psutil.Process(pid)
    except psutil.Error:
        return set()
    return {process} if is_alive(pid, expected) else set()


def _kill(processes: set[psutil.Process]) -> None:
    for process in processes:
        try:
            process.kill()
        except psutil.Error:
            continue


def _zombie(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return True


def _read(path: Path) -> dict[str, Any] | None:
    try:
        plain: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    return plain


def _until(condition: Callable[[], bool], timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_S)
    return True
