"""What happens to a gang, and what it orders: the words between `membership` and those who act for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias


class Cause(Enum):
    """Kinds of trouble. `BLAMED` is a rank's word about another one, and weaker than any other."""

    RAISED = "raised"
    DIED = "died"
    KILLED = "killed"
    MEMORY = "memory"
    SILENT = "silent"
    IDLE = "idle"
    START = "start"
    BLAMED = "blamed"


# --- events ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Watched:
    """A worker has begun to watch `rank`'s process."""

    rank: int
    worker: str


@dataclass(frozen=True)
class Arrived:
    """`rank` is up and waits for its peers at `address`."""

    rank: int
    address: tuple[str, int]


@dataclass(frozen=True)
class Beat:
    """What a watcher sees of its rank."""

    rank: int
    state: str
    cpu_s: float
    rss_bytes: int


@dataclass(frozen=True)
class Spoke:
    """`rank` has reported something, which is progress; the gang's owner is told."""

    rank: int
    message: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Returned:
    """`rank`'s program has returned."""

    rank: int
    result: bytes


@dataclass(frozen=True)
class Complained:
    """`rank`'s program has raised; or left because it was told to (`leaving`)."""

    rank: int
    cause: Cause
    text: str
    details: dict[str, Any]
    leaving: bool = False


@dataclass(frozen=True)
class Gone:
    """`rank`'s process has ended, or its watcher has: expected of one that has returned, left or was to be killed."""

    rank: int
    cause: Cause
    text: str
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class StopAsked:
    """Somebody wants the gang to save its state and leave; `now` without a grace time."""

    now: bool = False


Event: TypeAlias = Watched | Arrived | Beat | Spoke | Returned | Complained | Gone | StopAsked

# --- orders ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Introduce:
    """Tell every rank the addresses of all."""

    addresses: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Tell:
    """Tell a rank to ``stop`` (save and leave) or to ``abort`` (leave the collective at once)."""

    rank: int
    word: str
    reason: str = ""


@dataclass(frozen=True)
class Kill:
    """Make a rank's watcher kill it."""

    rank: int


Order: TypeAlias = Introduce | Tell | Kill
