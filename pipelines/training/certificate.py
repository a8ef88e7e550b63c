"""Which bits did a training come to, and for whom would they be the same? Digests of the weights on the way.

Synchronous training adds reproducibly and takes every decision on one rank: its weights depend on spec and data, not on
the number of ranks, their threads, or what happened to them. What may differ are processors and linear algebra
libraries, whose kernels round in their own ways; so each rank says what it computes with. A file that changes can't go
unnoticed: reading it fails, and a checkpoint of other files is refused.
"""

from __future__ import annotations

import hashlib
import json
import platform
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import scipy
import scipy.linalg  # its BLAS is loaded before one looks at what is loaded
from threadpoolctl import threadpool_info

from pipelines.training.gang.context import Array, Collective

MOST = 64
"""Digests that are kept; of longer trainings every second, fourth, … epoch or step has one."""


@dataclass
class Certificate:
    """The digests of a training's weights so far, and the machines that it ran on. Goes with the training's state.

    Parameters
    ----------
    unit : {"epoch", "step"}
    every : int
        Steps per unit.
    marks : list of [int, str]
        Number of the epoch or step (from 1), and the SHA-256 of the weights after it.
    stride : int
        Only numbers that it divides are kept.
    machines : list of dict
        Each kind of machine that a rank ran on, with the formation and the rank where it was seen first.
    """

    unit: Literal["epoch", "step"]
    every: int = 1
    marks: list[list[Any]] = field(default_factory=list)
    stride: int = 1
    machines: list[dict[str, Any]] = field(default_factory=list)

    def note(self, step: int, weights: Array) -> None:
        """Take the digest of the weights after a step, if one is due."""
        number, rest = divmod(step, self.every)
        if rest or not number or number % self.stride or (self.marks and self.marks[-1][0] >= number):
            return
        self.marks.append([number, weights_digest(weights)])
        if len(self.marks) > MOST:
            self.stride *= 2
            self.marks = [mark for mark in self.marks if mark[0] % self.stride == 0]

    def note_machines(self, formation: int, machines: list[dict[str, Any]]) -> None:
        """Take in what the ranks of a formation compute with, by rank."""
        for rank, machine in enumerate(machines):
            if all(machine != known["machine"] for known in self.machines):
                self.machines.append({"formation": formation, "rank": rank, "machine": machine})

    def to_plain(self) -> dict[str, Any]:
        """Turn what must go on with the training into JSON values."""
        return {"marks": [list(mark) for mark in self.marks], "stride": self.stride, "machines": list(self.machines)}

    def go_on(self, plain: dict[str, Any]) -> None:
        """Go on from `to_plain`'s result; machines that were noted already stay."""
        self.marks, self.stride = [list(mark) for mark in plain["marks"]], int(plain["stride"])
        seen, self.machines = self.machines, list(plain["machines"])
        for each in seen:
            if all(each["machine"] != known["machine"] for known in self.machines):
                self.machines.append(each)

    def seal(self, weights: Array, identity: str) -> dict[str, Any]:
        """Write it out, with the digest of the final weights.

        Returns
        -------
        dict
            ``final``, ``digests`` (``[number, digest]`` by `unit`), ``of`` (what spec and data come to: only
            certificates of the same are comparable), ``equal_for`` and ``broken_by`` for people; ``machine``.
        """
        first = self.machines[0]["machine"] if self.machines else {}
        return {
            "final": weights_digest(weights),
            "unit": self.unit,
            "digests": self.marks,
            "of": identity,
            "machine": first,
            "equal_for": f"any number of workers, any threads, any losses, on processors like {machine_told(first)}",
            "broken_by": [
                f"rank {each['rank']} of formation {each['formation']} computed on {machine_told(each['machine'])}, "
                f"others on {machine_told(first)}: {_difference_told(first, each['machine'])}"
                for each in self.machines[1:]
            ],
        }


def weights_digest(weights: Array) -> str:
    """SHA-256 (hex) of weights, as little-endian float64."""
    return hashlib.sha256(np.ascontiguousarray(weights, "<f8").tobytes()).hexdigest()


@cache
def this_machine() -> dict[str, str]:
    """Describe what this process computes with: whatever may round in its own way."""
    blas = sorted(
        {
            " ".join(str(each.get(key) or "?") for key in ("internal_api", "version", "architecture"))
            for each in threadpool_info()
            if each["user_api"] == "blas"
        }
    )
    return {
        "processor": _cpuinfo("model name") or platform.processor() or platform.machine(),
        "flags": hashlib.sha256(" ".join(sorted(_cpuinfo("flags").split())).encode()).hexdigest()[:12],
        "blas": ", ".join(blas) or "unknown",
        "numpy": np.__version__,
        "scipy": scipy.__version__,
    }


def machines_of(collective: Collective) -> list[dict[str, Any]]:
    """Gather what all ranks compute with, by rank. Called by all ranks."""
    return [json.loads(each) for each in collective.allgather(json.dumps(this_machine()).encode())]


def machine_told(machine: dict[str, Any]) -> str:
    """What a machine computes with, in a few words."""
    return f"{machine.get('processor', 'unknown')} with {machine.get('blas', 'an unknown BLAS')}"


def _difference_told(one: dict[str, Any], other: dict[str, Any]) -> str:
    return ", ".join(f"{key} {one.get(key)} / {other.get(key)}" for key in other if one.get(key) != other.get(key))


def _cpuinfo(key: str) -> str:
    """A line of the first processor's, empty where the system does not say it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == key), "")
