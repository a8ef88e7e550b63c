"""Which gang gets which workers of a cluster: the book of its gangs, and what one visit changes in it.

No input or output. A gang visits again and again, while it waits and while it runs, and so shows that it lives. Whoever
falls silent is forgotten, and its workers are free. The rules: no worker has two gangs; a gang gets at least `least`
workers at once, or none; gangs start in the order of their arrival, and nobody overtakes; workers that a running gang
asks for go before those who wait while it has fewer than `least`, and after all of them when it has more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

PATIENCE_S = 30.0
"""Without a visit, before a gang is forgotten. A driver may be starved for that long and lose nothing."""
GONE_S = 5.0
"""The same for a driver whose connection to the scheduler is closed, as that of a killed process is at once."""
LOOK_S = 5.0
"""The most that the time between two visits (of any gangs) adds to a silence: when nobody could be heard, because the
scheduler itself was stopped or nobody else was there to look, nobody is taken for silent."""


@dataclass(frozen=True)
class Visit:
    """What a gang says at each visit."""

    key: str
    name: str
    client: str
    """The id of the driver's Dask client."""
    number: int
    """Counts up: an earlier visit that arrives after a later one is not heard."""
    least: int
    most: int
    held: tuple[str, ...] = ()
    """The workers it has and keeps. Those of the book that are not among them are free again."""
    started: bool = False
    """Whether it has been given workers, though it may have lost them all since."""
    wish: int = 0
    """How many more workers a running gang could use."""
    take: bool = False
    """Whether a running gang takes them now; else they are only kept for it."""
    leaving: bool = False


@dataclass(frozen=True)
class Ticket:
    """A gang in the book; tickets stand in the order of arrival."""

    key: str
    name: str
    client: str
    number: int
    least: int
    most: int
    workers: tuple[str, ...] = ()
    started: bool = False
    since: float = 0.0
    wish: int = 0
    silent_s: float = 0.0


@dataclass(frozen=True)
class Book:
    """All gangs of a cluster, and when (on the scheduler's monotonic clock) one visited last."""

    tickets: tuple[Ticket, ...] = ()
    looked: float | None = None

    def find(self, key: str) -> Ticket | None:
        """Return the gang's ticket, if it has one."""
        return next((ticket for ticket in self.tickets if ticket.key == key), None)


@dataclass(frozen=True)
class Sight:
    """What the scheduler sees during a visit."""

    now: float
    takers: tuple[str, ...]
    """Workers that take tasks, the least busy first."""
    others: frozenset[str] = frozenset()
    """Workers that are there, but paused or about to leave: whoever has them keeps them, nobody gets them."""
    clients: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Holder:
    """A gang that has workers."""

    name: str
    workers: int
    held_s: float

    def __str__(self) -> str:
        count = "1 worker" if self.workers == 1 else f"{self.workers} workers"
        return f"{self.name} ({count} for {self.held_s:.0f} s)"


@dataclass(frozen=True)
class Answer:
    """What a gang hears at a visit."""

    workers: tuple[str, ...]
    taken: tuple[str, ...] = ()
    """Workers that it thought to have, and that another gang got after a long silence."""
    ahead: tuple[str, ...] = ()
    holders: tuple[Holder, ...] = ()
    free: int = 0
    there: int = 0
    """Workers of the cluster that take tasks, whoever has them."""


def attend(book: Book, visit: Visit, sight: Sight) -> tuple[Book, Answer]:
    """Hear a visit: note who lives, forget who does not, and grant the visitor what is due to it."""
    known = book.find(visit.key)
    late = known is not None and visit.number <= known.number
    book = _forget(_grow_older(book, sight), visit, sight)
    if not late:
        book = _note(book, visit, sight)
    due = shares(book.tickets, _free(book, sight)).get(visit.key, ())
    ticket = book.find(visit.key)
    if not late and due and ticket is not None and (visit.take or not ticket.started):
        book = _put(book, _grant(ticket, due, sight.now))
    return book, _answer(book, visit, sight)


