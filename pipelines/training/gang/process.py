"""Start, measure and end the process tree of a rank."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

_ONE_THREAD = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)
_ALLOCATOR = {"MALLOC_TRIM_THRESHOLD_": str(32 << 20), "MALLOC_MMAP_THRESHOLD_": str(1 << 20)}
_DASKS_TRIM_THRESHOLD = "65536"
"""What Dask sets for its workers: glibc gives every freed page back at once, and ranks would fault them in again."""
_TURN_S = 0.1
"""How long a slowed process's turns last, running and stopped together."""
_PR_SET_PDEATHSIG = 1
_MARK = "MUTIRAO_RANK"
"""Environment variable by which all processes of a rank are found, also those that it has orphaned."""


@dataclass(frozen=True)
class Vitals:
    """What the system says about a rank's process tree.

    `state` is psutil's word for the root process (``running``, ``sleeping``, ``stopped``, …); `cpu_s` is the time that
    the tree has computed; `rss_bytes` what it holds in memory; `turns` how often the root has given its processor away,
    which it does not while it is stopped.
    """

    state: str
    cpu_s: float
    rss_bytes: int
    turns: int


def environment(base: Mapping[str, str]) -> dict[str, str]:
    """Build a rank's environment: BLAS at one thread before NumPy loads, and the code that the worker can import."""
    here = Path(__file__).resolve().parents[3]
    code = [base.get("MUTIRAO_CODE_PATH", ""), base.get("PYTHONPATH", ""), str(here)]
    trim = base.get("MALLOC_TRIM_THRESHOLD_", _DASKS_TRIM_THRESHOLD)
    return {
        **base,
        **(_ALLOCATOR if trim == _DASKS_TRIM_THRESHOLD else {}),
        **dict.fromkeys(_ONE_THREAD, "1"),
        "PYTHONPATH": os.pathsep.join(part for part in code if part),
        # Arrow's own pool keeps what it has freed; a rank's memory is counted by the mebibyte.
        "ARROW_DEFAULT_MEMORY_POOL": base.get("ARROW_DEFAULT_MEMORY_POOL", "system"),
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
    }


def start(module: str, folder: Path, mark: str) -> subprocess.Popen[bytes]:
    """Start ``python -m module`` in a session of its own, with its output joined into one pipe.

    `mark` is a text of its own, by which `kill_tree` finds everything that it has started.
    """
    return subprocess.Popen(
        [sys.executable, "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment({**os.environ, "TMPDIR": str(folder), _MARK: mark}),
        start_new_session=True,
    )


def die_with_parent(parent: int) -> None:
    """Make the kernel kill this process when the thread that started it ends (Linux; elsewhere the pipe tells)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before we asked
        end_own_tree()


def end_own_tree() -> None:
    """Kill this process and what it has started, at once."""
    os.killpg(os.getpgid(0), signal.SIGKILL)


def measure(pid: int) -> Vitals | None:
    """Look at a process and all its descendants; None when it is gone."""
    try:
        root = psutil.Process(pid)
        state = str(root.status())
        cpu, rss = _cpu_and_rss(root)
        turns = sum(root.num_ctx_switches())
        descendants = _descendants(root)
    except (psutil.Error, OSError):
        return None
    for each in descendants:
        try:
            more_cpu, more_rss = _cpu_and_rss(psutil.Process(each))
        except psutil.Error:
            continue
        cpu, rss = cpu + more_cpu, rss + more_rss
    return Vitals(state, cpu, rss, turns)


def _descendants(root: psutil.Process) -> list[int]:
    """Process ids below a process; psutil goes through all processes of the machine for them, which takes its time."""
    if not os.path.exists(f"/proc/{root.pid}/task/{root.pid}/children"):
        return [child.pid for child in root.children(recursive=True)]
    found, open_ends = [], [root.pid]
    while open_ends:
        children = _children(open_ends.pop())
        found += children
        open_ends += children
    return found


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):  # it ends while we look
        for task in os.listdir(f"/proc/{pid}/task"):
            found += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    return found


def _cpu_and_rss(process: psutil.Process) -> tuple[float, int]:
    times = process.cpu_times()
    return times.user + times.system, process.memory_info().rss


def own_rss_bytes() -> int:
    """Resident bytes of this process."""
    return int(psutil.Process().memory_info().rss)


def give_back_memory() -> None:
    """Return to the system what this process has freed: Arrow's pool, the C library's free lists."""
    arrow = sys.modules.get("pyarrow")
    if arrow is not None:
        arrow.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def kill_tree(process: subprocess.Popen[bytes], mark: str) -> None:
    """Kill a process started by `start`, and every descendant, also orphans in sessions of their own."""
    with suppress(ProcessLookupError, PermissionError):  # gone already
        os.killpg(process.pid, signal.SIGKILL)
    for _ in range(3):  # what was started while we looked is found by looking again
        family = _marked(mark)
        for each in family:
            with suppress(psutil.Error):
                each.kill()
        if not family:
            break
    process.wait()


def slow(process: subprocess.Popen[bytes], factor: float, over: threading.Event) -> None:
    """Let a process run for a part of the time only, until it ends or `over` is set: it gets `factor` times slower."""
    while process.poll() is None and not over.wait(_TURN_S / factor):
        process.send_signal(signal.SIGSTOP)
        over.wait(_TURN_S * (1 - 1 / factor))
        process.send_signal(signal.SIGCONT)


def _marked(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(_MARK) == mark:
                found.append(process)
        except (psutil.Error, OSError):
            continue  # gone, or somebody else's
    return found


def describe_exit(code: int) -> str:
    """Say how a process ended, from ``Popen.returncode``."""
    if code >= 0:
        return f"ended with exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    hint = " (by hand, by the cluster, or by the kernel for want of memory)" if -code == signal.SIGKILL else ""
    return f"was killed by {name}{hint}"
