"""Preflight checks: what has to be there before a cluster starts, each with its evidence and its remedy.

One list, used by ``mutirao doctor``, before every start, and when a bounded wait ends without what it waited for.
"""

from __future__ import annotations

import importlib.metadata
import os
import socket
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from cluster.errors import PreflightError
from cluster.resources import Machine, disk_free_bytes, machine
from cluster.scratch import make_private
from cluster.spec import ClusterSpec

GIB = 2**30
LEAST_SCRATCH_BYTES = GIB // 2
_TCP_LIMIT_S = 3.0
_PORTS = {"http": 80, "https": 443, "hdfs": 8020}

# The versions below which something we rely on is not there; the same bounds as the distribution's own requirements.
LEAST_VERSIONS = {"dask": "2026.7.1", "distributed": "2026.7.1", "numpy": "2.1", "pandas": "2.2", "pyarrow": "20"}


@dataclass(frozen=True)
class Finding:
    """What one check saw. A check that is not `ok` stops a start when it is `blocking`, and is advice otherwise."""

    name: str
    ok: bool
    evidence: str
    remedy: str = ""
    blocking: bool = True

    def __str__(self) -> str:
        return f"{self.name}: {self.evidence}" + (f". {self.remedy}" if self.remedy and not self.ok else "")


def run_checks(spec: ClusterSpec | None = None, store: str | None = None) -> tuple[Finding, ...]:
    """Run every check that applies: the software, the machine, `spec` on it, and whether `store` (a URL) answers.

    Takes at most a few seconds; writes only probe files, which it removes.
    """
    spec = spec or ClusterSpec()
    findings = [check_python(), *check_versions(), *machine_checks(spec, machine()), check_clock()]
    if store is not None:
        findings.append(check_store(store, os.environ.get("AWS_ENDPOINT_URL")))
    return tuple(findings)


def machine_checks(spec: ClusterSpec, here: Machine) -> tuple[Finding, ...]:
    """The checks of a cluster on this one machine: they come before every local start."""
    return (
        check_memory(spec.workers, spec.worker.memory, here),
        check_memory_free(spec.workers, spec.worker.memory, here),
        check_cpu(spec.workers, spec.worker.threads, here),
        check_scratch(spec.scratch_folder),
        check_loopback(),
    )


def require(findings: Iterable[Finding]) -> None:
    """Raise `PreflightError` when a blocking check failed; it says all that failed, the first one first."""
    failed = [finding for finding in findings if finding.blocking and not finding.ok]
    if failed:
        first, *others = failed
        also = "".join(f"\n  also {finding}" for finding in others)
        raise PreflightError(first.evidence, on=first.name, remedy=first.remedy + also)


def check_memory(workers: int, memory_bytes: int, here: Machine) -> Finding:
    """Whether all workers together may take what the spec gives them."""
    needed = workers * memory_bytes
    evidence = (
        f"{workers} × {_gib(memory_bytes)} = {_gib(needed)} needed, {here.hostname} has {_gib(here.memory_bytes)}"
    )
    fitting = here.memory_bytes // memory_bytes
    remedy = (
        f"At most {fitting} workers of this memory fit; lower workers or worker.memory."
        if fitting
        else f"Lower worker.memory to at most {_gib(here.memory_bytes)}."
    )
    return Finding("memory", needed <= here.memory_bytes, evidence, remedy)


def check_memory_free(workers: int, memory_bytes: int, here: Machine) -> Finding:
    """Whether it is free now: advice, since a worker's memory is a limit and not taken at once."""
    needed = workers * memory_bytes
    evidence = f"{_gib(here.memory_free_bytes)} free now for limits of {_gib(needed)}"
    remedy = "Other processes hold the rest: end them, or lower workers or worker.memory."
    return Finding("free memory", needed <= here.memory_free_bytes, evidence, remedy, blocking=False)


def check_cpu(workers: int, threads: int, here: Machine) -> Finding:
    """Whether every thread has a processor: advice, since more threads only make each slower."""
    evidence = f"{workers} × {threads} threads on {here.cpus:g} processors"
    remedy = "Workers will take turns; lower workers or worker.threads."
    return Finding("processors", workers * threads <= here.cpus, evidence, remedy, blocking=False)


def check_scratch(folder: Path, least_bytes: int = LEAST_SCRATCH_BYTES) -> Finding:
    """Whether workers can write where they spill."""
    try:
        make_private(folder)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"\0" * 4096)
        free = disk_free_bytes(folder)
    except OSError as error:
        evidence = f"{folder} can't be written ({error.strerror})"
        return Finding("scratch", False, evidence, "Set scratch to a folder on a local disk that you may write.")
    except PreflightError as error:
        return Finding("scratch", False, f"{folder} belongs to another user", error.remedy)
    evidence = f"{_gib(free)} free in {folder}"
    return Finding("scratch", free >= least_bytes, evidence, f"Free at least {_gib(least_bytes)}, or set scratch.")


