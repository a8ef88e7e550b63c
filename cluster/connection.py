"""One cluster for the time of a `with`: started within bounds, watched, and always stopped."""

from __future__ import annotations

import logging
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from distributed import Client

from cluster.backends import Adaptive, RunningCluster, load_backend
from cluster.doctor import check_memory, failures, require, run_checks
from cluster.errors import ClusterDeadlineError, ClusterLostError, ClusterUsageError
from cluster.resources import machine
from cluster.spec import ClusterSpec

logger = logging.getLogger(__name__)

_POLL_S = 0.05
_WATCH_S = 1.0
_CLIENT_LIMIT_S = 10.0
_LOST_LIMIT_S = 1.0
_MOST_WORKERS = 10_000
SIGTERM_EXIT = 128 + signal.SIGTERM


@dataclass(frozen=True)
class WorkerInfo:
    """A worker that is there: its address, its name in the cluster, and what it has."""

    address: str
    name: str
    host: str
    threads: int
    memory_bytes: int


def connect(spec: ClusterSpec) -> Cluster:
    """Start the cluster of `spec` and wait until all its workers are there, at most ``spec.start_timeout``.

    Use it in a `with`: whatever ends the block, Ctrl-C and SIGTERM included, the cluster is stopped. When this
    process is killed, its workers end by themselves.

    Raises
    ------
    PreflightError
        Something that has to be there is not (a machine too small, no scratch folder); nothing was started.
    ClusterDeadlineError
        The workers did not come in time; the message names the first thing that was missing. Nothing is left running.
    """
    backend = load_backend(spec.backend)
    findings = backend.checks(spec)
    require(findings)
    for finding in findings:
        if not finding.ok:
            logger.warning("%s", finding)
    began = time.monotonic()
    cluster = Cluster(spec, backend.start(spec))
    try:
        cluster.wait_for_workers(spec.workers, spec.start_timeout)
        cluster.stop_when_idle(spec.idle_timeout)
    except BaseException:
        cluster.close(failed=True)
        raise
    logger.info("%d workers after %.1f s, dashboard %s", spec.workers, time.monotonic() - began, cluster.dashboard_link)
    return cluster


