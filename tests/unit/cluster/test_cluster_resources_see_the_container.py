"""Limits of control groups, versions 1 and 2, nested or not, are read from the text of their files."""

from __future__ import annotations

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.resources import (
    CgroupLimits,
    cgroup_limits,
    disk_free_bytes,
    machine,
    parse_cpu_max,
    parse_inactive_file,
    parse_memory,
    parse_proc_cgroup,
)

GIB = 2**30


def limits(files: dict[str, str]) -> CgroupLimits:
    return cgroup_limits(files.get)


def test_a_container_with_version_2_has_its_limits_at_the_mount_point() -> None:
    found = limits(
        {
            "/proc/self/cgroup": "0::/\n",
            "/sys/fs/cgroup/cpu.max": "150000 100000\n",
            "/sys/fs/cgroup/memory.max": f"{4 * GIB}\n",
            "/sys/fs/cgroup/memory.current": f"{3 * GIB}\n",
            "/sys/fs/cgroup/memory.stat": f"anon 5\ninactive_file {GIB}\nactive_file 7\n",
        }
    )
    assert found == CgroupLimits(cpus=1.5, memory_bytes=4 * GIB, memory_used_bytes=2 * GIB)


def test_the_tightest_level_of_nested_groups_binds() -> None:
    found = limits(
        {
            "/proc/self/cgroup": "0::/user.slice/job.scope\n",
            "/sys/fs/cgroup/user.slice/job.scope/memory.max": "max\n",
            "/sys/fs/cgroup/user.slice/job.scope/cpu.max": "400000 100000\n",
            "/sys/fs/cgroup/user.slice/memory.max": f"{2 * GIB}\n",
            "/sys/fs/cgroup/user.slice/memory.current": "1000\n",
            "/sys/fs/cgroup/user.slice/cpu.max": "max 100000\n",
        }
    )
    assert found == CgroupLimits(cpus=4.0, memory_bytes=2 * GIB, memory_used_bytes=1000)


def test_version_1_under_a_path_that_only_the_host_sees() -> None:
    """Docker without its own cgroup namespace: the kernel's path does not exist, the mount point is the container's."""
    found = limits(
        {
            "/proc/self/cgroup": "4:memory:/docker/abc\n1:cpu,cpuacct:/docker/abc\n",
            "/sys/fs/cgroup/memory/memory.limit_in_bytes": f"{GIB}\n",
            "/sys/fs/cgroup/memory/memory.usage_in_bytes": "900\n",
            "/sys/fs/cgroup/memory/memory.stat": "inactive_file 1\ntotal_inactive_file 400\n",
            "/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000\n",
            "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        }
    )
    assert found == CgroupLimits(cpus=0.5, memory_bytes=GIB, memory_used_bytes=500)


def test_no_limit_is_none() -> None:
    files = {
        "/proc/self/cgroup": "4:memory:/a\n1:cpu:/\n0::/\n",
        "/sys/fs/cgroup/memory/a/memory.limit_in_bytes": "9223372036854771712\n",
        "/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
        "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        "/sys/fs/cgroup/cpu.max": "max 100000\n",
        "/sys/fs/cgroup/memory.max": "max\n",
    }
    assert limits(files) == CgroupLimits()
    assert limits({}) == CgroupLimits()


@given(st.text())
def test_garbage_never_raises(text: str) -> None:
    names = ["/proc/self/cgroup", "/sys/fs/cgroup/cpu.max", "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.stat"]
    limits(dict.fromkeys(names, text))
    parse_proc_cgroup(text)
    parse_memory(text)
    parse_inactive_file(f"inactive_file {text}")


@pytest.mark.parametrize(
    ("text", "cpus"), [("max 100000", None), ("200000 100000", 2.0), ("x y", None), ("1 0", None), ("", None)]
)
def test_cpu_max(text: str, cpus: float | None) -> None:
    assert parse_cpu_max(text) == cpus


def test_this_machine_is_within_its_physical_bounds() -> None:
    here = machine()
    assert 0 < here.cpus <= (psutil.cpu_count() or 1)
    assert 0 <= here.memory_free_bytes <= here.memory_bytes <= psutil.virtual_memory().total


def test_disk_of_a_folder_that_is_not_there_yet(tmp_path) -> None:  # type: ignore[no-untyped-def]
    assert disk_free_bytes(tmp_path / "a" / "b") > 0
