"""Threads read ahead in order, never hold more than allowed, and never wait for each other for ever."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.data.prefetch import Allowance, prefetch


class Meter:
    """What is held, and the most that ever was."""

    def __init__(self) -> None:
        self.lock, self.held, self.most = threading.Lock(), 0, 0

    def add(self, amount: int) -> None:
        with self.lock:
            self.held += amount
            self.most = max(self.most, self.held)


def producer(costs: list[list[int]], meter: Meter):  # type: ignore[no-untyped-def]
    def produce(unit: int, allowance: Allowance) -> Iterator[tuple[int, tuple[int, int]]]:
        for number, cost in enumerate(costs[unit]):
            allowance.take(cost)
            meter.add(cost)
            yield cost, (unit, number)

    return produce


@given(st.lists(st.lists(st.integers(1, 10), max_size=6), max_size=12), st.integers(0, 5), st.integers(10, 40))
@settings(max_examples=60)
def test_items_come_in_order_and_the_cap_holds(costs: list[list[int]], threads: int, cap: int) -> None:
    meter = Meter()
    given = []
    previous = 0
    for unit, number in prefetch(len(costs), producer(costs, meter), threads=threads, cap=cap, reserve=10):
        meter.add(-previous)
        previous = costs[unit][number]
        given.append((unit, number))
    assert given == [(unit, number) for unit, items in enumerate(costs) for number in range(len(items))]
    # The meter notes an item's release a moment after the pool does, hence one item more.
    assert meter.most <= cap + 10


def test_the_head_goes_on_when_a_single_item_is_larger_than_the_cap() -> None:
    meter = Meter()
    items = prefetch(4, producer([[50, 50]] * 4, meter), threads=3, cap=10, reserve=10)
    assert len(list(items)) == 8
    assert meter.most <= 400


def test_an_error_comes_at_its_place_in_the_order_and_ends_the_threads() -> None:
    def produce(unit: int, allowance: Allowance) -> Iterator[tuple[int, int]]:
        if unit == 2:
            raise ValueError("unit 2")
        for number in range(3):
            allowance.take(1)
            yield 1, 10 * unit + number

    before = threading.active_count()
    given: list[int] = []
    with pytest.raises(ValueError, match="unit 2"):
        given.extend(prefetch(5, produce, threads=4, cap=100, reserve=1))
    assert given == [0, 1, 2, 10, 11, 12]
    assert threading.active_count() == before


def test_leaving_early_closes_the_generators_in_their_threads() -> None:
    closed: list[str] = []

    def produce(unit: int, allowance: Allowance) -> Iterator[tuple[int, int]]:
        try:
            while True:
                allowance.take(1)
                yield 1, unit
        finally:
            closed.append(threading.current_thread().name)

    before = threading.active_count()
    with closing(prefetch(3, produce, threads=2, cap=20, reserve=2)) as items:
        next(items)
        time.sleep(0.05)
    assert len(closed) == 2
    assert all(name.startswith("read-ahead") for name in closed)
    assert threading.active_count() == before
