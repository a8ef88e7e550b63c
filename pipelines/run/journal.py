"""The journal of a run: what happened, in order, on the object store, for anybody to follow.

The driver is the only writer. It publishes events in numbered create-only objects, so that a reader on any machine
sees complete entries or none, and finds the new ones by listing after the last it has seen. Progress is a stream of
states of which only the last matters: it lies in one object beside the journal, so that a long training makes no long
journal.
"""

from __future__ import annotations

import json
import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from pipelines.codec import canonical, from_plain, to_plain
from pipelines.errors import ObjectExistsError, ObjectNotFoundError, StorageError, UsageError
from pipelines.storage import ObjectStore, create_once

logger = logging.getLogger(__name__)

SCHEMA = 1
_FOLDER, _BOARD = "journal", "progress.json"
_DIGITS = 10


@dataclass(frozen=True)
class Event:
    """One thing that happened in a run.

    Attributes
    ----------
    time : float
        Seconds since the epoch.
    kind : str
        ``attempt``, ``cluster``, ``stage`` (started, cached, done, failed), ``progress``, ``notice``, ``training``
        (what happened to it, see `pipelines.run.training_record`), ``trials`` (of a search, as they begin and end) or
        ``end``.
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
    """Appends events to a run's journal, one object per call of `append`.

    A store that fails for a while costs no events: they wait, and the next call publishes them. What was sent without
    an answer is sent again as it was, so that a lost reply is recognised as our own. Safe to call from several threads.
    """

    def __init__(self, store: ObjectStore, folder: str, *, clock: Callable[[], float] = time.time) -> None:
        self._store, self._prefix, self._clock = store, f"{folder}/{_FOLDER}", clock
        self._lock = threading.Lock()
        self._waiting: list[Event] = []
        self._sent: bytes | None = None
        self._next = _last_number(store, self._prefix) + 1

    def append(self, kind: str, stage: str = "", **data: Any) -> None:
        """Add an event and publish it, or keep it for the next call when the store fails.

        Raises
        ------
        ObjectExistsError
            Another driver writes to this journal.
        """
        with self._lock:
            self._waiting.append(Event(self._clock(), kind, stage, data))
        try:
            self.flush()
        except ObjectExistsError:
            raise
        except StorageError as error:
            logger.warning("the journal waits: %s", error)

    def flush(self) -> None:
        """Publish what waits.

        Raises
        ------
        StorageError
            The store failed.
        ObjectExistsError
            Another driver writes to this journal.
        """
        with self._lock:
            while self._sent is not None or self._waiting:
                if self._sent is None:
                    plain = [to_plain(event) for event in self._waiting]
                    self._sent = canonical({"schema": SCHEMA, "events": plain, "write_id": secrets.token_hex(8)})
                    self._waiting = []
                if not create_once(self._store, f"{self._prefix}/{self._next:0{_DIGITS}d}.json", self._sent):
                    raise ObjectExistsError(
                        "another driver writes to this run's journal",
                        on=self._store.url,
                        remedy="Only one driver may own a run; this one stops.",
                    )
                self._next, self._sent = self._next + 1, None


class ProgressBoard:
    """The last progress of every stage, in one object that is written over.

    `post` only remembers, so that a slow store never holds up a training; a thread of the driver calls `publish`.
    """

    def __init__(self, store: ObjectStore, folder: str, attempt: int) -> None:
        self._store, self._key, self._attempt = store, f"{folder}/{_BOARD}", attempt
        self._lock = threading.Lock()
        self._stages: dict[str, Event] = {}
        self._changed = False

    def post(self, stage: str, **data: Any) -> None:
        """Remember a stage's progress."""
        with self._lock:
            self._stages[stage] = Event(time.time(), "progress", stage, data)
            self._changed = True

    def publish(self) -> None:
        """Write what is new. Raises `StorageError`; it is tried again with the next call."""
        with self._lock:
            if not self._changed:
                return
            stages = [to_plain(event) for event in self._stages.values()]
            self._changed = False
        try:
            self._store.replace(self._key, canonical({"schema": SCHEMA, "attempt": self._attempt, "stages": stages}))
        except StorageError:
            with self._lock:
                self._changed = True
            raise


def read_progress(store: ObjectStore, folder: str, attempt: int) -> list[Event]:
    """Read the last published progress of every stage in an attempt."""
    try:
        plain = json.loads(store.get(f"{folder}/{_BOARD}"))
    except ObjectNotFoundError:
        return []
    return [from_plain(Event, event) for event in plain["stages"]] if plain["attempt"] == attempt else []


def read_journal(store: ObjectStore, folder: str, *, after: str | None = None) -> Iterator[tuple[str, Event]]:
    """Yield the published events with the key of their object; `after` a key continues behind it."""
    for info in store.list(f"{folder}/{_FOLDER}", after=after):
        entry = json.loads(store.get(info.key))
        if entry["schema"] > SCHEMA:
            found, remedy = f"schema {entry['schema']}", "Upgrade mutirao here."
            raise UsageError("the journal was written by a later release", on=info.key, found=found, remedy=remedy)
        for plain in entry["events"]:
            yield info.key, from_plain(Event, plain)


def _last_number(store: ObjectStore, prefix: str) -> int:
    last = -1
    for info in store.list(prefix):
        last = int(info.key.rsplit("/", 1)[1].removesuffix(".json"))
    return last
