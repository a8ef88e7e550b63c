"""Clusters on this machine: distributed.LocalCluster with worker processes under nannies, on the loopback only."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import dask
import psutil
from distributed import LocalCluster, Status

from cluster.backends import RunningCluster
from cluster.backends.lifeline import DASK_LOGGERS, FileLog, Lifeline, redirect
from cluster.doctor import Finding, machine_checks
from cluster.errors import ClusterLostError
from cluster.resources import machine
from cluster.scratch import ScratchFolder
from cluster.spec import ClusterSpec

logger = logging.getLogger(__name__)

CLOSE_LIMIT_S = 20.0
KILL_LIMIT_S = 5.0
ROOTS = ("distributed", "tornado")
OWNER_LOG = "scheduler.log"
ALLOCATOR = {"MALLOC_TRIM_THRESHOLD_": 32 << 20, "MALLOC_MMAP_THRESHOLD_": 1 << 20}
"""What workers give back to Linux: freed blocks from 1 MiB on at once, small ones from 32 MiB on.

With Dask's own setting (from 64 KiB on, which also ends glibc's adapting) a pass over Parquet columns spends a quarter
of its time on faulting pages in again, measured."""
_TRIM, _DASKS_TRIM = "MALLOC_TRIM_THRESHOLD_", "65536"
_GIVES_UP, _DASKS_PATIENCE = "distributed.deploy.lost-worker-timeout", "15s"
_PATIENCE = "365 days"
"""What Dask waits after the loss of a worker before it ends the nanny for good, unless one is there at that moment.

