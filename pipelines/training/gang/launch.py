"""Where ranks are started: on distinct Dask workers, or as children of the calling process."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from pipelines.errors import DeadlineError
from pipelines.training.gang import process
from pipelines.training.gang.watcher import Launch, Site, address_towards, local_site, watch

if TYPE_CHECKING:
    from distributed import Client


logger = logging.getLogger(__name__)

_END_S = 3.0


class Launcher(Protocol):
    """A place for ranks."""

    @property
    def host(self) -> str:
        """The address of this process that ranks can reach."""
        ...

    def start(self, launches: Sequence[Launch]) -> None:
        """Start a watcher for every launch, each in another place; does not wait for them."""
        ...

    def move(self, ranks: Sequence[int]) -> None:
        """Start the watchers of `ranks`, which have not been heard of, elsewhere if their place is gone."""
        ...

    def trouble(self) -> tuple[int, str] | None:
        """Return the first rank whose watcher could not do its work, and why."""
        ...

    def evidence(self, ranks: Sequence[int]) -> str:
        """Say what is known about ranks that have not arrived."""
        ...

    def close(self) -> None:
        """Forget the watchers; they end by themselves when the coordinator has closed its connections."""
        ...


class LocalLauncher:
    """Watchers as threads of this process."""

    host = "127.0.0.1"

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self._trouble: list[tuple[int, str]] = []

    def start(self, launches: Sequence[Launch]) -> None:
        """See `Launcher.start`."""
        for launch in launches:
            name = f"watcher of rank {launch.rank}"
            thread = threading.Thread(target=self._watch, args=(launch,), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def move(self, ranks: Sequence[int]) -> None:
        """See `Launcher.move`: this place is not gone."""

    def trouble(self) -> tuple[int, str] | None:
        """See `Launcher.trouble`."""
        return self._trouble[0] if self._trouble else None

    def evidence(self, ranks: Sequence[int]) -> str:
        """See `Launcher.evidence`."""
        return ""

    def close(self) -> None:
        """See `Launcher.close`; waits for the threads, which are about to end."""
        for thread in self._threads:
            thread.join(timeout=30)

    def _watch(self, launch: Launch) -> None:
        try:
            watch(launch, local_site())
        except Exception as error:  # noqa: BLE001 - a thread's boundary: the coordinator tells it
            self._trouble.append((launch.rank, f"{type(error).__name__}: {error}"))


class DaskLauncher:
    """Watchers as tasks, each pinned to another worker."""

    def __init__(self, client: Client, ranks: int, *, start_s: float) -> None:
        self._client = client
        self._launches: list[Launch] = []
        self._futures: list[Any] = []
        self.workers = _choose_workers(client, ranks, start_s)
        scheduler = urlsplit(client.scheduler.address).hostname
        self.host = address_towards(scheduler) if scheduler and "://" in client.scheduler.address else "127.0.0.1"

    def start(self, launches: Sequence[Launch]) -> None:
        """See `Launcher.start`."""
        self._launches = list(launches)
        self._futures = [self._submit(launch) for launch in launches]

    def move(self, ranks: Sequence[int]) -> None:
        """See `Launcher.move`: a task pinned to a worker that is gone would wait for ever."""
        there = self._client.scheduler_info(n_workers=-1)["workers"]
        for rank in ranks:
            free = sorted(set(there) - set(self.workers))
            if self.workers[rank] in there or not free:
                continue
            logger.info("rank %d goes to %s: %s is gone", rank, free[0], self.workers[rank])
            self._futures[rank].cancel()
            self.workers[rank] = free[0]
            self._futures[rank] = self._submit(self._launches[rank])

    def _submit(self, launch: Launch) -> Any:
        return self._client.submit(
            _watch_on_worker,
            launch.plain(),
            key=f"mutirao-rank-{launch.gang}-{launch.rank}-{uuid.uuid4().hex[:8]}",
            workers=[self.workers[launch.rank]],
            allow_other_workers=False,
            retries=0,
            pure=False,
        )

    def trouble(self) -> tuple[int, str] | None:
        """See `Launcher.trouble`."""
        for rank, future in enumerate(self._futures):
            if future.status == "error":
                error = future.exception(timeout=5)
                return rank, f"{type(error).__name__}: {error}"
            if future.status in ("lost", "cancelled"):
                return rank, f"its task was {future.status} by the Dask scheduler"
        return None

    def evidence(self, ranks: Sequence[int]) -> str:
        """See `Launcher.evidence`."""
        there = self._client.scheduler_info(n_workers=-1)["workers"]
        busy = self._client.processing()
        said = []
        for rank in ranks:
            worker = self.workers[rank]
            if worker not in there:
                said.append(f"rank {rank}: its worker {worker} is gone")
            else:
                others = [str(key) for key in busy.get(worker, ()) if not str(key).startswith("mutirao-rank-")]
                said.append(f"rank {rank}: worker {worker} " + (f"is busy with {others[:3]}" if others else "is idle"))
        return "; ".join(said)

    def close(self) -> None:
        """See `Launcher.close`."""
        from distributed import wait

        with suppress(TimeoutError, CancelledError):  # one that can't be started any more never ends
            wait(self._futures, timeout=_END_S)
        self._client.cancel(self._futures, force=True)
        self._futures.clear()


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


def _watch_on_worker(plain: dict[str, Any]) -> None:
    """Watch a rank from a Dask task."""
    from distributed import get_worker

    worker = get_worker()
    process.give_back_memory()
    host = urlsplit(worker.address).hostname if worker.address.startswith(("tcp://", "tls://")) else "127.0.0.1"
    watch(
        Launch.of(plain),
        Site(
            f"{worker.name} at {worker.address}",
            host or "127.0.0.1",
            Path(worker.local_directory),
            process.own_rss_bytes(),
        ),
    )
