"""The words between a cluster and what runs on it, as Dask event topics.

A cluster says that machines will be taken away (`PreemptionNotice`); what runs says which workers must not be retired
(`GangHold`) and that it could use more (`CapacityWanted`). Events live in the scheduler: a subscriber that comes later
finds the past ones with `history`.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Protocol, TypeVar

from cluster.errors import ClusterDeadlineError

logger = logging.getLogger(__name__)

SCHEMA = 1
SUBSCRIBE_LIMIT_S = 20.0


class Signal(Protocol):
    """A frozen payload with its topic."""

    TOPIC: ClassVar[str]
    __dataclass_fields__: ClassVar[dict[str, Any]]


@dataclass(frozen=True)
class PreemptionNotice:
    """These workers will be gone at `deadline` (seconds since the epoch): checkpoint, then leave them."""

    TOPIC: ClassVar[str] = "mutirao-preemption-notice"

    workers: tuple[str, ...]
    deadline: float
    reason: str


@dataclass(frozen=True)
class GangHold:
    """`gang` needs these workers together: don't retire them before `until` (seconds since the epoch).

    A hold is renewed by sending it again and let go by sending it with no workers; a gang that died holds nothing for
    long.
    """

    TOPIC: ClassVar[str] = "mutirao-gang-hold"

    gang: str
    workers: tuple[str, ...]
    until: float


@dataclass(frozen=True)
class CapacityWanted:
    """`by` could use so many workers of this size in all; the wish ends at `until` (seconds since the epoch)."""

    TOPIC: ClassVar[str] = "mutirao-capacity-wanted"

    by: str
    workers: int
    memory_bytes: int
    threads: int
    gpus: int
    until: float


S = TypeVar("S", bound=Signal)


class Logs(Protocol):
    """Whoever can log Dask events: a `distributed.Client`, or a `distributed.Worker` inside of a task."""

    def log_event(self, topic: str, msg: Any) -> Any: ...


def publish(sender: Logs, signal: Signal) -> None:
    """Send a signal to every present subscriber and into the topic's history."""
    sender.log_event(signal.TOPIC, to_message(signal))


@contextmanager
def subscribe(client: Any, kind: type[S], handler: Callable[[S], None]) -> Iterator[None]:
    """Call `handler` with each signal of `kind`, on the client's event loop, until the context ends.

    The handler must return at once (set a flag, put into a queue). A client has one handler for each topic.
    """

    def receive(event: tuple[float, Any]) -> None:
        signal = _understood(kind, event[1])
        if signal is not None:
            handler(signal)

    client.subscribe_topic(kind.TOPIC, receive)
    try:
        _await_subscription(client)
        yield
    finally:
        client.unsubscribe_topic(kind.TOPIC)


def _await_subscription(client: Any) -> None:
    """Wait until the scheduler has taken the subscription.

    It travels in a stream, events in calls that may overtake it. A second subscription behind it in the same stream is
    there when it is answered, and so is the first.
    """
    topic, answered = f"mutirao-subscribed-{uuid.uuid4().hex}", threading.Event()
    client.subscribe_topic(topic, lambda _event: answered.set())
    try:
        deadline = time.monotonic() + SUBSCRIBE_LIMIT_S
        while not answered.is_set():
            if time.monotonic() > deadline:
                raise ClusterDeadlineError("the scheduler takes no subscription", expected=f"{SUBSCRIBE_LIMIT_S:g} s")
            client.log_event(topic, "")
            answered.wait(0.02)
    finally:
        client.unsubscribe_topic(topic)


def history(client: Any, kind: type[S]) -> tuple[tuple[float, S], ...]:
    """The signals of `kind` that the scheduler remembers, oldest first, with their times (seconds since the epoch)."""
    events = ((float(when), _understood(kind, message)) for when, message in client.get_events(kind.TOPIC))
    return tuple((when, signal) for when, signal in events if signal is not None)


def _understood(kind: type[S], message: Any) -> S | None:
    try:
        return from_message(kind, message)
    except ValueError as error:
        logger.warning("a message on %s is not understood and ignored: %s", kind.TOPIC, error)
        return None


def to_message(signal: Signal) -> dict[str, Any]:
    """Plain values for the wire."""
    return {"schema": SCHEMA, **asdict(signal)}


def from_message(kind: type[S], message: Any) -> S:
    """Rebuild a signal. Raises ValueError when the message is not one of `kind`.

    Fields that a newer sender added are ignored.
    """
    if not isinstance(message, Mapping) or not isinstance(message.get("schema"), int):
        raise ValueError(f"expected a mapping with a schema number; found {message!r}")
    names = [field.name for field in fields(kind)]
    missing = [name for name in names if name not in message]
    if missing:
        raise ValueError(f"{kind.__name__} lacks {', '.join(missing)}")
    # The wire (msgpack) may turn tuples into lists.
    values = {name: message[name] for name in names}
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})
