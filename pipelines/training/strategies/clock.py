"""May this worker read, may it update? Bounded staleness as a pure state machine.

An update's staleness is the number of updates committed between its worker's read of the weights and itself. A worker
opens a *ticket* when it reads, and asks for a *turn* when its gradient is ready; its update is *committed* when all
servers have it. With C updates committed at the read and T turns given so far, an update that gets the next turn is at
most T - C stale (turns given but not committed may have been seen by the read, and count all the same).

The bound k turns a ticket into a deadline: its turn must come before turn number C + k + 1. A turn is given only if all
other tickets can still meet theirs one after the other, earliest deadline first; a ticket is opened only if it can meet
its own behind all others. So the earliest deadline can always be served, and whoever holds it is who the rest wait for.
Under k = 0 that is one update after the other. Without a bound nothing waits, and staleness is only counted.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TypeAlias

Ticket: TypeAlias = tuple[int, int]
"""A worker, and its number for the batch."""


@dataclass
class Clock:
    """Tickets, turns and what became of them.

    Parameters
    ----------
    staleness : int or None
        The bound k; None: unbounded.
    """

    staleness: int | None
    turns: int = 0
    committed: int = 0
    histogram: Counter[int] = field(default_factory=Counter)
    """Updates by their staleness."""
    _open: dict[Ticket, int] = field(default_factory=dict)
    _unfinished: set[Ticket] = field(default_factory=set)

    @property
    def quiet(self) -> bool:
        """Whether every update that was given its turn is committed."""
        return not self._unfinished

    @property
    def slowest(self) -> Ticket | None:
        """The ticket that all others wait for; failing that, an update that is not committed yet."""
        return min(self._open, key=lambda ticket: self._open[ticket], default=min(self._unfinished, default=None))

    def is_open(self, ticket: Ticket) -> bool:
        """Whether a worker has read and not updated yet."""
        return ticket in self._open

    def open(self, ticket: Ticket) -> bool:
        """Let a worker read, if that can be bounded; False: ask again after the next `turn` or `commit`."""
        if self.staleness is not None and self.turns + len(self._open) > self.committed + self.staleness:
            return False
        self._open[ticket] = self.committed
        return True

    def close(self, ticket: Ticket) -> None:
        """Take back a ticket that will not be used."""
        del self._open[ticket]

    def turn(self, ticket: Ticket) -> int | None:
        """Give the next turn to an open ticket, and return its number; None: ask again."""
        if self.staleness is not None:
            others = sorted(read for each, read in self._open.items() if each != ticket)
            if any(self.turns + 1 + at > read + self.staleness for at, read in enumerate(others)):
                return None
        self.histogram[self.turns - self._open.pop(ticket)] += 1
        self._unfinished.add(ticket)
        self.turns += 1
        return self.turns - 1

    def commit(self, ticket: Ticket) -> None:
        """All servers have the update."""
        self._unfinished.remove(ticket)
        self.committed += 1

    def leave(self, worker: int) -> None:
        """Forget a worker; what it was about to update counts as committed."""
        for ticket in [each for each in self._open if each[0] == worker]:
            del self._open[ticket]
        for ticket in [each for each in self._unfinished if each[0] == worker]:
            self.commit(ticket)
