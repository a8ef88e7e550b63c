"""Where pipelines run: start, watch and stop Dask clusters and detached jobs; knows nothing of machine learning.

This is all that ``pipelines`` may use. Names are imported when they are first asked for: ``import cluster`` is cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cluster import signals
    from cluster.code_activation import CODE_PATH, Activation, activate_code
    from cluster.code_archive import CodeArchive, CodeFile, pack_code
    from cluster.code_plugin import install_code
    from cluster.connection import Cluster, WorkerInfo, connect
    from cluster.doctor import Finding, require, run_checks
    from cluster.environment import Environment, describe_environment
    from cluster.errors import (
        ClusterDeadlineError,
        ClusterError,
        ClusterLostError,
        ClusterPreemptedError,
        ClusterSpecError,
        ClusterUsageError,
        CodeError,
        JobError,
        PreflightError,
        SpecFault,
    )
    from cluster.jobs import JobHandle, JobResources, JobSpec, JobStatus, LogChunk, cancel, logs, status, submit, wait
    from cluster.resources import Machine, machine
    from cluster.spec import ClusterSpec, WorkerSpec, load_cluster_spec, parse_cluster_spec

_HOMES = {
    "code_activation": ("CODE_PATH", "Activation", "activate_code"),
    "code_archive": ("CodeArchive", "CodeFile", "pack_code"),
    "code_plugin": ("install_code",),
    "connection": ("Cluster", "WorkerInfo", "connect"),
    "doctor": ("Finding", "require", "run_checks"),
    "environment": ("Environment", "describe_environment"),
    "errors": (
        "ClusterDeadlineError",
        "ClusterError",
        "ClusterLostError",
        "ClusterPreemptedError",
        "ClusterSpecError",
        "ClusterUsageError",
        "CodeError",
        "JobError",
        "PreflightError",
        "SpecFault",
    ),
    "jobs": (
        "JobHandle", "JobResources", "JobSpec", "JobStatus", "LogChunk", "cancel", "logs", "status", "submit", "wait",
    ),
    "resources": ("Machine", "machine"),
    "spec": ("ClusterSpec", "WorkerSpec", "load_cluster_spec", "parse_cluster_spec"),
}  # fmt: skip
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [  # noqa: RUF022  # grouped as above: what belongs together
    "Cluster", "ClusterSpec", "WorkerInfo", "WorkerSpec", "connect", "load_cluster_spec", "parse_cluster_spec",
    "CODE_PATH", "Activation", "CodeArchive", "CodeFile", "activate_code", "install_code", "pack_code",
    "Environment", "describe_environment",
    "JobHandle", "JobResources", "JobSpec", "JobStatus", "LogChunk", "cancel", "logs", "status", "submit", "wait",
    "Finding", "Machine", "machine", "require", "run_checks", "signals",
    "ClusterDeadlineError", "ClusterError", "ClusterLostError", "ClusterPreemptedError", "ClusterSpecError",
    "ClusterUsageError", "CodeError", "JobError", "PreflightError", "SpecFault",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name == "signals":
        return import_module("cluster.signals")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'cluster' has no attribute {name!r}")
    return getattr(import_module(f"cluster.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
