"""The workers that a gang holds while it runs; its driver keeps them by telling the scheduler that it lives."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Protocol

from pipelines.errors import GangError
from pipelines.training.gang.book import Answer, Visit

if TYPE_CHECKING:
    from distributed import Client

logger = logging.getLogger(__name__)

RENEW_S = 3.0
"""Between two visits of a gang that runs: a tenth of the silence after which it is forgotten."""
ASK_S = 10.0
"""How long one call of the scheduler may take before it counts as unanswered."""
WISH_S = 10.0
"""How long free workers are kept for a running gang after it has asked for them in vain; it may ask again."""


class Claim(Protocol):
    """The workers of one gang, while it runs. Its methods may be called from any thread."""

    @property
    def workers(self) -> tuple[str, ...]:
        """The addresses of the workers that it has: distinct, and no other gang's. Those that left drop out."""
        ...

    def more(self, count: int) -> list[str]:
        """Ask for up to `count` further workers, replacements or growth; returns those that it got, at once.

        Below the fewest that it started with, a gang goes before all that wait, and free workers are kept for it for
        `WISH_S` seconds; above, it gets some only when nobody waits, and never more than its `ranks`.
        """
        ...

    def give_back(self, addresses: Collection[str]) -> None:
        """Let others have these workers; takes back what was asked for in vain."""
        ...


class LocalClaim:
    """Places in the calling process."""

    def __init__(self, ranks: int) -> None:
        self._most = ranks
        self._places = {f"here-{number}" for number in range(ranks)}

    @property
    def workers(self) -> tuple[str, ...]:
        """See `Claim.workers`."""
        return tuple(sorted(self._places, key=lambda place: int(place.rpartition("-")[2])))

    def more(self, count: int) -> list[str]:
        """See `Claim.more`."""
        unused = [place for place in (f"here-{number}" for number in range(self._most)) if place not in self._places]
        self._places.update(unused[:count])
        return unused[:count]

    def give_back(self, addresses: Collection[str]) -> None:
        """See `Claim.give_back`."""
        self._places.difference_update(addresses)


class DaskClaim:
    """The driver's end of its visits to the scheduler's desk; one at a time, whichever thread makes it.

    A visit whose answer was lost does no harm: each says all that the gang has, and the next one sets the book right.
    """

    def __init__(self, client: Client, name: str, *, least: int, most: int) -> None:
        self._client, self._name, self.least, self._most = client, name, least, most
        self._key = uuid.uuid4().hex[:12]
        self._number = 0
        self._workers: tuple[str, ...] = ()
        self._opened = self._started = False
        self._wish, self._wished = 0, 0.0
        self._visiting = threading.RLock()
        self._over = threading.Event()

    @property
    def workers(self) -> tuple[str, ...]:
        """See `Claim.workers`."""
        return self._workers

    def more(self, count: int) -> list[str]:
        """See `Claim.more`."""
        with self._visiting:
            before = self._workers
            self._wish, self._wished = max(0, count), time.monotonic()
            try:
                self.visit(take=True)
            except OSError as error:
                logger.warning("%s asked for %d more workers without an answer: %s", self._name, count, error)
            got = [worker for worker in self._workers if worker not in before]
            self._wish = max(0, self._wish - len(got))
            return got

    def give_back(self, addresses: Collection[str]) -> None:
        """See `Claim.give_back`."""
        with self._visiting:
            self._workers = tuple(worker for worker in self._workers if worker not in addresses)
            self._wish = 0
            with suppress(OSError, GangError):  # the next visit says it again
                self.visit()

    def visit(self, *, take: bool = False, leaving: bool = False) -> Answer:
        """Say what the gang has and wants, and take over what the scheduler says."""
        from pipelines.training.gang.desk import ask, open_desk  # Dask: not needed by gangs of one machine

        with self._visiting:
            if not self._opened:
                open_desk(self._client)
                self._opened = True
            self._number += 1
            keeps_wish = time.monotonic() - self._wished < WISH_S
            held = self._workers
            answer = ask(
                self._client,
                Visit(
                    key=self._key,
                    name=self._name,
                    client=self._client.id,
                    number=self._number,
                    least=self.least,
                    most=self._most,
                    held=held,
                    started=self._started,
                    wish=self._wish if keeps_wish else 0,
                    take=take,
                    leaving=leaving,
                ),
            )
            if answer.taken and not leaving:
                logger.warning("%s was not heard for long, and has lost %s to others", self._name, answer.taken)
            self._workers = answer.workers
            self._started = self._started or bool(answer.workers)
            return answer

    @contextmanager
    def renewed(self) -> Iterator[None]:
        """Visit now and then from a thread of its own, so that the gang is not forgotten while its driver computes."""
        thread = threading.Thread(target=self._renew, name=f"claim of {self._name}", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join(timeout=3 * ASK_S)  # a visit ends in time by itself

    def close(self) -> None:
        """Give everything back. If the scheduler can't be told now, silence tells it."""
        if self._opened:
            with suppress(OSError, GangError):
                self.visit(leaving=True)

    def _renew(self) -> None:
        while not self._over.wait(RENEW_S):
            try:
                self.visit()
            except OSError as error:
                logger.warning("%s could not renew its claim on workers: %s", self._name, error)
            except Exception:  # a thread's boundary
                logger.exception("%s can't renew its claim on workers any more", self._name)
                return
