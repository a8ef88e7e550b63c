"""How do threads read ahead, in order, without ever holding more bytes than allowed?

Units are numbered. Threads take them in order, each producing its unit's items; the caller gets all items in the order
of the units. The *head* is the unit that the caller reads from. The others together leave it a reserve, so that it can
always go on, and they, which wait for it, too.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


class _Stopped(Exception):
    """The caller has gone."""


@dataclass
class _Unit(Generic[T]):
    items: deque[tuple[int, T]] = field(default_factory=deque)
    used: int = 0
    done: bool = False
    error: BaseException | None = None


class Allowance:
    """What one unit may hold; `take` waits, `give` returns."""

    def __init__(self, pool: _Pool[T], unit: int) -> None:
        self._pool, self._unit = pool, unit

    def take(self, amount: int) -> None:
        """Wait until `amount` bytes may be held."""
        self._pool.take(self._unit, amount)

    def give(self, amount: int) -> None:
        """Return `amount` bytes; a negative amount charges for what turned out larger, without waiting."""
        self._pool.give(self._unit, amount)


Produce = Callable[[int, Allowance], Iterator[tuple[int, T]]]


def prefetch(units: int, produce: Produce[T], *, threads: int, cap: int, reserve: int) -> Iterator[T]:
    """Yield the items of all units in order, produced ahead by threads.

    Parameters
    ----------
    units : int
    produce : callable
        ``produce(unit, allowance)`` yields pairs of bytes and item, after taking the bytes from the allowance. They are
        given back when the caller asks for the item after. Its generator is closed in the thread that ran it.
    threads : int ≥ 0
        With 0 everything runs in the caller's thread.
    cap : int
        Most bytes held by all units together. Passed only where the head can't go on otherwise.
    reserve : int
        The part of it that the units after the head leave to it: what one unit needs at once.
    """
    pool: _Pool[T] = _Pool(units, produce, cap, reserve)
    if threads == 0:
        yield from pool.inline()
        return
    workers = [
        threading.Thread(target=pool.work, name=f"read-ahead-{i}", daemon=True) for i in range(min(threads, units))
    ]
    try:
        for worker in workers:
            worker.start()
        yield from pool.items()
    finally:
        pool.stop()
        for worker in workers:
            if worker.ident is not None:
                worker.join()


class _Pool(Generic[T]):
    def __init__(self, units: int, produce: Produce[T], cap: int, reserve: int) -> None:
        self._produce, self._cap, self._shared = produce, cap, max(0, cap - reserve)
        self._changed = threading.Condition()
        self._units = units
        self._next = self._head = 0
        self._used = 0
        self._stopped = False
        self._active: dict[int, _Unit[T]] = {}

    # --- the caller's side ---

    def items(self) -> Iterator[T]:
        for head in range(self._units):
            with self._changed:
                self._head = head
                self._changed.notify_all()
            while (item := self._get(head)) is not None:
                cost, value = item
                yield value
                del value, item
                self.give(head, cost)

    def inline(self) -> Iterator[T]:
        for head in range(self._units):
            self._head = head
            self._active = {head: _Unit()}
            for cost, value in self._produce(head, Allowance(self, head)):
                yield value
                self.give(head, cost)

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _get(self, head: int) -> tuple[int, T] | None:
        with self._changed:
            while True:
                unit = self._active.get(head)
                if unit is not None and unit.items:
                    item = unit.items.popleft()
                    self._changed.notify_all()
                    return item
                if unit is not None and unit.done:
                    del self._active[head]
                    if unit.error is not None:
                        raise unit.error
                    return None
                self._changed.wait()

    # --- the threads' side ---

    def work(self) -> None:
        while (number := self._claim()) is not None:
            unit = self._active[number]
            produced = self._produce(number, Allowance(self, number))
            try:
                for item in produced:
                    with self._changed:
                        unit.items.append(item)
                        self._changed.notify_all()
                    del item
            except _Stopped:
                return
            except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread, at its place in the order
                unit.error = error
            finally:
                close = getattr(produced, "close", None)
                if close is not None:
                    close()
            with self._changed:
                unit.done = True
                self._changed.notify_all()

    def take(self, unit: int, amount: int) -> None:
        with self._changed:
            while not self._may_take(unit, amount):
                if self._stopped:
                    raise _Stopped
                self._changed.wait()
            self._used += amount
            self._active[unit].used += amount

    def give(self, unit: int, amount: int) -> None:
        with self._changed:
            self._used -= amount
            self._active[unit].used -= amount
            self._changed.notify_all()

    def _may_take(self, unit: int, amount: int) -> bool:
        if unit == self._head:
            return self._used + amount <= self._cap or not self._active[unit].items
        head = self._active.get(self._head)
        ahead = self._used - (head.used if head is not None else 0)
        return ahead + amount <= self._shared and self._used + amount <= self._cap

    def _claim(self) -> int | None:
        with self._changed:
            if self._stopped or self._next == self._units:
                return None
            self._active[self._next] = _Unit()
            self._next += 1
            return self._next - 1
