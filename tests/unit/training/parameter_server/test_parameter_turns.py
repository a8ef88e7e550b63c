"""Questions wait their turn, a pause holds updates back, and who waits too long is told for whom."""

from __future__ import annotations

import pytest

from pipelines.training.strategies.clock import Clock
from pipelines.training.strategies.parameter_server.frames import TURN, Kind
from pipelines.training.strategies.parameter_server.turns import Question, Turns


def ask(turns: Turns, client: int, kind: Kind, number: int, since: float = 0.0) -> None:
    turns.ask(Question(client, kind, number, since))


def answered(turns: Turns) -> list[tuple[int, Kind]]:
    return [(question.client, question.kind) for question, _ in turns.settle()]


def test_a_turn_allows_the_reading_that_waits_for_it() -> None:
    turns = Turns(Clock(1))
    for number in range(3):
        ask(turns, 1 + number, Kind.OPEN, 0)
    assert answered(turns) == [(1, Kind.OPEN), (2, Kind.OPEN)]
    ask(turns, 2, Kind.TURN, 0)
    ask(turns, 1, Kind.TURN, 0)
    found = list(turns.settle())
    assert [TURN.unpack(answer)[0] for _, answer in found] == [0, 1]
    assert answered(turns) == []
    turns.clock.commit((2, 0))
    assert answered(turns) == [(3, Kind.OPEN)]


def test_a_pause_begins_when_all_is_committed_and_holds_updates_back() -> None:
    turns = Turns(Clock(None))
    for client in (1, 2):
        ask(turns, client, Kind.OPEN, 0)
    answered(turns)
    ask(turns, 1, Kind.TURN, 0)
    assert answered(turns) == [(1, Kind.TURN)]
    ask(turns, 3, Kind.PAUSE, 0)
    ask(turns, 4, Kind.PAUSE, 0)
    ask(turns, 2, Kind.TURN, 0)
    assert answered(turns) == []
    turns.clock.commit((1, 0))
    assert answered(turns) == [(3, Kind.PAUSE)]
    turns.resume(2)
    assert answered(turns) == []
    told = [why for _, why in turns.give_up(9.0, 5.0)]
    assert told == ["waited 5 s for the others: worker 3 has paused all updates"] * 2
    turns.leave(3)
    ask(turns, 2, Kind.TURN, 0)
    assert answered(turns) == [(2, Kind.TURN)]


def test_who_waits_too_long_is_told_for_whom() -> None:
    turns = Turns(Clock(0))
    ask(turns, 7, Kind.OPEN, 0)
    answered(turns)
    ask(turns, 8, Kind.OPEN, 0, since=1.0)
    ask(turns, 9, Kind.OPEN, 0, since=3.0)
    assert list(turns.give_up(5.5, 4.0)) == [
        (Question(8, Kind.OPEN, 0, 1.0), "waited 4 s for the others: worker 7 does not finish its batch")
    ]
    turns.leave(7)
    assert answered(turns) == [(9, Kind.OPEN)]


def test_a_turn_without_a_ticket_is_refused() -> None:
    with pytest.raises(KeyError):
        ask(Turns(Clock(None)), 1, Kind.TURN, 4)
