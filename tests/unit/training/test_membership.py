"""Who is blamed, who is told, who is killed: the gang's state machine under every history."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.training.gang.context import Deadlines
from pipelines.training.gang.events import (
    Arrived,
    Beat,
    Cause,
    Complained,
    Gone,
    Introduce,
    Kill,
    Order,
    Returned,
    Spoke,
    StopAsked,
    Tell,
    Watched,
)
from pipelines.training.gang.membership import KILL_S, LEAVE_S, Membership, Phase

DEADLINES = Deadlines(start_s=30, silence_s=6, idle_s=100, grace_s=20)


def running(ranks: int = 3) -> Membership:
    gang = Membership(ranks, DEADLINES, 0.0)
    for rank in range(ranks):
        gang.handle(Watched(rank, f"worker {rank}"), 1.0)
        gang.handle(Arrived(rank, ("host", rank)), 1.0)
    assert gang.phase is Phase.RUNNING
    return gang


def beat_all(gang: Membership, now: float, ranks: int = 3, *, but: int = -1, cpu_s: float | None = None) -> list[Order]:
    orders: list[Order] = []
    for rank in range(ranks):
        if rank != but:
            orders += gang.handle(Beat(rank, "running", now if cpu_s is None else cpu_s, 1), now)
    return orders


def test_nobody_is_introduced_before_all_have_arrived() -> None:
    gang = Membership(2, DEADLINES, 0.0)
    assert gang.handle(Arrived(1, ("b", 2)), 1.0) == []
    assert gang.handle(Arrived(0, ("a", 1)), 2.0) == [Introduce((("a", 1), ("b", 2)))]


def test_results_come_by_rank_when_all_have_returned_and_gone() -> None:
    gang = running(2)
    for rank in (1, 0):
        gang.handle(Returned(rank, b"%d" % rank), 2.0)
        assert not gang.ended
        gang.handle(Gone(rank, Cause.DIED, "ended with exit code 0"), 2.1)
    assert gang.ended
    assert gang.results == [b"0", b"1"]
    assert gang.verdict() is None


def test_a_rank_that_does_not_arrive_fails_the_start_and_all_are_killed() -> None:
    gang = Membership(2, DEADLINES, 0.0)
    gang.handle(Watched(0, "w"), 1.0)
    gang.handle(Arrived(0, ("a", 1)), 1.0)
    orders: list[Order] = []
    for now in range(2, 33):
        gang.handle(Beat(0, "running", float(now), 1), now)
        orders += gang.tick(now)
    assert Kill(0) in orders
    verdict = gang.verdict()
    assert verdict is not None
    assert verdict.cause is Cause.START
    assert "rank 1 of 2" in verdict.text


def test_the_others_are_told_at_once_and_killed_if_they_do_not_leave() -> None:
    gang = running()
    orders = gang.handle(Complained(1, Cause.RAISED, "ZeroDivisionError\nmore", {}), 5.0)
    assert orders == [Tell(rank, "abort", "rank 1: ZeroDivisionError") for rank in range(3)]
    gang.handle(Gone(1, Cause.DIED, "exit code 1"), 5.1)
    gang.handle(Complained(0, Cause.BLAMED, "rank 1 has left", {}), 5.1)
    gang.handle(Gone(0, Cause.DIED, "exit code 1"), 5.2)
    beat_all(gang, 6.0)
    assert gang.tick(5.0 + LEAVE_S - 0.1) == []
    assert gang.tick(5.0 + LEAVE_S) == [Kill(2)]
    assert gang.tick(5.0 + LEAVE_S + 0.1) == []
    gang.handle(Gone(2, Cause.KILLED, "was killed by SIGKILL"), 8.5)
    assert gang.ended
    verdict = gang.verdict()
    assert verdict is not None
    assert (verdict.rank, verdict.cause) == (1, Cause.RAISED)


def test_a_killed_rank_is_the_cause_even_if_its_peers_complained_first() -> None:
    gang = running()
    gang.handle(Complained(0, Cause.BLAMED, "rank 2 has left", {}), 5.0)
    gang.handle(Complained(1, Cause.RAISED, "a native collective broke", {}), 5.1)
    gang.handle(Gone(2, Cause.KILLED, "was killed by SIGKILL"), 5.3)
    verdict = gang.verdict()
    assert verdict is not None
    assert verdict.rank == 2


def test_a_crash_in_the_wake_of_an_exception_is_not_the_cause() -> None:
    gang = running(2)
    gang.handle(Complained(0, Cause.RAISED, "ValueError", {}), 5.0)
    gang.handle(Gone(1, Cause.DIED, "was killed by SIGABRT"), 5.2)
    verdict = gang.verdict()
    assert verdict is not None
    assert verdict.rank == 0


def test_what_the_watcher_knows_is_added_to_the_complaint() -> None:
    gang = running(1)
    gang.handle(Complained(0, Cause.RAISED, "ValueError", {"traceback": "t"}), 5.0)
    gang.handle(Gone(0, Cause.DIED, "exit code 1", {"log": "last words"}), 5.2)
    verdict = gang.verdict()
    assert verdict is not None
    assert verdict.details == {"traceback": "t", "log": "last words"}


@pytest.mark.parametrize("state", ["stopped", "silent"])
def test_a_stopped_or_silent_rank_is_lost_within_ten_seconds(state: str) -> None:
    gang = running()
    orders: list[Order] = []
    now = 10.0
    beat_all(gang, now)
    while not gang.troubles:
        now += 0.5
        orders += beat_all(gang, now, but=1)
        if state == "stopped":
            orders += gang.handle(Beat(1, "stopped", 10.0, 1), now)
        orders += gang.tick(now)
        assert now < 20
    verdict = gang.verdict()
    assert verdict is not None
    assert (verdict.rank, verdict.cause) == (1, Cause.SILENT)
    assert Tell(0, "abort", f"rank 1: {verdict.text}") in orders
    assert Kill(1) in orders + gang.tick(now)


def test_a_rank_that_waits_is_not_idle_while_another_computes() -> None:
    gang = running()
    for now in range(2, 400):
        gang.handle(Beat(0, "running", float(now), 1), now)
        gang.handle(Beat(1, "sleeping", 1.0, 1), now)
        gang.handle(Beat(2, "sleeping", 1.0, 1), now)
        assert gang.tick(now) == []


def test_a_gang_without_any_progress_ends() -> None:
    gang = running()
    now = 1.0
    while not gang.troubles:
        now += 1
        beat_all(gang, now, cpu_s=1.0)
        gang.tick(now)
        assert now < 110
    verdict = gang.verdict()
    assert verdict is not None
    assert verdict.cause is Cause.IDLE


def test_reports_count_as_progress() -> None:
    gang = running()
    for now in range(2, 400):
        beat_all(gang, now, cpu_s=1.0)
        gang.handle(Spoke(1), now)
        assert gang.tick(now) == []


def test_a_stop_gives_the_ranks_their_grace_and_then_kills() -> None:
    gang = running()
    assert gang.handle(StopAsked(), 5.0) == [Tell(rank, "stop") for rank in range(3)]
    assert gang.handle(StopAsked(), 5.1) == []
    gang.handle(Complained(0, Cause.RAISED, "left when asked", {}, leaving=True), 6.0)
    gang.handle(Gone(0, Cause.DIED, "exit code 0"), 6.1)
    beat_all(gang, 24.0)
    assert gang.tick(24.9) == []
    beat_all(gang, 25.0)
    assert gang.tick(25.0) == [Kill(1), Kill(2)]
    for rank in (1, 2):
        gang.handle(Gone(rank, Cause.KILLED, "was killed by SIGKILL"), 25.3)
    assert gang.ended
    assert gang.results is None
    assert gang.verdict() is None


def test_a_second_stop_kills_at_once() -> None:
    gang = running(2)
    gang.handle(StopAsked(), 5.0)
    gang.handle(StopAsked(now=True), 6.0)
    assert gang.tick(6.0) == [Kill(0), Kill(1)]


def test_results_that_arrive_in_spite_of_a_stop_count() -> None:
    gang = running(1)
    gang.handle(StopAsked(), 5.0)
    gang.handle(Returned(0, b"done"), 5.1)
    gang.handle(Gone(0, Cause.DIED, "exit code 0"), 5.2)
    assert gang.results == [b"done"]


def test_a_rank_beyond_its_memory_is_the_cause_even_though_its_watcher_killed_it() -> None:
    gang = running(2)
    gang.handle(Gone(1, Cause.MEMORY, "held 3 GiB, the limit is 2 GiB"), 5.0)
    verdict = gang.verdict()
    assert verdict is not None
    assert verdict.cause is Cause.MEMORY


def test_a_watcher_that_never_confirms_a_kill_does_not_hold_the_gang_up() -> None:
    gang = running(2)
    gang.handle(Complained(0, Cause.RAISED, "ValueError", {}), 5.0)
    gang.handle(Gone(0, Cause.DIED, "exit code 1"), 5.1)
    now = 5.0
    while not gang.ended:
        now += 0.5
        gang.tick(now)
        assert now < 5.0 + LEAVE_S + KILL_S + 1


EVENTS = st.one_of(
    st.builds(Watched, st.integers(0, 2), st.just("w")),
    st.builds(Arrived, st.integers(0, 2), st.just(("h", 1))),
    st.builds(Beat, st.integers(0, 2), st.sampled_from(["running", "stopped"]), st.floats(0, 100), st.just(1)),
    st.builds(Spoke, st.integers(0, 2)),
    st.builds(Returned, st.integers(0, 2), st.just(b"x")),
    st.builds(
        Complained,
        st.integers(0, 2),
        st.sampled_from([Cause.RAISED, Cause.BLAMED]),
        st.just("text"),
        st.just({}),
        st.booleans(),
    ),
    st.builds(Gone, st.integers(0, 2), st.sampled_from([Cause.DIED, Cause.KILLED, Cause.MEMORY]), st.just("gone")),
    st.builds(StopAsked, st.booleans()),
)


@settings(max_examples=150)
@given(st.lists(st.tuples(EVENTS, st.floats(0, 5)), max_size=40))
def test_every_history_ends_in_results_a_named_failure_or_a_stop(history: list[tuple[Any, float]]) -> None:
    gang, now, killed = Membership(3, DEADLINES, 0.0), 0.0, set()
    for event, pause in history:
        now += pause
        for order in [*gang.handle(event, now), *gang.tick(now)]:
            if isinstance(order, Kill):
                assert order.rank not in killed, "a rank is killed once"
                killed.add(order.rank)
    # Then nothing more is heard of anybody: every wait has a limit.
    silence = now
    while not gang.ended:
        now += 0.5
        gang.tick(now)
        assert now - silence < 30 + 20 + KILL_S + LEAVE_S + 110
    assert gang.results is not None or gang.verdict() is not None or gang.stop_asked