def shares(tickets: Sequence[Ticket], free: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Divide the free workers among those who want some, by key; the first of `free` go first.

    A share is kept for its gang until it comes for it, so whoever visits sooner takes nothing from those before it.
    """
    left = list(free)
    given: dict[str, tuple[str, ...]] = {ticket.key: () for ticket in tickets}

    def give(ticket: Ticket, count: int) -> None:
        count = max(0, count)
        given[ticket.key] += tuple(left[:count])
        del left[:count]

    running = [ticket for ticket in tickets if ticket.started]
    waiting = [ticket for ticket in tickets if not ticket.started]
    for ticket in running:
        give(ticket, min(ticket.wish, ticket.least - len(ticket.workers)))
    for ticket in waiting:
        if len(left) < ticket.least:
            break
        give(ticket, ticket.most)
    for ticket in running if not waiting else ():
        got = len(given[ticket.key])
        give(ticket, min(ticket.wish - got, ticket.most - len(ticket.workers) - got))
    return given


def _grow_older(book: Book, sight: Sight) -> Book:
    passed = 0.0 if book.looked is None else min(sight.now - book.looked, LOOK_S)
    tickets = tuple(replace(ticket, silent_s=ticket.silent_s + passed) for ticket in book.tickets)
    return Book(tickets, sight.now)


def _forget(book: Book, visit: Visit, sight: Sight) -> Book:
    """Strike out gangs that have fallen silent (the visitor has not), and workers that have left the cluster."""
    there = sight.others.union(sight.takers)
    return replace(
        book,
        tickets=tuple(
            replace(ticket, workers=tuple(worker for worker in ticket.workers if worker in there))
            for ticket in book.tickets
            if ticket.key == visit.key or ticket.silent_s <= (PATIENCE_S if ticket.client in sight.clients else GONE_S)
        ),
    )


def _note(book: Book, visit: Visit, sight: Sight) -> Book:
    """Enter what the visitor says of itself.

    A gang that had been forgotten enters as it is: it goes on with those of its workers that nobody has got meanwhile.
    """
    if visit.leaving:
        return replace(book, tickets=tuple(ticket for ticket in book.tickets if ticket.key != visit.key))
    known = book.find(visit.key)
    there = sight.others.union(sight.takers)
    elsewhere = {worker for ticket in book.tickets if ticket.key != visit.key for worker in ticket.workers}
    mine = tuple(worker for worker in dict.fromkeys(visit.held) if worker in there and worker not in elsewhere)
    ticket = Ticket(
        key=visit.key,
        name=visit.name,
        client=visit.client,
        number=visit.number,
        least=visit.least,
        most=visit.most,
        workers=mine,
        started=visit.started,
        since=known.since if known is not None and known.started else sight.now,
        wish=visit.wish if visit.started else 0,
    )
    return _put(book, ticket)


def _put(book: Book, ticket: Ticket) -> Book:
    """Enter a ticket in its own place, or behind all others."""
    if book.find(ticket.key) is None:
        return replace(book, tickets=(*book.tickets, ticket))
    return replace(book, tickets=tuple(ticket if each.key == ticket.key else each for each in book.tickets))


def _grant(ticket: Ticket, due: tuple[str, ...], now: float) -> Ticket:
    since = ticket.since if ticket.started else now
    wish = max(0, ticket.wish - len(due))
    return replace(ticket, workers=ticket.workers + due, started=True, since=since, wish=wish)


def _free(book: Book, sight: Sight) -> list[str]:
    held = {worker for ticket in book.tickets for worker in ticket.workers}
    return [worker for worker in sight.takers if worker not in held]


def _answer(book: Book, visit: Visit, sight: Sight) -> Answer:
    ticket = book.find(visit.key)
    workers = ticket.workers if ticket is not None else ()
    there = sight.others.union(sight.takers)
    waiting = [each for each in book.tickets if not each.started]
    before = waiting[: waiting.index(ticket)] if ticket in waiting else []
    return Answer(
        workers=workers,
        taken=tuple(worker for worker in visit.held if worker in there and worker not in workers),
        ahead=tuple(each.name for each in before),
        holders=tuple(
            Holder(each.name, len(each.workers), sight.now - each.since)
            for each in book.tickets
            if each.started and each.key != visit.key
        ),
        free=len(_free(book, sight)),
        there=len(sight.takers),
    )
