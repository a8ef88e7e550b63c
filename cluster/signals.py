"""The words between a cluster and what runs on it, as Dask event topics.

A cluster says that machines will be taken away (`PreemptionNotice`); what runs says which workers must not be retired
(`GangHold`) and that it could use more (`CapacityWanted`). Events live in the scheduler: a subscriber that comes later
finds the past ones with `history`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Protocol, TypeVar

logger = logging.getLogger(__name__)

SCHEMA = 1


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
        try:
            signal = from_message(kind, event[1])
        except ValueError as error:
            logger.warning("a message on %s is not understood and ignored: %s", kind.TOPIC, error)
        else:
            handler(signal)

    client.subscribe_topic(kind.TOPIC, receive)
    try:
        yield
    finally:
        client.unsubscribe_topic(kind.TOPIC)


def history(client: Any, kind: type[S]) -> tuple[tuple[float, S], ...]:
    """The signals of `kind` that the scheduler remembers, oldest first, with their times (seconds since the epoch)."""
    return tuple((float(when), from_message(kind, message)) for when, message in client.get_events(kind.TOPIC))


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
