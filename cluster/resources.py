"""What this machine, or the container around this process, has: processors, memory, disk.

Parsing is separate from reading: `cgroup_limits` takes the text of the files and gives values.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import psutil

_NO_LIMIT = 2**60  # version 1 writes "no limit" as the largest multiple of the page size below 2**63

Read = Callable[[str], str | None]
"""Gives the text of a file under its absolute path, or None where there is none."""


@dataclass(frozen=True)
class CgroupLimits:
    """Limits of a control group and all groups around it; None where there is no limit."""

    cpus: float | None = None
    memory_bytes: int | None = None
    memory_used_bytes: int | None = None


@dataclass(frozen=True)
class Machine:
    """What processes started from here can use, at the moment of looking.

    ``cpus`` is the smaller of the processors this process may run on and the container's quota (it may be a fraction).
    ``memory_bytes`` is the smaller of physical memory and the container's limit, ``memory_free_bytes`` what of it
    could be taken now without swapping.
    """

    hostname: str
    system: str
    cpus: float
    memory_bytes: int
    memory_free_bytes: int


def machine() -> Machine:
    """Look at the machine. Reads a few small files, never blocks on the network."""
    limits = cgroup_limits(_read) if sys.platform == "linux" else CgroupLimits()
    memory = psutil.virtual_memory()
    total = min(memory.total, limits.memory_bytes or memory.total)
    free = memory.available
    if limits.memory_bytes is not None and limits.memory_used_bytes is not None:
        free = min(free, max(0, limits.memory_bytes - limits.memory_used_bytes))
    cpus = float(_processors())
    return Machine(
        hostname=platform.node(),
        system=f"{platform.system()} {platform.machine()}",
        cpus=min(cpus, limits.cpus or cpus),
        memory_bytes=total,
        memory_free_bytes=free,
    )


def disk_free_bytes(folder: Path) -> int:
    """Free bytes for this user on the disk of `folder`, or of its nearest parent that exists."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def cgroup_limits(read: Read) -> CgroupLimits:
    """Find the tightest limits of the control groups, version 1 or 2, that this process is in.

    Limits bind at every level, so the way up to the root is followed. In a container the path that the kernel reports
    may not exist below the mount point; then the mount point itself is the container's group.
    """
    groups = parse_proc_cgroup(read("/proc/self/cgroup") or "")
    found = [_v2_limits(read, folder) for folder in _levels("/sys/fs/cgroup", groups.get(""))]
    found += [_v1_memory(read, folder) for folder in _levels("/sys/fs/cgroup/memory", groups.get("memory"))]
    found += [_v1_cpu(read, folder) for folder in _levels("/sys/fs/cgroup/cpu", groups.get("cpu"))]
    tightest = min((each for each in found if each.memory_bytes is not None), key=_memory_limit, default=CgroupLimits())
    return CgroupLimits(
        cpus=min((each.cpus for each in found if each.cpus is not None), default=None),
        memory_bytes=tightest.memory_bytes,
        memory_used_bytes=tightest.memory_used_bytes,
    )


def parse_proc_cgroup(text: str) -> dict[str, str]:
    """Parse ``/proc/self/cgroup`` into controller → path; version 2 is under the empty name."""
    groups: dict[str, str] = {}
    for line in text.splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3:
            groups.update(dict.fromkeys(parts[1].split(","), parts[2]))
    return groups


def parse_cpu_max(text: str) -> float | None:
    """Parse version 2's ``cpu.max`` ("max 100000" or "150000 100000") into processors."""
    quota, _, period = text.strip().partition(" ")
    return None if quota == "max" else _quotient(quota, period)


def parse_memory(text: str | None) -> int | None:
    """Parse a limit in bytes; "max" and version 1's huge number mean none."""
    value = (text or "").strip()
    return int(value) if value.isascii() and value.isdigit() and int(value) < _NO_LIMIT else None


def parse_inactive_file(text: str | None) -> int:
    """Bytes of page cache that the kernel gives back first, from ``memory.stat`` of either version."""
    stat = dict(line.split(" ", 1) for line in (text or "").splitlines() if " " in line)
    return parse_memory(stat.get("total_inactive_file", stat.get("inactive_file"))) or 0


def _levels(root: str, path: str | None) -> Iterator[str]:
    if path is None:
        return
    group = PurePosixPath(path)
    for level in (group, *group.parents):
        yield root + str(level).rstrip("/")


def _v2_limits(read: Read, folder: str) -> CgroupLimits:
    cpu = read(f"{folder}/cpu.max")
    limit, used = parse_memory(read(f"{folder}/memory.max")), parse_memory(read(f"{folder}/memory.current"))
    return CgroupLimits(
        cpus=parse_cpu_max(cpu) if cpu else None,
        memory_bytes=limit,
        memory_used_bytes=_used(used, read(f"{folder}/memory.stat")),
    )


def _v1_memory(read: Read, folder: str) -> CgroupLimits:
    limit = parse_memory(read(f"{folder}/memory.limit_in_bytes"))
    used = parse_memory(read(f"{folder}/memory.usage_in_bytes"))
    return CgroupLimits(memory_bytes=limit, memory_used_bytes=_used(used, read(f"{folder}/memory.stat")))


def _v1_cpu(read: Read, folder: str) -> CgroupLimits:
    quota, period = read(f"{folder}/cpu.cfs_quota_us"), read(f"{folder}/cpu.cfs_period_us")
    return CgroupLimits(cpus=_quotient(quota, period))


def _used(current: int | None, stat: str | None) -> int | None:
    return None if current is None else max(0, current - parse_inactive_file(stat))


def _quotient(quota: str | None, period: str | None) -> float | None:
    try:
        value = float(quota or "") / float(period or "")
    except (ValueError, ZeroDivisionError):
        return None
    return value if value > 0 else None


def _memory_limit(limits: CgroupLimits) -> int:
    return limits.memory_bytes or 0


def _processors() -> int:
    affinity = getattr(os, "sched_getaffinity", None)  # Linux only
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text()
    except OSError:
        return None
