"""Who stores a snapshot that lies on a rank's disk? A thread: the rank's updates go on, for which others may wait."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

from pipelines.training.gang import RankContext

_KEPT = "uploads of served checkpoints"
T = TypeVar("T")


class Uploads(Generic[T]):
    """One piece of work at a time, each with what is to be known when it is done; owned by one thread."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "checkpoint")
        self._work: Future[T] | None = None

    @classmethod
    def of(cls, context: RankContext) -> Uploads[T]:
        """Return this process's own: what was begun in one formation may end in the next."""
        held = context.kept.values.get(_KEPT)
        if not isinstance(held, cls):
            held = cls()
            context.kept.values[_KEPT] = held
            context.kept.resources.callback(held._pool.shutdown)
        return held

    @property
    def busy(self) -> bool:
        """Whether there is work whose end was not taken."""
        return self._work is not None

    def begin(self, work: Callable[[], T]) -> None:
        """Begin; not while it is `busy`."""
        assert self._work is None
        self._work = self._pool.submit(work)

    def take(self, *, wait: bool = False) -> T | None:
        """Return what the work gave, or None when it is not done, or there is none; raises what it raised."""
        if self._work is None or not (wait or self._work.done()):
            return None
        work, self._work = self._work, None
        return work.result()
