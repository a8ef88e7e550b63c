"""What users write about a cluster: where it runs, how many workers, and what each of them has."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

import yaml
from dask.utils import parse_bytes, parse_timedelta
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from cluster.backends import BACKENDS
from cluster.errors import ClusterSpecError, ClusterUsageError, SpecFault


def _bytes(value: object) -> object:
    if isinstance(value, str):
        try:
            _check_number(value)
            return int(parse_bytes(value))
        except ValueError:
            raise ValueError(f"not an amount of memory: {value!r}; write it like '512 MiB' or '2 GiB'") from None
    return value


def _seconds(value: object) -> object:
    if isinstance(value, str):
        try:
            _check_number(value)
            return float(parse_timedelta(value.replace("min", "m") if value.endswith("min") else value, default="s"))
        except (KeyError, ValueError):
            raise ValueError(f"not a duration: {value!r}; write it like '60 s' or '5 minutes'") from None
    return value


def _check_number(text: str) -> None:
    """Dask reads a bare unit as one of it, and fails with an IndexError on an empty text."""
    if not text.strip()[:1].isdigit():
        raise ValueError(text)


Bytes = Annotated[int, BeforeValidator(_bytes)]
Seconds = Annotated[float, BeforeValidator(_seconds)]

MIB = 2**20
LEAST_WORKER_MEMORY = 256 * MIB  # an idle worker with pandas and pyarrow imported takes about 170 MiB


class WorkerSpec(BaseModel):
    """What one worker has. All of it is per worker."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    memory: Bytes = Field(default=2 * 1024 * MIB, ge=LEAST_WORKER_MEMORY, description="limit in bytes")
    threads: int = Field(default=1, ge=1, le=1024)
    gpus: int = Field(default=0, ge=0, le=16)


class ClusterSpec(BaseModel):
    """A Dask cluster: where it runs, how many workers, how long we wait for it and when it stops by itself.

    ``scratch`` is a folder on the machine's own disk for spilled data and unpacked code; the default is a folder of
    this user in the system's temporary directory. ``dashboard`` is ``host:port`` (port 0: any free one) or ``None``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    backend: str = "local"
    workers: int = Field(default=1, ge=1, le=10_000)
    min_workers: int | None = Field(default=None, ge=1)
    max_workers: int | None = Field(default=None, ge=1)
    worker: WorkerSpec = WorkerSpec()
    start_timeout: Seconds = Field(default=120.0, gt=0, description="seconds")
    idle_timeout: Seconds = Field(default=1200.0, gt=0, description="seconds")
    dashboard: str | None = "127.0.0.1:0"
    scratch: str | None = None

    @field_validator("backend")
    @classmethod
    def _known(cls, backend: str) -> str:
        if backend not in BACKENDS:
            raise ValueError(f"there is no backend {backend!r} here; there are: {', '.join(sorted(BACKENDS))}")
        return backend

    # Keys are checked one by one, each seeing those above it, so that a fault has its key's path.
    @field_validator("min_workers")
    @classmethod
    def _at_most_workers(cls, value: int | None, info: ValidationInfo) -> int | None:
        workers = info.data.get("workers")
        if value is not None and workers is not None and value > workers:
            raise ValueError(f"must not be above workers, which is {workers}")
        return value

    @field_validator("max_workers")
    @classmethod
    def _at_least_workers(cls, value: int | None, info: ValidationInfo) -> int | None:
        workers = info.data.get("workers")
        if value is not None and workers is not None and value < workers:
            raise ValueError(f"must not be below workers, which is {workers}")
        return value

    @field_validator("worker")
    @classmethod
    def _possible(cls, worker: WorkerSpec, info: ValidationInfo) -> WorkerSpec:
        backend = info.data.get("backend")
        if worker.gpus and backend is not None and not BACKENDS[backend].gpus:
            raise ValueError(f"workers of the backend {backend!r} have no GPUs; write gpus: 0")
        return worker

    @property
    def lowest(self) -> int:
        """The fewest workers that the cluster may shrink to."""
        return self.min_workers if self.min_workers is not None else self.workers

    @property
    def highest(self) -> int:
        """The most workers that the cluster may grow to."""
        return self.max_workers if self.max_workers is not None else self.workers

    @property
    def scratch_folder(self) -> Path:
        """The folder for spilled data, unpacked code and logs, whether it exists or not."""
        if self.scratch is not None:
            return Path(self.scratch).expanduser().absolute()
        return Path(tempfile.gettempdir()) / f"mutirao-{os.getuid()}"


def load_cluster_spec(path: str | Path) -> ClusterSpec:
    """Read a cluster spec from a YAML file.

    Raises
    ------
    ClusterUsageError
        The file can't be read or is not YAML.
    ClusterSpecError
        All faults of the spec at once, each with its path and the fix.
    """
    try:
        plain = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ClusterUsageError(f"the cluster spec can't be read ({error.strerror})", on=str(path)) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ClusterUsageError(f"not a YAML file: {error}", on=str(path)) from error
    return parse_cluster_spec(plain, on=str(path))


def parse_cluster_spec(plain: object, *, on: str = "cluster") -> ClusterSpec:
    """Build a spec from plain values. Raises `ClusterSpecError` with every fault."""
    if not isinstance(plain, Mapping):
        fault = SpecFault("(whole)", f"a mapping is wanted, this is {type(plain).__name__}", "Write `workers: 2`.")
        raise ClusterSpecError([fault], on=on)
    try:
        return ClusterSpec.model_validate(plain)
    except ValidationError as error:
        raise ClusterSpecError([_fault(each) for each in error.errors()], on=on) from None


def _fault(error: Any) -> SpecFault:
    path = ".".join(str(part) for part in error["loc"]) or "(whole)"
    if error["type"] != "extra_forbidden":
        return SpecFault(path, f"{error['msg'].removeprefix('Value error, ')} (found {error['input']!r})")
    known = WorkerSpec.model_fields if path.startswith("worker.") else ClusterSpec.model_fields
    return SpecFault(path, "there is no such key", _nearest(str(error["loc"][-1]), known))


def _nearest(name: str, known: Iterable[str]) -> str:
    names = list(known)
    near = get_close_matches(name, names, n=1)
    return f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(names)}."
