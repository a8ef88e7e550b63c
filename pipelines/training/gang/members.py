"""What is known about each member of a gang, and about what went wrong: values, and how they are judged.

`membership` decides with them; nothing here acts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from pipelines.training.gang.events import STOPPED, Beat, Cause, Gone

HANDICAP_S = 1.5
"""A member found killed up to so long after another complained was the cause: watchers look every quarter second."""


class State(Enum):
    """Where a member is in its life."""

    COMING = "coming"
    READY = "ready"
    ACTIVE = "active"
    RETURNED = "returned"
    ENDING = "ending"
    GONE = "gone"


@dataclass(frozen=True)
class Sizes:
    """How many ranks: `start` at first, `most` when there is room, `least` to go on with after losses.

    A gang that does not `survive` ends with its first loss.
    """

    start: int
    least: int
    most: int
    survive: bool

    @classmethod
    def fixed(cls, size: int) -> Sizes:
        """So many ranks, all of them or none."""
        return cls(size, size, size, survive=False)


@dataclass(frozen=True)
class Trouble:
    """What went wrong at a rank (-1: the gang as a whole), when, and whatever is known about it."""

    rank: int
    cause: Cause
    text: str
    at: float
    worker: str = ""
    member: int = -1
    formation: int = 0
    details: dict[str, Any] = field(default_factory=dict)


@dataclass
class Member:
    """One process of the gang, as it is known now."""

    number: int
    worker: str
    heard: float
    progress: float
    state: State = State.COMING
    rank: int | None = None
    address: tuple[str, int] = ("", 0)
    holds: tuple[int, ...] = ()
    result: bytes | None = None
    watched: bool = False
    blames: int = 0
    lost: bool = False
    ready_since: float = 0.0
    kill_at: float | None = None
    killed: float | None = None
    stopped_since: float | None = None
    cpu_s: float = 0.0
    rss_bytes: int = 0

    @property
    def gone(self) -> bool:
        """Whether its process has ended."""
        return self.state is State.GONE

    @property
    def name(self) -> int:
        """Its rank; before it has one, its number."""
        return self.number if self.rank is None else self.rank

    def note(self, beat: Beat, now: float) -> None:
        """Take in what its watcher sees of it; computing is progress."""
        if beat.cpu_s > self.cpu_s + 0.01:
            self.progress = now
        self.cpu_s, self.rss_bytes = max(self.cpu_s, beat.cpu_s), beat.rss_bytes
        if beat.state in STOPPED:
            self.stopped_since = now if self.stopped_since is None else self.stopped_since
        else:
            self.stopped_since = None


def cause_of(troubles: Iterable[Trouble]) -> Trouble | None:
    """Return what began it: the earliest, where a killed member counts as earlier than complaints."""

    def at(trouble: Trouble) -> tuple[bool, float]:
        certain = trouble.cause in (Cause.KILLED, Cause.MEMORY, Cause.SILENT)
        return trouble.cause is Cause.BLAMED, trouble.at - (HANDICAP_S if certain else 0.0)

    return min(troubles, key=at, default=None)


def completed(trouble: Trouble, end: Gone) -> Trouble:
    """Add what a watcher tells of a member's end to the trouble with that member."""
    return replace(trouble, details={**end.details, **trouble.details}) if trouble.member == end.member else trouble