Meant for jobs of batch systems. A nanny starts its worker again however often it is lost, but a second loss, or a slow
start, would fall into that moment."""


class LocalBackend:
    """Starts clusters in this process: scheduler here, each worker a process that dies with this one."""

    def checks(self, spec: ClusterSpec) -> Sequence[Finding]:
        return machine_checks(spec, machine())

    def start(self, spec: ClusterSpec) -> RunningCluster:
        return RunningLocalCluster(spec)


class RunningLocalCluster:
    """A LocalCluster, its scratch folder and its log files."""

    def __init__(self, spec: ClusterSpec) -> None:
        self._scratch = ScratchFolder(spec.scratch_folder)
        self._logs = _OwnerLogs(self._scratch.logs / OWNER_LOG)
        self._has_dashboard = spec.dashboard is not None
        self._cluster: LocalCluster | None = None
        self._settings = ExitStack()
        self._settings.enter_context(_allocator_settings())
        self._settings.enter_context(_lasting_workers())
        try:
            # No worker yet: the constructor can't be interrupted cleanly, and without workers it is quick.
            self._cluster = LocalCluster(
                n_workers=0,
                threads_per_worker=spec.worker.threads,
                processes=True,
                host="127.0.0.1",
                memory_limit=spec.worker.memory,
                dashboard_address=_on_loopback(spec.dashboard or ":0"),
                silence_logs=logging.WARNING,
                local_directory=str(self._scratch.workers),
                plugins=(Lifeline(str(self._scratch.logs)),),
                # Dask serves its own pages of health and metrics in any case; without an address on all interfaces.
                scheduler_kwargs={"dashboard": spec.dashboard is not None},
            )
            self.scale(spec.workers)
        except BaseException:
            self.close(failed=True)
            raise

    @property
    def scheduler_address(self) -> str:
        return str(self._running().scheduler_address)

    @property
    def dashboard_link(self) -> str:
        return str(self._running().dashboard_link) if self._has_dashboard else ""

    @property
    def log_folder(self) -> Path | None:
        return self._scratch.logs

    @property
    def lost(self) -> str:
        if self._cluster is None:
            return "it was closed"
        status = self._cluster.scheduler.status
        return "" if status == Status.running else f"its scheduler is {status.name}"

    def scale(self, workers: int) -> None:
        self._running().scale(workers)

    def adapt(self, minimum: int, maximum: int) -> None:
        self._running().adapt(minimum=minimum, maximum=maximum)

    def stop_when_idle(self, timeout_s: float) -> None:
        # Not from the start: the time that workers take to come is not idleness.
        self._running().scheduler.idle_timeout = timeout_s

    def failed(self) -> int:
        return sum(nanny.status == Status.failed for nanny in self._running().workers.values())

    def missing(self) -> Sequence[str]:
        cluster = self._running()
        there = {info["name"] for info in cluster.scheduler_info["workers"].values()}
        absent = [name for name in cluster.worker_spec if name not in there]
        lines = []
        for name in absent:
            nanny = cluster.workers.get(name)
            state = f"its process is {nanny.status.name}" if nanny is not None else "its process is starting"
            lines.append(f"worker {name}: {state}" + _tail(self._scratch.logs / f"worker-{name}.log"))
        exits = _lines(self._scratch.logs / OWNER_LOG, "Worker process")
        return [*lines, *exits[-1:]] if absent else []

    def close(self, *, failed: bool = False) -> None:
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            self._stop(cluster)
        self._settings.close()
        self._logs.close()
        self._scratch.close(keep_logs=failed)

    def _stop(self, cluster: LocalCluster) -> None:
        tree = _processes(cluster)
        if cluster.scheduler.status != Status.running:
            cluster.shutdown_scheduler = False  # it has ended by itself: asking it to end takes half a minute
        try:
            cluster.close(timeout=CLOSE_LIMIT_S)
        except TimeoutError:
            logger.warning("the cluster did not close within %g s: its processes are killed", CLOSE_LIMIT_S)
        finally:
            _kill(tree | _processes(cluster))

    def _running(self) -> LocalCluster:
        if self._cluster is None:
            raise ClusterLostError("the cluster was closed", on="local cluster")
        return self._cluster


class _OwnerLogs:
    """What Dask logs in this process goes into a file instead of to the terminal, until closed."""

    def __init__(self, path: Path) -> None:
        self._handler = FileLog(path)
        # Where a program set up logging of its own, Dask's loggers have no handlers and send to that too.
        targets = [each for each in map(logging.getLogger, DASK_LOGGERS) if each.handlers or each.name in ROOTS]
        self._before = [(target, redirect(target, self._handler)) for target in targets]

    def close(self) -> None:
        for target, handlers in self._before:
            target.removeHandler(self._handler)
            for handler in handlers:
                target.addHandler(handler)
        self._before = []
        self._handler.close()


@contextmanager
def _allocator_settings() -> Iterator[None]:
    """Set the environment of new workers until left; what somebody has set otherwise stays.

    The environment of this process, since a nanny puts what it gives its worker there too and leaves it, and since it
    has precedence over Dask's configuration.
    """
    before = {name: os.environ.get(name) for name in ALLOCATOR}
    setting = before[_TRIM] or str(dask.config.get(f"distributed.nanny.pre-spawn-environ.{_TRIM}", ""))
    if setting != _DASKS_TRIM:
        yield
        return
    os.environ.update({name: str(value) for name, value in ALLOCATOR.items()})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _lasting_workers() -> Iterator[None]:
    """Keep nannies whatever happens to their workers, until left; what somebody has set otherwise stays."""
    if dask.config.get(_GIVES_UP, _DASKS_PATIENCE) != _DASKS_PATIENCE:
        yield
        return
    with dask.config.set({_GIVES_UP: _PATIENCE}):
        yield


def _on_loopback(address: str) -> str:
    """A port without a host is opened here only; Dask would open it on all interfaces."""
    return f"127.0.0.1{address}" if address.startswith(":") else address


def _tail(log: Path) -> str:
    lines = _lines(log, "")
    return f", its log ends with {lines[-1]!r}" if lines else ""


def _lines(log: Path, part: str) -> list[str]:
    try:
        return [line for line in log.read_text(errors="replace").splitlines() if part in line]
    except OSError:
        return []


def _processes(cluster: LocalCluster) -> set[psutil.Process]:
    """The workers' processes and all below them, as they are now; each knows its own start."""
    found: set[psutil.Process] = set()
    for nanny in list(cluster.workers.values()):
        with suppress(psutil.Error, AttributeError):
            if nanny.pid is not None:
                process = psutil.Process(nanny.pid)
                found |= {process, *process.children(recursive=True)}
    return found


def _kill(processes: set[psutil.Process]) -> None:
    """Kill what still runs and wait a little for its end. psutil never signals a number that was given to another."""
    for process in processes:
        with suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(list(processes), timeout=KILL_LIMIT_S)
