"""Whose turn it is on a cluster: gangs run one after the other, so that none holds half of what another needs."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pipelines.errors import DeadlineError, InterruptedRunError

if TYPE_CHECKING:
    from distributed import Client

logger = logging.getLogger(__name__)

_LOCK = "mutirao-gang"


class Claim:
    """Temporary."""

    def __init__(self, client: Any, ranks: int, start_s: float) -> None:
        self._client = client
        self.workers: tuple[str, ...] = tuple(_choose_workers(client, ranks, start_s)) if client is not None else ()

    def more(self, count: int) -> list[str]:
        there = sorted(self._client.scheduler_info(n_workers=-1)["workers"])
        found = [each for each in there if each not in self.workers][:count]
        self.workers += tuple(found)
        return found

    def give_back(self, addresses: Any) -> None:
        self.workers = tuple(each for each in self.workers if each not in addresses)


def _choose_workers(client: Client, ranks: int, start_s: float) -> list[str]:
    """Pick distinct workers, the least busy first; waits for them at most `start_s`."""
    end = time.monotonic() + start_s
    while True:
        there = sorted(client.scheduler_info(n_workers=-1)["workers"])
        if len(there) >= ranks:
            busy = client.processing()
            return sorted(there, key=lambda worker: (len(busy.get(worker, ())), worker))[:ranks]
        if time.monotonic() > end:
            raise DeadlineError(
                f"workers did not come within {start_s:g} s",
                on="the cluster",
                expected=f"{ranks} workers, one per rank",
                found=str(len(there)),
                remedy="Ask for fewer ranks, or look at the cluster's log for why workers are missing.",
            )
        time.sleep(0.2)


@contextmanager
def turn(
    client: Client | None,
    name: str,
    *,
    ranks: int,
    min_ranks: int,
    queue_s: float,
    start_s: float,
    stop: threading.Event,
    on_wait: Callable[[Any], None],
) -> Iterator[Claim]:
    """Hold the cluster for one gang; waits at most `queue_s` for the one that has it.

    The lock lives on the scheduler and lapses when its holder's process dies (Dask's lease timeout, 30 s by default).

    Raises
    ------
    DeadlineError
        Another gang did not end in time; names it.
    InterruptedRunError
        `stop` was set while waiting.
    """
    if client is None:
        yield Claim(None, ranks, start_s)
        return
    from distributed import Lock

    with client.as_current():
        lock = Lock(_LOCK)
        _wait(client, lock, name, queue_s, stop, on_wait)
        try:
            client.set_metadata([_LOCK], {"name": name, "since": time.time()})
            yield Claim(client, ranks, start_s)
        finally:
            lock.release()


def _wait(
    client: Client, lock: Any, name: str, queue_s: float, stop: threading.Event, on_wait: Callable[[str], None]
) -> None:
    end = time.monotonic() + queue_s
    told = ""
    while not lock.acquire(timeout=min(1.0, max(queue_s, 0.01))):
        holder = _holder(client)
        if stop.is_set():
            raise InterruptedRunError(f"{name} was stopped while it waited for {holder} on the same cluster")
        if time.monotonic() > end:
            raise DeadlineError(
                f"{name} did not get its turn on the cluster within {queue_s:g} s",
                found=f"{holder} still has it",
                remedy="Wait for it, cancel it, or use another cluster.",
            )
        if holder != told:
            told = holder
            logger.info("%s waits for its turn on the cluster: %s has it", name, holder)
            on_wait(holder)


def _holder(client: Client) -> str:
    held = client.get_metadata([_LOCK], default=None)
    if not held:
        return "another training"
    return f"{held['name']} (for {time.time() - held['since']:.0f} s)"