def check_loopback() -> Finding:
    """Whether two processes of this machine can talk over TCP: a port, a connection and a reply."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(_TCP_LIMIT_S)
            port = server.getsockname()[1]
            with socket.create_connection(("127.0.0.1", port), timeout=_TCP_LIMIT_S) as client:
                peer, _ = server.accept()
                with peer:
                    peer.sendall(b"!")
                    heard = client.recv(1)
    except OSError as error:
        return Finding("loopback", False, f"no TCP on 127.0.0.1 ({error})", "Allow local connections in the sandbox.")
    return Finding("loopback", heard == b"!", f"TCP on 127.0.0.1 works (port {port})")


def check_python(version: tuple[int, int] = sys.version_info[:2]) -> Finding:
    """Whether the interpreter is new enough."""
    found = ".".join(map(str, version))
    return Finding("python", version >= (3, 11), f"Python {found}", "Use Python 3.11 or later.")


def check_versions() -> tuple[Finding, ...]:
    """Whether the packages that have to work together do: each at least its bound, dask and distributed the same."""
    found = {name: _installed(name) for name in LEAST_VERSIONS}
    findings = [check_version(name, found[name], least) for name, least in LEAST_VERSIONS.items()]
    same = found["dask"] == found["distributed"]
    evidence = f"dask {found['dask']}, distributed {found['distributed']}"
    findings.append(
        Finding("dask release", same, evidence, "Install both of one release: pip install 'dask[distributed]'.")
    )
    return tuple(findings)


def check_version(name: str, found: str | None, least: str) -> Finding:
    """Whether one package is there and new enough."""
    if found is None:
        return Finding(name, False, "not installed", f"pip install '{name}>={least}'")
    return Finding(name, _release(found) >= _release(least), found, f"pip install '{name}>={least}'")


def check_clock(now: float | None = None) -> Finding:
    """Whether the clock is after this release was made: a clock of 1970 breaks TLS, signatures and leases."""
    now = time.time() if now is None else now
    evidence = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    return Finding("clock", now > 1_767_225_600, evidence, "Set the machine's clock (NTP).")  # 2026-01-01


def check_store(url: str, endpoint: str | None = None) -> Finding:
    """Whether a store answers: a folder is written and cleaned, a remote one is asked for a TCP connection.

    `endpoint` is the address of the object store where it is not the provider's own.
    """
    parts = urlsplit(url)
    if parts.scheme in ("", "file"):
        return _check_folder(Path(parts.path if parts.scheme else url).expanduser())
    if parts.scheme == "memory":
        return Finding("store", True, f"{url} is in this process")
    host, port = store_address(url, endpoint)
    if not host:
        return Finding(
            "store", False, f"{url} names no host", "Write it like s3://bucket/prefix or hdfs://host:8020/path."
        )
    try:
        socket.create_connection((host, port), timeout=_TCP_LIMIT_S).close()
    except OSError as error:
        evidence = f"{host}:{port} can't be reached for {parts.scheme}://{parts.hostname} ({error})"
        return Finding("store", False, evidence, "Check the network, the URL, and AWS_ENDPOINT_URL for S3.")
    return Finding("store", True, f"{host}:{port} answers for {parts.scheme}://{parts.hostname}")


def store_address(url: str, endpoint: str | None = None) -> tuple[str, int]:
    """Host and port that a remote store's URL leads to; an empty host when it can't be told."""
    parts = urlsplit(url)
    if parts.scheme in ("s3", "s3a") and endpoint:
        parts = urlsplit(endpoint)
    providers = {
        "s3": "s3.amazonaws.com",
        "s3a": "s3.amazonaws.com",
        "gs": "storage.googleapis.com",
        "az": "login.microsoftonline.com",
        "abfs": "login.microsoftonline.com",
    }
    host = providers.get(parts.scheme, parts.hostname or "")
    try:
        port = parts.port
    except ValueError:
        return "", 0
    return host, port or _PORTS.get(parts.scheme, 443)


def failures(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """The findings that stop a start."""
    return tuple(finding for finding in findings if finding.blocking and not finding.ok)


def _check_folder(folder: Path) -> Finding:
    parent = folder
    try:
        while not parent.exists():
            parent = parent.parent
        with tempfile.NamedTemporaryFile(prefix=".mutirao-probe-", dir=parent) as probe:
            probe.write(b"probe")
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as error:
        evidence = f"{folder} can't be written ({error.strerror})"
        return Finding("store", False, evidence, "Choose a folder that you may write, on a disk with space.")
    return Finding("store", True, f"{folder} can be written, {_gib(disk_free_bytes(parent))} free")


def _installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _release(version: str) -> tuple[int, ...]:
    """The leading numbers of a version, enough to compare releases with bounds."""
    numbers: list[int] = []
    for part in version.split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
    return tuple(numbers)


def _gib(count: int) -> str:
    return f"{count / GIB:.1f} GiB"
