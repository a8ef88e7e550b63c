"""One thin shell per place where a cluster can run, behind one small protocol."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast, runtime_checkable

if TYPE_CHECKING:
    from cluster.doctor import Finding
    from cluster.spec import ClusterSpec


class Backend(Protocol):
    """A place where clusters can be started."""

    def checks(self, spec: ClusterSpec) -> Sequence[Finding]:
        """Look whether `spec` can be started here now. Starts nothing."""
        ...

    def start(self, spec: ClusterSpec) -> RunningCluster:
        """Start a scheduler and ask for ``spec.workers`` workers, without waiting for them.

        Whatever was started is stopped again when this raises, and ends by itself when the calling process dies.
        """
        ...


class RunningCluster(Protocol):
    """A scheduler that answers, and the means to change what it has."""

    @property
    def scheduler_address(self) -> str: ...

    @property
    def dashboard_link(self) -> str:
        """The dashboard's URL, empty when it is off."""
        ...

    @property
    def log_folder(self) -> Path | None:
        """Where the logs of scheduler and workers can be read while the cluster lives."""
        ...

    @property
    def lost(self) -> str:
        """Why the cluster is not there any more; empty while it is."""
        ...

    def scale(self, workers: int) -> None:
        """Ask for so many workers. Returns at once."""
        ...

    def stop_when_idle(self, timeout_s: float) -> None:
        """End the cluster by itself when it had no work for so long, from now on."""
        ...

    def failed(self) -> int:
        """How many of the workers that were asked for can't come any more."""
        ...

    def missing(self) -> Sequence[str]:
        """What the workers that did not come left behind: one line of evidence each."""
        ...

    def close(self, *, failed: bool = False) -> None:
        """Stop everything in bounded time, may be called twice. `failed` keeps the logs for the reader."""
        ...


@runtime_checkable
class Adaptive(Protocol):
    """A running cluster that can follow the load by itself."""

    def adapt(self, minimum: int, maximum: int) -> None: ...


@dataclass(frozen=True)
class BackendEntry:
    """Where a backend is and what its workers can have; known without importing it."""

    location: str
    gpus: bool = False


BACKENDS: dict[str, BackendEntry] = {"local": BackendEntry("cluster.backends.local:LocalBackend")}


def load_backend(name: str) -> Backend:
    """Import a backend and make it."""
    module, _, attribute = BACKENDS[name].location.partition(":")
    return cast(Backend, getattr(import_module(module), attribute)())
