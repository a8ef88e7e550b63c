"""Who is in the gang, who was lost, and what to do about it: events in, orders out, no input or output of its own.

A gang lives through `Phase`s: its ranks start and meet (all or none), run, and end. It ends well when every rank has
returned a result. After the first trouble the others are told to leave, and killed when they do not; the verdict waits
until all are gone, since the first to complain is often not the cause: a rank whose peer was killed sees a closed
connection before anyone sees the death.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from pipelines.training.gang.context import Deadlines
from pipelines.training.gang.events import (
    Arrived,
    Beat,
    Cause,
    Complained,
    Event,
    Gone,
    Introduce,
    Kill,
    Order,
    Returned,
    Spoke,
    StopAsked,
    Tell,
    Watched,
)

LEAVE_S = 3.0
"""For a rank that was told of another's failure to leave by itself."""
KILL_S = 20.0
"""For a watcher to report the end of a rank that it was told to kill (a large process takes its time)."""
DEAF_S = 2.0
"""The same for a watcher that has been silent. What it watches ends when the coordinator closes the connections."""
HANDICAP_S = 1.5
"""A rank found killed up to so long after another complained was the cause: watchers look every quarter second."""


class Phase(Enum):
    """Where the gang is in its life."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    FAILING = "failing"
    ENDED = "ended"


@dataclass(frozen=True)
class Trouble:
    """What went wrong at a rank (-1: the gang as a whole), when, and whatever is known about it."""

    rank: int
    cause: Cause
    text: str
    at: float
    details: dict[str, Any] = field(default_factory=dict)


@dataclass
class _Rank:
    worker: str = ""
    address: tuple[str, int] | None = None
    result: bytes | None = None
    left: bool = False
    gone: bool = False
    kill_at: float | None = None
    killed: float | None = None
    heard: float = 0.0
    stopped_since: float | None = None
    cpu_s: float = 0.0
    progress: float = 0.0
    rss_bytes: int = 0


class Membership:
    """The gang's state. Feed it with `handle` and, several times a second, `tick`; obey the orders it returns."""

    def __init__(self, size: int, deadlines: Deadlines, now: float) -> None:
        self.phase = Phase.STARTING
        self.troubles: list[Trouble] = []
        self.stop_asked = False
        self._deadlines = deadlines
        self._began = now
        self._ranks = [_Rank(heard=now, progress=now) for _ in range(size)]

    @property
    def ended(self) -> bool:
        """Whether there is nothing left to wait for."""
        return self.phase is Phase.ENDED

    @property
    def results(self) -> list[bytes] | None:
        """What the programs returned, when all of them did."""
        found = [rank.result for rank in self._ranks if rank.result is not None]
        return found if len(found) == len(self._ranks) else None

    def worker(self, rank: int) -> str:
        """Name the worker that `rank` runs on, empty before it is known."""
        return self._ranks[rank].worker

    def unwatched(self) -> list[int]:
        """Return the ranks that no worker has begun to watch."""
        return [number for number, rank in enumerate(self._ranks) if not rank.worker and not rank.gone]

    def missing(self) -> list[int]:
        """Return the ranks that have not arrived."""
        return [number for number, rank in enumerate(self._ranks) if rank.address is None]

    def handle(self, event: Event, now: float) -> list[Order]:
        """Take in what happened."""
        if isinstance(event, StopAsked):
            return self._stop(event, now)
        rank = self._ranks[event.rank]
        rank.heard = now
        match event:
            case Watched():
                rank.worker = event.worker
            case Arrived():
                rank.address, rank.progress = event.address, now
                return self._introduce(now)
            case Beat():
                _note_vitals(rank, event, now)
            case Spoke():
                rank.progress = now
            case Returned():
                rank.result, rank.left, rank.progress = event.result, True, now
            case Complained():
                rank.left = True
                if not event.leaving:
                    return self._trouble(Trouble(event.rank, event.cause, event.text, now, event.details), now)
            case Gone():
                return self._gone(event, now)
        return []

    def tick(self, now: float) -> list[Order]:
        """Judge the waits. Call it only after everything that has arrived was handled."""
        orders = self._judge_silence(now)
        if self.phase is Phase.STARTING and now - self._began > self._deadlines.start_s:
            names = ", ".join(str(rank) for rank in self.missing())
            text = f"rank {names} of {len(self._ranks)} did not arrive within {self._deadlines.start_s:g} s"
            orders += self._trouble(Trouble(-1, Cause.START, text, now), now)
        newest = max(rank.progress for rank in self._ranks)
        if self.phase is Phase.RUNNING and now - newest > self._deadlines.idle_s:
            text = f"no rank has computed or reported anything for {self._deadlines.idle_s:g} s"
            orders += self._trouble(Trouble(-1, Cause.IDLE, text, now), now)
        for number, rank in enumerate(self._ranks):
            if rank.kill_at is not None and now >= rank.kill_at and not rank.gone:
                orders += self._kill(number, now)
        return orders

    def verdict(self) -> Trouble | None:
        """Return the cause of the failure: the earliest, where a killed rank counts as earlier than complaints."""
        return min(self.troubles, key=_blame, default=None)

    def _introduce(self, now: float) -> list[Order]:
        addresses = tuple(rank.address for rank in self._ranks if rank.address is not None)
        if self.phase is not Phase.STARTING or len(addresses) < len(self._ranks):
            return []
        self.phase = Phase.RUNNING
        for rank in self._ranks:
            rank.progress = now
        return [Introduce(addresses)]

    def _stop(self, event: StopAsked, now: float) -> list[Order]:
        if self.ended or (self.stop_asked and not event.now):
            return []
        self.stop_asked = True
        begun = self.phase is not Phase.STARTING
        if self.phase is not Phase.FAILING:
            self.phase = Phase.STOPPING
        orders: list[Order] = []
        for number, rank in enumerate(self._ranks):
            if rank.gone:
                continue
            limit = now + self._deadlines.grace_s if begun and not event.now else now
            rank.kill_at = limit if rank.kill_at is None else min(limit, rank.kill_at)
            orders.append(Tell(number, "stop"))
        self._end_if_all_gone()
        return orders

    def _trouble(self, trouble: Trouble, now: float) -> list[Order]:
        if not self.ended:
            self.troubles.append(trouble)
        if self.phase in (Phase.FAILING, Phase.ENDED):
            return []
        self.phase = Phase.FAILING
        leave_s = 0.0 if trouble.cause is Cause.START else LEAVE_S
        reason = f"rank {trouble.rank}: {trouble.text}" if trouble.rank >= 0 else trouble.text
        orders: list[Order] = []
        for number, rank in enumerate(self._ranks):
            if not rank.gone:
                rank.kill_at = now + leave_s
                orders.append(Tell(number, "abort", reason.splitlines()[0]))
        self._end_if_all_gone()
        return orders

    def _gone(self, event: Gone, now: float) -> list[Order]:
        rank = self._ranks[event.rank]
        if rank.gone:
            return []
        rank.gone = True
        orders: list[Order] = []
        if event.cause is Cause.MEMORY or not (rank.left or rank.killed is not None):
            orders = self._trouble(Trouble(event.rank, event.cause, event.text, now, event.details), now)
        elif event.details and self.troubles:
            self.troubles = [_with_details(trouble, event) for trouble in self.troubles]
        self._end_if_all_gone()
        return orders

    def _judge_silence(self, now: float) -> list[Order]:
        limit = self._deadlines.silence_s
        orders: list[Order] = []
        for number, rank in enumerate(self._ranks):
            if rank.gone or rank.kill_at is not None or not rank.worker:
                continue
            if now - rank.heard > limit:
                text = f"its worker's watcher has been silent for {now - rank.heard:.1f} s"
                orders += self._lose(Trouble(number, Cause.SILENT, text, now), now)
            elif rank.stopped_since is not None and now - rank.stopped_since > limit:
                text = f"its process has been stopped for {now - rank.stopped_since:.1f} s"
                orders += self._lose(Trouble(number, Cause.SILENT, text, now), now)
        return orders

    def _lose(self, trouble: Trouble, now: float) -> list[Order]:
        orders = self._trouble(trouble, now)
        self._ranks[trouble.rank].kill_at = now
        return orders

    def _kill(self, number: int, now: float) -> list[Order]:
        """Order a kill once, and wait for its report only so long."""
        rank = self._ranks[number]
        if rank.killed is None:
            rank.killed = now
            return [Kill(number)]
        if now - rank.killed > (DEAF_S if now - rank.heard > DEAF_S else KILL_S):
            rank.gone = True
            self._end_if_all_gone()
        return []

    def _end_if_all_gone(self) -> None:
        if all(rank.gone for rank in self._ranks):
            self.phase = Phase.ENDED


def _note_vitals(rank: _Rank, event: Beat, now: float) -> None:
    if event.cpu_s > rank.cpu_s + 0.01:
        rank.progress = now
    rank.cpu_s, rank.rss_bytes = max(rank.cpu_s, event.cpu_s), event.rss_bytes
    if event.state in ("stopped", "tracing-stop"):
        rank.stopped_since = now if rank.stopped_since is None else rank.stopped_since
    else:
        rank.stopped_since = None


def _blame(trouble: Trouble) -> tuple[bool, float]:
    certain = trouble.cause in (Cause.KILLED, Cause.MEMORY, Cause.SILENT)
    return trouble.cause is Cause.BLAMED, trouble.at - (HANDICAP_S if certain else 0.0)


def _with_details(trouble: Trouble, event: Gone) -> Trouble:
    if trouble.rank != event.rank:
        return trouble
    return Trouble(trouble.rank, trouble.cause, trouble.text, trouble.at, {**event.details, **trouble.details})
