"""No update is staler than the bound, and somebody can always go on, whatever the workers' order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pipelines.training.strategies.clock import Clock


class Workers(RuleBasedStateMachine):
    """Workers that read ahead, update and die in any order, against a list of what happened."""

    bound: int | None = 3

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock(self.bound)
        self.next = 0
        self.read: dict[tuple[int, int], int] = {}
        self.turned: list[tuple[int, int]] = []
        self.commits = 0
        self.worst = 0

    @rule(worker=st.integers(1, 4))
    def ask_to_read(self, worker: int) -> None:
        ticket, self.next = (worker, self.next), self.next + 1
        if self.clock.open(ticket):
            self.read[ticket] = self.commits

    @precondition(lambda self: self.read)
    @rule(data=st.data())
    def ask_to_update(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(sorted(self.read)))
        number = self.clock.turn(ticket)
        if number is not None:
            between = number - self.read.pop(ticket)
            self.worst = max(self.worst, between)
            self.turned.append(ticket)

    @precondition(lambda self: self.turned)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(self.turned))
        self.turned.remove(ticket)
        self.clock.commit(ticket)
        self.commits += 1

    @rule(worker=st.integers(1, 4))
    def die(self, worker: int) -> None:
        self.clock.leave(worker)
        self.read = {ticket: at for ticket, at in self.read.items() if ticket[0] != worker}
        gone = [ticket for ticket in self.turned if ticket[0] == worker]
        self.commits += len(gone)
        self.turned = [ticket for ticket in self.turned if ticket[0] != worker]

    @invariant()
    def nothing_is_staler_than_the_bound(self) -> None:
        assert self.bound is None or self.worst <= self.bound
        assert max(self.clock.histogram, default=0) == self.worst
        assert sum(self.clock.histogram.values()) == self.clock.turns
        assert self.clock.quiet == (not self.turned)

    @invariant()
    def somebody_can_go_on(self) -> None:
        copy = Clock(self.bound, self.clock.turns, self.clock.committed)
        copy._open = dict(self.clock._open)
        if self.read:
            assert copy.slowest is not None
            assert copy.turn(copy.slowest) is not None
        elif not self.turned:
            assert copy.open((9, 9))


def _bounded(bound: int | None) -> Any:
    return type(f"Workers{bound}", (Workers,), {"bound": bound}).TestCase


TestBound0, TestBound1, TestBound3, TestUnbounded = _bounded(0), _bounded(1), _bounded(3), _bounded(None)


def test_under_bound_0_one_update_follows_the_other() -> None:
    clock = Clock(0)
    assert clock.open((1, 1))
    assert not clock.open((2, 1))
    assert clock.turn((1, 1)) == 0
    assert not clock.open((2, 1))
    clock.commit((1, 1))
    assert clock.open((2, 1))


def test_a_fast_worker_waits_for_the_slowest() -> None:
    clock = Clock(2)
    assert clock.open((1, 0))
    for number in range(3):
        assert clock.open((2, number))
        turn = clock.turn((2, number))
        if turn is None:
            break
        clock.commit((2, number))
    assert number == 2
    assert clock.slowest == (1, 0)
    assert clock.turn((1, 0)) == 2
    assert clock.turn((2, 2)) == 3
    assert clock.histogram == {0: 2, 2: 1, 1: 1}


@given(st.lists(st.integers(1, 3), max_size=20))
def test_without_a_bound_nobody_waits(workers: list[int]) -> None:
    clock = Clock(None)
    for number, worker in enumerate(workers):
        assert clock.open((worker, number))
    for number, worker in enumerate(workers):
        assert clock.turn((worker, number)) == number
    assert clock.histogram == dict.fromkeys(range(len(workers)), 1)


def test_a_ticket_that_is_not_open_has_no_turn() -> None:
    clock = Clock(None)
    with pytest.raises(KeyError):
        clock.turn((1, 1))
    assert not clock.is_open((1, 1))
