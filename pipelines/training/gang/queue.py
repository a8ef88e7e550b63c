"""A gang's turn on a cluster: it waits in line for workers, holds them while it runs, and gives them back.

Gangs that fit side by side run side by side. `book` holds the rules and `desk` the way to the scheduler; here are the
waits, each with its limit.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipelines.errors import DeadlineError, InterruptedRunError
from pipelines.training.gang.book import Answer, Holder
from pipelines.training.gang.claim import Claim, DaskClaim, LocalClaim

if TYPE_CHECKING:
    from distributed import Client

logger = logging.getLogger(__name__)

NEXT_S = 0.25
"""Between two visits of the gang that is next."""
WAIT_S = 1.0
"""Between two visits of the others that wait."""


@dataclass(frozen=True)
class Place:
    """Where a gang stands in the line for workers."""

    position: int
    """1 is the next."""
    ahead: tuple[str, ...]
    """The names of the gangs that wait before it."""
    holders: tuple[Holder, ...]
    """The gangs that have workers, with how many and for how long."""
    wanted: int
    """The fewest workers it starts with."""
    free: int
    """Workers that no gang has."""
    there: int
    """Workers that the cluster has."""

    def __str__(self) -> str:
        first = f"place {self.position}" + (f" behind {', '.join(self.ahead)}" if self.ahead else "")
        held = f"; held by {', '.join(map(str, self.holders))}" if self.holders else ""
        return f"{first}; needs {self.wanted} workers, {self.free} of {self.there} are free{held}"


@contextmanager
def turn(
    client: Client | None,
    name: str,
    *,
    ranks: int,
    min_ranks: int,
    max_ranks: int,
    queue_s: float,
    start_s: float,
    stop: threading.Event,
    on_wait: Callable[[Place], None],
) -> Iterator[Claim]:
    """Wait for workers, hold them for one gang, and give them back.

    A gang gets at least `ranks` and at most `max_ranks` workers at once, the least busy ones, after all gangs that came
    earlier have got theirs; when the whole cluster has fewer than `ranks` for `start_s`, `min_ranks` will do. A driver
    that died is forgotten after seconds. One that was starved for more than half a minute may find some of its workers
    given to another gang: they leave the claim with a warning, the others stay.

    Parameters
    ----------
    client : distributed.Client or None
        The cluster; None stands for places in this process, which there are always enough of.
    name : str
        What others read that wait for this gang.
    ranks, min_ranks, max_ranks : int
        Workers to start with: as it should be, the fewest, and the most; and the most to grow to.
    queue_s : float
        The longest wait for other gangs.
    start_s : float
        The longest wait for workers, as the next in line, while the cluster has fewer than `ranks`, and again while it
        has fewer than `min_ranks`; also for a scheduler that does not answer.
    stop : threading.Event
        Ends the wait.
    on_wait : callable ``(Place)``
        Called in this thread when the place in the line, or those who hold workers, are others than before.

    Raises
    ------
    DeadlineError
        The turn, or missing workers, did not come in time; says who holds what.
    InterruptedRunError
        `stop` was set while waiting.
    GangError
        The client is closed, or the scheduler does not have this package.
    """
    if client is None:
        yield LocalClaim(max_ranks)
        return
    claim = DaskClaim(client, name, least=ranks, most=max_ranks)
    try:
        _wait(claim, name, min_ranks, queue_s, start_s, stop, on_wait)
        with claim.renewed():
            yield claim
    finally:
        claim.close()


def _wait(
    claim: DaskClaim,
    name: str,
    min_ranks: int,
    queue_s: float,
    start_s: float,
    stop: threading.Event,
    on_wait: Callable[[Place], None],
) -> None:
    began = answered = time.monotonic()
    lacking: float | None = None
    told: object = None
    while True:
        try:
            answer = claim.visit()
        except OSError as error:
            logger.info("%s asked for workers without an answer: %s", name, error)
            if time.monotonic() - answered > start_s:
                raise _unanswered(name, start_s, error) from error
            if stop.wait(WAIT_S):
                raise InterruptedRunError(f"{name} was stopped while the Dask scheduler did not answer") from error
            continue
        if answer.workers:
            return
        now = answered = time.monotonic()
        place = _place(answer, claim.least)
        lacking = (lacking or now) if place.position == 1 and place.there < claim.least else None
        if stop.is_set():
            raise InterruptedRunError(f"{name} was stopped while it waited for workers ({place})")
        if lacking is not None and now - lacking >= start_s:
            if min_ranks >= claim.least:
                raise _too_few(place, start_s)
            logger.warning("%s starts with fewer workers than it should have: %s", name, place)
            claim.least, lacking = min_ranks, None
            continue
        if lacking is None and now - began >= queue_s:
            raise _too_late(name, place, queue_s)
        seen = (place.position, place.ahead, tuple((each.name, each.workers) for each in place.holders))
        if seen != told:
            told = seen
            logger.info("%s waits for workers: %s", name, place)
            on_wait(place)
        stop.wait(min(NEXT_S if place.position == 1 else WAIT_S, max(queue_s, 0.01)))


def _place(answer: Answer, wanted: int) -> Place:
    return Place(len(answer.ahead) + 1, answer.ahead, answer.holders, wanted, answer.free, answer.there)


def _too_late(name: str, place: Place, queue_s: float) -> DeadlineError:
    return DeadlineError(
        f"{name} did not get its turn on the cluster within {queue_s:g} s",
        found=str(place),
        remedy="Wait for those who hold workers, cancel one, add workers, or use another cluster.",
    )


def _too_few(place: Place, start_s: float) -> DeadlineError:
    return DeadlineError(
        f"workers did not come within {start_s:g} s",
        on="the cluster",
        expected=f"{place.wanted} workers, one per rank",
        found=str(place.there),
        remedy="Ask for fewer ranks, or look at the cluster's log for why workers are missing.",
    )


def _unanswered(name: str, start_s: float, error: OSError) -> DeadlineError:
    return DeadlineError(
        f"{name} could not ask for workers: the Dask scheduler did not answer within {start_s:g} s",
        found=f"{type(error).__name__}: {error}",
        remedy="See whether the scheduler lives and can be reached from here.",
    )