class Cluster:
    """A running cluster and a client of it. Made by `connect`."""

    def __init__(self, spec: ClusterSpec, running: RunningCluster) -> None:
        self.spec = spec
        self._running = running
        self._why_closed = ""
        self._idle_timeout = float("inf")
        self._lock = threading.Lock()
        self._sigterm: Any = None
        try:
            self._client = Client(running.scheduler_address, timeout=spec.start_timeout)
        except BaseException:
            running.close(failed=True)
            raise
        self._ended = threading.Event()
        threading.Thread(target=self._watch, name="cluster-watch", daemon=True).start()

    @property
    def client(self) -> Client:
        """The client; also Dask's default one. Raises `ClusterLostError` once the cluster is gone."""
        self._check()
        return self._client

    @property
    def scheduler_address(self) -> str:
        """The scheduler's address for other clients."""
        self._check()
        return self._running.scheduler_address

    @property
    def dashboard_link(self) -> str:
        """The dashboard's URL, empty when it is off."""
        self._check()
        return self._running.dashboard_link

    @property
    def log_folder(self) -> Path | None:
        """Where the logs of scheduler and workers are while the cluster lives."""
        return self._running.log_folder

    @property
    def closed(self) -> bool:
        """Whether the cluster was stopped or lost."""
        return bool(self._why_closed)

    def workers(self) -> tuple[WorkerInfo, ...]:
        """The workers that are there now, in the order of their names."""
        found = self.client.scheduler_info(n_workers=-1)["workers"]
        there = [
            WorkerInfo(address, str(info["name"]), info["host"], info["nthreads"], info["memory_limit"] or 0)
            for address, info in found.items()
        ]
        return tuple(sorted(there, key=lambda worker: (len(worker.name), worker.name)))

    def wait_for_workers(self, workers: int, timeout_s: float | None = None) -> None:
        """Wait until at least so many workers are there.

        Raises
        ------
        ClusterDeadlineError
            They are not after `timeout_s` (default: the spec's start_timeout), or can't come any more; names what was
        missing first.
        """
        limit = self.spec.start_timeout if timeout_s is None else timeout_s
        deadline = time.monotonic() + limit
        while (there := len(self.client.nthreads())) < workers:
            # `failed` counts processes that ended at their start, and nobody starts them again.
            if time.monotonic() >= deadline or self._running.failed():
                raise self._too_late(workers, there, limit)
            time.sleep(_POLL_S)

    def scale(self, workers: int) -> None:
        """Ask for so many workers; returns at once (see `wait_for_workers`).

        Raises
        ------
        ClusterUsageError
            Not a possible number of workers.
        PreflightError
            The place is too small for so many.
        """
        self._check()
        self._check_fits(workers)
        logger.info("scale to %d workers", workers)
        self._running.scale(workers)

    def adapt(self, minimum: int | None = None, maximum: int | None = None) -> None:
        """Follow the load between `minimum` and `maximum` workers (default: the spec's min_workers and max_workers)."""
        self._check()
        lowest = self.spec.lowest if minimum is None else minimum
        highest = self.spec.highest if maximum is None else maximum
        if not isinstance(self._running, Adaptive):
            raise ClusterUsageError(f"a cluster of the backend {self.spec.backend!r} can't adapt by itself", on="adapt")
        if not 0 <= lowest <= highest:
            raise ClusterUsageError("minimum must not be above maximum", on="adapt", found=f"{lowest} and {highest}")
        self._check_fits(highest)
        self._running.adapt(lowest, highest)

    def stop_when_idle(self, timeout_s: float) -> None:
        """End by itself when there was no work for so long, from now on."""
        self._check()
        self._idle_timeout = timeout_s
        self._running.stop_when_idle(timeout_s)

    def close(self, *, failed: bool = False) -> None:
        """Stop everything in bounded time. May be called twice, from any thread."""
        self._close("it was closed", failed=failed)

    def __enter__(self) -> Cluster:
        # SIGTERM would end this process without leaving the block. Who has a handler of their own keeps it.
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            self._sigterm = signal.signal(signal.SIGTERM, _exit_on_sigterm)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close(failed=error is not None)
        finally:
            if self._sigterm is not None:
                signal.signal(signal.SIGTERM, self._sigterm)

    def __repr__(self) -> str:
        return f"<Cluster {self.spec.backend} {self._why_closed or self._running.scheduler_address}>"

    def _check(self) -> None:
        if self._why_closed:
            raise ClusterLostError(f"the cluster is gone: {self._why_closed}", remedy="Connect again.")

    def _check_fits(self, workers: int) -> None:
        if not 0 <= workers <= _MOST_WORKERS:
            raise ClusterUsageError("not a possible number of workers", on="scale", found=str(workers))
        if self.spec.backend == "local":
            require([check_memory(workers, self.spec.worker.memory, machine())])

    def _too_late(self, workers: int, there: int, limit: float) -> ClusterDeadlineError:
        evidence = [f"{there} workers", *self._running.missing()]
        broken = failures(run_checks(self.spec))
        remedy = str(broken[0]) if broken else f"The logs are in {self.log_folder}; raise start_timeout if all is slow."
        return ClusterDeadlineError(
            "workers did not come", on="cluster", expected=f"{workers} workers within {limit:g} s",
            found="; ".join(evidence), remedy=remedy,
        )  # fmt: skip

    def _watch(self) -> None:
        """Clear up when the cluster ends by itself, as it does when it was idle for too long."""
        while not self._ended.wait(_WATCH_S):
            why = self._running.lost
            if why:
                self._close(f"{why}; it stops after {self._idle_timeout:g} s without work", failed=False)

    def _close(self, why: str, *, failed: bool) -> None:
        with self._lock:
            if self._why_closed:
                return
            self._why_closed = why
        self._ended.set()
        try:
            self._client.close(timeout=_LOST_LIMIT_S if self._running.lost else _CLIENT_LIMIT_S)
        finally:
            self._running.close(failed=failed)


def _exit_on_sigterm(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(SIGTERM_EXIT)
