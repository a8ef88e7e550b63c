"""What a rank's program is given, and the words of the collective."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

import numpy.typing as npt

Op: TypeAlias = Literal["sum", "max", "min"]
Array: TypeAlias = npt.NDArray[Any]


@dataclass(frozen=True)
class Deadlines:
    """How long each wait of a gang may last, in seconds."""

    queue_s: float = 3600.0
    """For another gang on the same cluster to end."""
    start_s: float = 90.0
    """For all ranks to be started and to have met."""
    step_s: float = 300.0
    """For one collective operation: the slowest rank's step."""
    silence_s: float = 6.0
    """Without a word from a rank's watcher, or with the rank's process stopped, before it counts as lost."""
    idle_s: float = 900.0
    """Without any progress (CPU time or a message) of any rank."""
    grace_s: float = 20.0
    """For ranks to write a checkpoint and leave after a stop was asked for."""
    rejoin_s: float = 3.0
    """For replacements to come before a gang that has lost ranks goes on without them."""


def _forget(step: int) -> None:
    """Nobody wants to know."""


def _silence(timeout_s: float) -> None:
    """Nobody has anything to say."""


class Collective(Protocol):
    """What ranks say to each other. Every call is made by all ranks, in the same order, and has a deadline.

    A call that can't end raises ``GangError`` naming the rank that was missing; after that the collective is closed.
    Results are the same bytes on every rank: sums are added in the order of the ranks.
    """

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def allreduce(self, array: Array, op: Op = "sum") -> Array:
        """Combine equally shaped arrays of all ranks element by element; returns a new array."""
        ...

    def allgather(self, payload: bytes) -> list[bytes]:
        """Collect one payload of any length from every rank, by rank."""
        ...

    def alltoall(self, payloads: Sequence[bytes]) -> list[bytes]:
        """Give each rank its own payload of any length, by rank; returns what each gave to this one, by rank."""
        ...

    def gather(self, payload: bytes, root: int = 0) -> list[bytes] | None:
        """Collect one payload of any length from every rank, by rank, at `root` only; None for the others."""
        ...

    def broadcast(self, payload: bytes | None, root: int = 0) -> bytes:
        """Give `root`'s payload to everyone; the others' is ignored."""
        ...

    def barrier(self) -> None:
        """Wait until every rank has arrived."""
        ...


class StopRequested(Exception):
    """Raised by a rank's program that leaves because `RankContext.stop_requested` was set (after its checkpoint)."""


class Regroup(Exception):
    """Raised by a rank's program, on all ranks after the same step, to be called again in a new formation."""


@dataclass
class Kept:
    """What a rank's process keeps from one formation of its gang to the next."""

    holds: tuple[int, ...] = ()
    """Numbers of what it has loaded; whoever deals out the work for the next formation is told."""
    values: dict[str, Any] = field(default_factory=dict)
    resources: ExitStack = field(default_factory=ExitStack)
    """What must be closed when the process's work is over."""


@dataclass(frozen=True)
class RankContext:
    """Everything that a rank's program knows about its place in the gang."""

    rank: int
    size: int
    collective: Collective
    arguments: dict[str, Any]
    """This rank's element of ``run_gang``'s `arguments`."""
    threads: int
    """Threads that the program may compute with; BLAS itself runs on one."""
    memory_bytes: int | None
    """What the rank's process tree may use; beyond it the watcher kills the rank."""
    host: str
    """The address at which the other ranks reach this one."""
    scratch: Path
    """A folder of its own on the worker's disk, removed when the rank ends, however it ends."""
    report: Callable[[dict[str, Any]], None] = field(repr=False)
    """Send a small JSON message to ``run_gang``'s `on_message`; never blocks for long."""
    stop_requested: Callable[[], bool] = field(repr=False)
    """Whether this rank was asked to leave. Ranks hear of it at different times: let one decide and broadcast."""
    leaving: Callable[[], bool] = field(repr=False, default=bool)
    """Whether this formation is over: a program that computes for long without the collective looks, and raises
    `Regroup`."""
    regroup_requested: Callable[[], bool] = field(repr=False, default=bool)
    """Whether more ranks are waiting to join. Rank 0 is told; it makes all raise `Regroup` after the same step."""
    committed: Callable[[int], None] = field(repr=False, default=_forget)
    """Tell that the work has come to a step from which it would go on; a gang that makes no steps is not formed again
    and again."""
    hear: Callable[[float], dict[str, Any] | None] = field(repr=False, default=_silence)
    """Wait, at most so many seconds, for the next of ``run_gang``'s `words`; rank 0 gets them, in their order. None
    when none came, and at once when this rank is to leave. Words for an earlier formation may still come: a word that
    answers something should say what."""
    formation: int = 1
    """Counts how often the gang has formed; the ranks that were here before keep `kept`."""
    kept: Kept = field(repr=False, default_factory=Kept)
