"""Every part of every lane is dealt once an epoch, whoever is slow, comes or goes."""

from __future__ import annotations

import json
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.training.strategies.asynchronous.course import Course, Unit


def run(course: Course, workers: int, rng: random.Random, *, faults: bool = False) -> list[tuple[int, Unit]]:
    """Let workers of any speed work to the end, with what was under way of some of them lost on the way."""
    done: list[tuple[int, Unit]] = []
    under_way: dict[int, Unit] = {}
    for _ in range(10_000):
        if course.epoch == course.epochs:
            return done
        worker = rng.randrange(workers)
        if faults and rng.random() < 0.05:
            course.drop(worker)
            under_way.pop(worker, None)
        elif worker in under_way:
            unit = under_way.pop(worker)
            course.done(worker, unit)
            done.append((worker, unit))
        elif (unit := course.next(worker)) is not None:
            assert unit.epoch in (course.epoch, course.epoch + 1)
            under_way[worker] = unit
        else:
            assert under_way, "somebody has something to do until all is done"
    raise AssertionError("the course does not end")


PARTS = st.lists(st.integers(0, 6), min_size=1, max_size=8).filter(any)


@given(PARTS, st.integers(1, 3), st.integers(1, 4), st.integers(0, 1000), st.booleans())
def test_every_part_is_done_once_in_every_epoch(
    parts: list[int], epochs: int, workers: int, seed: int, faults: bool
) -> None:
    rng = random.Random(seed)
    lanes = dict(enumerate(parts))
    course = Course(lanes, epochs, {lane: rng.randrange(workers) for lane in lanes})
    done = Counter(unit for _, unit in run(course, workers, rng, faults=faults))
    assert done == Counter(
        Unit(epoch, lane, part, count)
        for epoch in range(epochs)
        for lane, count in lanes.items()
        for part in range(count)
    )


@given(PARTS, st.integers(1, 3), st.integers(0, 1000), st.integers(0, 40))
def test_a_course_goes_on_from_any_state(parts: list[int], epochs: int, seed: int, stop: int) -> None:
    rng = random.Random(seed)
    lanes = dict(enumerate(parts))
    course = Course(lanes, epochs, dict.fromkeys(lanes, 0))
    done: list[Unit] = []
    under_way: dict[int, Unit] = {}
    for _ in range(stop):
        worker = rng.randrange(2)
        if worker in under_way:
            done.append(under_way.pop(worker))
            course.done(worker, done[-1])
        elif (unit := course.next(worker)) is not None:
            under_way[worker] = unit
    again = Course(lanes, epochs, dict.fromkeys(lanes, 1))
    again.restore(json.loads(json.dumps(course.state())))
    done += [unit for _, unit in run(again, 3, rng)]
    assert max(Counter(done).values()) == 1
    assert len(done) == epochs * sum(parts)


def test_a_workers_own_lanes_take_turns() -> None:
    course = Course({0: 3, 1: 3}, 1, {0: 0, 1: 0})
    found = [course.next(0) for _ in range(6)]
    assert [unit.lane for unit in found if unit] == [0, 1, 0, 1, 0, 1]


@pytest.mark.parametrize("pace", [2, 3, 5])
def test_a_slow_worker_gets_fewer(pace: int) -> None:
    course, counts = Course(dict.fromkeys(range(16), 10), 4, {lane: lane % 2 for lane in range(16)}), [0, 0]
    free_at, held = [0, 0], [course.next(0), course.next(1)]
    free_at = [1, pace]
    for _ in range(100_000):
        if course.epoch == course.epochs:
            break
        worker = min((0, 1), key=lambda each: free_at[each])
        unit = held[worker]
        if unit is not None:
            course.done(worker, unit)
            counts[worker] += 1
        held[worker] = course.next(worker)
        free_at[worker] += pace if worker else 1
    assert sum(counts) == 4 * 160
    assert counts[0] / counts[1] == pytest.approx(pace, rel=0.2)
