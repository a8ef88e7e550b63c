"""Who a process is beyond its number, which the system gives to others later."""

from __future__ import annotations

import platform
from pathlib import Path

import psutil

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def identity(pid: int) -> str | None:
    """Name what tells this process from any other that had or will have its number; None when it does not run.

    On Linux: the boot and the start in clock ticks since then, exact and independent of later changes of the clock.
    Elsewhere: the time of creation. A zombie does not run.
    """
    if platform.system() == "Linux":
        start = _linux_start(pid)
        return None if start is None else f"{_boot()}:{start}"
    return _portable(pid)


def is_alive(pid: int, expected: str) -> bool:
    """Whether the process that had this identity still runs."""
    return identity(pid) == expected


def parse_stat(text: str) -> tuple[str, int]:
    """State letter and start (clock ticks since boot) from ``/proc/<pid>/stat``.

    The name in it may hold spaces and brackets.
    """
    fields = text.rpartition(")")[2].split()
    return fields[0], int(fields[19])


def _linux_start(pid: int) -> int | None:
    try:
        state, start = parse_stat(Path(f"/proc/{pid}/stat").read_text())
    except (OSError, IndexError, ValueError):
        return None
    return None if state in "ZXx" else start


def _boot() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return "unknown-boot"


def _portable(pid: int) -> str | None:
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else f"created:{process.create_time():.2f}"
    except psutil.Error:
        return None
