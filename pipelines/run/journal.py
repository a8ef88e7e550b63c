"""The journal of a run: what happened, in order, on the object store, for anybody to follow.

The driver is the only writer. It gathers events and publishes them in numbered create-only objects, so that a reader on
any machine sees complete entries or none, and finds the new ones by listing after the last it has seen.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from pipelines.codec import canonical, from_plain, to_plain
from pipelines.errors import ObjectExistsError, StorageError
from pipelines.storage import ObjectStore, create_once

_FOLDER = "journal"
_DIGITS = 10


@dataclass(frozen=True)
class Event:
    """One thing that happened in a run.

    Attributes
    ----------
    time : float
        Seconds since the epoch.
    kind : str
        ``attempt``, ``cluster``, ``stage`` (started, cached, done, failed), ``progress``, ``notice`` or ``end``.
    stage : str
        The stage it belongs to, or empty.
    data : dict
        What the kind calls for, JSON-able.
    """

    time: float
    kind: str
    stage: str = ""
    data: dict[str, Any] = field(default_factory=dict)


class JournalWriter:
    """Appends events to a run's journal, at most one object per `interval_s`.

    Progress is a stream of states of which only the last matters: an unwritten one is replaced by the next of its
    stage. All other events are kept. `flush` publishes at once. A store that fails for a while costs no events: they
    wait for the next flush. Safe to call from several threads.
    """

    def __init__(
        self,
        store: ObjectStore,
        folder: str,
        *,
        interval_s: float = 1.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store, self._prefix, self._interval_s, self._clock = store, f"{folder}/{_FOLDER}", interval_s, clock
        self._lock = threading.Lock()
        self._pending: list[Event] = []
        self._last_flush = float("-inf")
        self._next = _last_number(store, self._prefix) + 1

    def append(self, kind: str, stage: str = "", *, now: bool = False, **data: Any) -> None:
        """Add an event; publishes when the interval has passed, or at once if `now`."""
        event = Event(self._clock(), kind, stage, data)
        with self._lock:
            if kind == "progress":
                self._pending = [e for e in self._pending if (e.kind, e.stage) != (kind, stage)]
            self._pending.append(event)
            if not now and event.time - self._last_flush < self._interval_s:
                return
        self.flush(must_succeed=False)

    def flush(self, *, must_succeed: bool = True) -> None:
        """Publish what is pending.

        Raises
        ------
        StorageError
            The store failed, or another driver writes to this journal, and `must_succeed`.
        """
        with self._lock:
            if not self._pending:
                return
            self._last_flush = self._clock()
            body = canonical({"schema": 1, "events": [to_plain(event) for event in self._pending]})
            try:
                if not create_once(self._store, f"{self._prefix}/{self._next:0{_DIGITS}d}.json", body):
                    raise ObjectExistsError(
                        "another driver writes to this run's journal",
                        on=self._store.url,
                        remedy="Only one driver may own a run; this one stops.",
                    )
            except ObjectExistsError:
                raise
            except StorageError:
                if must_succeed:
                    raise
                return
            self._next += 1
            self._pending = []


def read_journal(store: ObjectStore, folder: str, *, after: str | None = None) -> Iterator[tuple[str, Event]]:
    """Yield the published events with the key of their object; `after` a key continues behind it."""
    for info in store.list(f"{folder}/{_FOLDER}", after=after):
        for plain in json.loads(store.get(info.key))["events"]:
            yield info.key, from_plain(Event, plain)


def _last_number(store: ObjectStore, prefix: str) -> int:
    last = -1
    for info in store.list(prefix):
        last = int(info.key.rsplit("/", 1)[1].removesuffix(".json"))
    return last
