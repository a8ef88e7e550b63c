"""What happens to a gang, and what it orders: the words between `membership` and those who act for it.

A *member* is one process of the gang, with a number of its own that is never used again. Its *rank* is its position in
one *formation*: the members that are connected with each other now.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias


class Cause(Enum):
    """Kinds of trouble. `BLAMED` is a member's word about another one, and weaker than any other."""

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
class Enlisted:
    """`member` was sent for: a watcher for it is on its way to `place`."""

    member: int
    place: str = ""


@dataclass(frozen=True)
class Watched:
    """A worker has begun to watch `member`'s process."""

    member: int
    worker: str


@dataclass(frozen=True)
class Arrived:
    """`member` waits to be introduced, and for its peers at `address`; `holds` are numbers of what it has loaded."""

    member: int
    address: tuple[str, int]
    holds: tuple[int, ...] = ()


STOPPED = ("stopped", "tracing-stop")
"""psutil's words for a process that does nothing until it is let go on."""


@dataclass(frozen=True)
class Beat:
    """What a watcher sees of its member."""

    member: int
    state: str
    cpu_s: float
    rss_bytes: int


@dataclass(frozen=True)
class Spoke:
    """`member` has reported something, which is progress; the gang's owner is told."""

    member: int
    message: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Committed:
    """The gang's work has come to `step`, from which it would go on."""

    member: int
    step: int


@dataclass(frozen=True)
class Left:
    """`member` has left its formation, and will arrive again: it was told to, or it lost sight of rank `blamed`."""

    member: int
    text: str = ""
    blamed: int | None = None


@dataclass(frozen=True)
class Returned:
    """`member`'s program has returned."""

    member: int
    result: bytes


@dataclass(frozen=True)
class Complained:
    """`member`'s program has raised, and its process ends; or it ends because it was told to (`leaving`)."""

    member: int
    cause: Cause
    text: str
    details: dict[str, Any]
    leaving: bool = False


@dataclass(frozen=True)
class Gone:
    """`member`'s process has ended, or its watcher has: expected of one that was dismissed, or was to be killed."""

    member: int
    cause: Cause
    text: str
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class StopAsked:
    """Somebody wants the gang to save its state and leave; `now` without a grace time."""

    now: bool = False


@dataclass(frozen=True)
class RegroupAsked:
    """Somebody wants the work dealt out anew, in a new formation of the same members."""


Event: TypeAlias = (
    Enlisted
    | Watched
    | Arrived
    | Beat
    | Spoke
    | Committed
    | Left
    | Returned
    | Complained
    | Gone
    | StopAsked
    | RegroupAsked
)

# --- orders ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recruit:
    """Send for up to `count` more members, wherever there is room."""

    count: int


@dataclass(frozen=True)
class Introduce:
    """Tell every member of a new formation its rank and the addresses of all.

    `members`, `addresses` and `holds` are by rank.
    """

    formation: int
    members: tuple[int, ...]
    addresses: tuple[tuple[str, int], ...]
    holds: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Tell:
    """Say a word to a member.

    ``stop``: save and end; ``regroup``: leave the formation at the next step; ``leave``: leave it at once, and arrive
    again; ``dismiss``: leave and end.
    """

    member: int
    word: str
    reason: str = ""


@dataclass(frozen=True)
class Kill:
    """Make a member's watcher kill it."""

    member: int


@dataclass(frozen=True)
class Strike:
    """Make a member's watcher harm it on purpose: ``kill`` it, ``stop`` it, ``slow`` it, or end its own ``worker``.

    Whatever comes of it, the gang hears and judges as it would without having asked for it.
    """

    member: int
    harm: str
    factor: float = 1.0


Order: TypeAlias = Recruit | Introduce | Tell | Kill | Strike
