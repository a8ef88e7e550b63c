"""Where members are started: on distinct Dask workers, or as children of the calling process."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from pipelines.training.gang import process
from pipelines.training.gang.claim import Claim
from pipelines.training.gang.watcher import Launch, Site, address_towards, local_site, watch

if TYPE_CHECKING:
    from distributed import Client


logger = logging.getLogger(__name__)

_END_S = 3.0


class Launcher(Protocol):
    """Places for members."""

    @property
    def host(self) -> str:
        """The address of this process that members can reach."""
        ...

    def start(self, count: int, launch: Callable[[], Launch]) -> list[tuple[int, str]]:
        """Start watchers of up to `count` new members, each in another place; returns their numbers and places.

        `launch` makes the next member's. Does not wait for them.
        """
        ...

    def lost(self, unwatched: Sequence[int]) -> list[tuple[int, str]]:
        """Return members whose watchers could not work, and those of `unwatched` whose places are gone; and why."""
        ...

    def forget(self, member: int, *, suspect: bool) -> None:
        """Note that a member has ended; a `suspect` place is not used again before its watcher has ended too."""
        ...

    def evidence(self, members: Sequence[int]) -> str:
        """Say what is known about members that have not arrived."""
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

    def start(self, count: int, launch: Callable[[], Launch]) -> list[tuple[int, str]]:
        """See `Launcher.start`."""
        launches = [launch() for _ in range(count)]
        for each in launches:
            name = f"watcher of member {each.member}"
            thread = threading.Thread(target=self._watch, args=(each,), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        return [(each.member, "") for each in launches]

    def lost(self, unwatched: Sequence[int]) -> list[tuple[int, str]]:
        """See `Launcher.lost`: this place is not gone."""
        found, self._trouble = self._trouble, []
        return found

    def forget(self, member: int, *, suspect: bool) -> None:
        """See `Launcher.forget`: there is room for any number."""

    def evidence(self, members: Sequence[int]) -> str:
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
            self._trouble.append((launch.member, f"{type(error).__name__}: {error}"))


class DaskLauncher:
    """Watchers as tasks, each pinned to another of the workers that the gang has claimed."""

    def __init__(self, client: Client, claim: Claim) -> None:
        self._client, self._claim = client, claim
        self._places: dict[int, str] = {}
        self._futures: dict[int, Any] = {}
        self._suspects: dict[str, Any] = {}
        self.host = host_towards(client)

    def start(self, count: int, launch: Callable[[], Launch]) -> list[tuple[int, str]]:
        """See `Launcher.start`."""
        free = self._free()
        if len(free) < count:
            free += self._claim.more(count - len(free))
        begun = []
        for place in free[:count]:
            each = launch()
            self._places[each.member], self._futures[each.member] = place, self._submit(each, place)
            begun.append((each.member, place))
        return begun

    def _free(self) -> list[str]:
        """Claimed workers without a member; those that are gone are given back."""
        there = self._client.scheduler_info(n_workers=-1)["workers"]
        gone = [place for place in self._claim.workers if place not in there]
        if gone:
            self._claim.give_back(gone)
        self._suspects = {place: future for place, future in self._suspects.items() if not future.done()}
        taken = {*self._places.values(), *self._suspects}
        return [place for place in self._claim.workers if place not in taken]

    def _submit(self, launch: Launch, place: str) -> Any:
        return self._client.submit(
            _watch_on_worker,
            launch.plain(),
            key=f"mutirao-rank-{launch.gang}-{launch.member}-{uuid.uuid4().hex[:8]}",
            workers=[place],
            allow_other_workers=False,
            retries=0,
            pure=False,
        )

    def lost(self, unwatched: Sequence[int]) -> list[tuple[int, str]]:
        """See `Launcher.lost`: a task pinned to a worker that is gone would wait for ever."""
        found = []
        for member, future in self._futures.items():
            if future.status == "error":
                error = future.exception(timeout=5)
                found.append((member, f"its watcher could not work: {type(error).__name__}: {error}"))
            elif future.status in ("lost", "cancelled"):
                found.append((member, f"its task was {future.status} by the Dask scheduler"))
        waiting = [member for member in unwatched if member in self._places]
        if waiting:
            there = self._client.scheduler_info(n_workers=-1)["workers"]
            gone = [member for member in waiting if self._places[member] not in there]
            found += [(member, f"its worker {self._places[member]} went away before it began") for member in gone]
        return found

    def forget(self, member: int, *, suspect: bool) -> None:
        """See `Launcher.forget`."""
        place, future = self._places.pop(member, None), self._futures.pop(member, None)
        if place is None or future is None:
            return
        if suspect and not future.done():
            self._suspects[place] = future
        elif not future.done():
            self._client.cancel([future], force=True)

    def evidence(self, members: Sequence[int]) -> str:
        """See `Launcher.evidence`."""
        there = self._client.scheduler_info(n_workers=-1)["workers"]
        busy = self._client.processing()
        said = []
        for member in members:
            worker = self._places.get(member)
            if worker is None:
                continue
            if worker not in there:
                said.append(f"rank {member}: its worker {worker} is gone")
            else:
                others = [str(key) for key in busy.get(worker, ()) if not str(key).startswith("mutirao-rank-")]
                said.append(
                    f"rank {member}: worker {worker} " + (f"is busy with {others[:3]}" if others else "is idle")
                )
        return "; ".join(said)

    def close(self) -> None:
        """See `Launcher.close`."""
        from distributed import wait

        futures = [*self._futures.values(), *self._suspects.values()]
        with suppress(TimeoutError, CancelledError):  # one that can't be started any more never ends
            wait(futures, timeout=_END_S)
        self._client.cancel(futures, force=True)
        self._futures.clear()
        self._suspects.clear()


def host_towards(client: Client) -> str:
    """Return the address of this process that a cluster's workers can reach."""
    scheduler = urlsplit(client.scheduler.address).hostname
    return address_towards(scheduler) if scheduler and "://" in client.scheduler.address else "127.0.0.1"


def _watch_on_worker(plain: dict[str, Any]) -> None:
    """Watch a rank from a Dask task."""
    from distributed import get_worker, secede

    worker = get_worker()
    if plain["shares_worker"]:
        secede()
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
