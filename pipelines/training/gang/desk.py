"""Where gangs ask for workers: the book of claims, kept in the Dask scheduler.

Every visit is one short call that the scheduler's event loop runs to its end, so visits of any number of drivers never
cross. The scheduler alone judges who has fallen silent, by its own monotonic clock, and sees the workers as they are.

This is the one place that leans on Dask beyond its documented interface: `Scheduler.handlers`, to which a plugin adds
an operation of its own, as Dask's shuffle does. `Client.run_on_scheduler` could do the same, but writes a line into the
scheduler's log at every call, and there is one a second for each gang.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from distributed.diagnostics.plugin import SchedulerPlugin

from pipelines.errors import GangError
from pipelines.training.gang.book import Answer, Book, Holder, Sight, Visit, attend
from pipelines.training.gang.claim import ASK_S

if TYPE_CHECKING:
    from distributed import Client, Scheduler

_NAME = "mutirao-gangs"
_OPERATION = "mutirao_visit"


class Desk(SchedulerPlugin):
    """The plugin that keeps the book: some hundred bytes for each gang, nothing of those that have left."""

    name = _NAME
    idempotent = True  # the book outlives every driver: the first one's registration stays

    def __init__(self) -> None:
        self._book = Book()

    async def start(self, scheduler: Scheduler) -> None:
        """Open the desk (called by Dask in the scheduler's process)."""
        self._scheduler = scheduler
        scheduler.handlers[_OPERATION] = self.visit

    def visit(self, plain: dict[str, Any]) -> dict[str, Any]:
        """Hear one visit; values are plain, as they travel in a message."""
        visit = Visit(**{**plain, "held": tuple(plain["held"])})
        self._book, answer = attend(self._book, visit, _look(self._scheduler))
        return asdict(answer)


def open_desk(client: Client) -> None:
    """Make sure that the cluster's scheduler has a desk.

    Raises
    ------
    GangError
        The scheduler does not have this package, or the client is closed.
    OSError
        The scheduler did not answer.
    """
    _check(client)

    async def register() -> None:
        await client.register_plugin(Desk(), name=_NAME)

    try:
        client.sync(register, callback_timeout=ASK_S)
    except ImportError as error:
        raise GangError(
            "the Dask scheduler can't import what gangs need",
            on=str(client.scheduler.address),
            found=f"{type(error).__name__}: {error}",
            remedy="Start the scheduler in the environment of its workers.",
        ) from error


def ask(client: Client, visit: Visit) -> Answer:
    """Visit the desk.

    Raises
    ------
    GangError
        The client is closed.
    OSError
        The scheduler did not answer (`TimeoutError` after `ASK_S`); it may or may not have heard the visit.
    """
    _check(client)
    operation = getattr(client.scheduler, _OPERATION)
    plain = client.sync(operation, plain=asdict(visit), callback_timeout=ASK_S)
    if plain is None:  # how Dask answers to an operation that it doesn't know: the scheduler was started anew
        open_desk(client)
        plain = client.sync(operation, plain=asdict(visit), callback_timeout=ASK_S)
    holders = tuple(Holder(**each) for each in plain["holders"])
    workers, taken, ahead = (tuple(plain[word]) for word in ("workers", "taken", "ahead"))
    return Answer(workers, taken, ahead, holders, plain["free"], plain["there"])


def _check(client: Client) -> None:
    if client.status in ("closing", "closed"):
        raise GangError(
            "the Dask client is closed, so no workers can be asked for",
            remedy="Keep it open while trainings run; it closes by itself when the scheduler is lost.",
        )


def _look(scheduler: Scheduler) -> Sight:
    """See workers and drivers as they are; a worker is busy by the number of tasks that it was given."""
    running = [state for state in scheduler.workers.values() if state.status.name == "running"]
    running.sort(key=lambda state: (len(state.processing), state.address))
    takers = tuple(state.address for state in running)
    return Sight(
        now=time.monotonic(),
        takers=takers,
        others=frozenset(scheduler.workers).difference(takers),
        clients=frozenset(scheduler.clients),
    )
