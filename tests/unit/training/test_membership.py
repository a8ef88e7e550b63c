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
    Committed,
    Complained,
    Enlisted,
    Gone,
    Introduce,
    Kill,
    Left,
    Order,
    Recruit,
    Returned,
    Spoke,
    StopAsked,
    Tell,
    Watched,
)
from pipelines.training.gang.members import Sizes
from pipelines.training.gang.membership import DISBAND_S, KILL_S, LEAVE_S, PATIENCE, Membership, Phase

DEADLINES = Deadlines(start_s=30, silence_s=6, idle_s=100, grace_s=20, rejoin_s=3)


def gathering(sizes: Sizes) -> Membership:
    gang = Membership(sizes, DEADLINES, 0.0)
    assert gang.tick(0.0) == [Recruit(sizes.start)]
    for member in range(sizes.start):
        gang.handle(Enlisted(member), 0.0)
    return gang


def running(ranks: int = 3, *, survive: bool = False, least: int = 1, most: int | None = None) -> Membership:
    gang = gathering(Sizes(ranks, least, most or ranks, survive=True) if survive else Sizes.fixed(ranks))
    for member in range(ranks):
        gang.handle(Watched(member, f"worker {member}"), 1.0)
        gang.handle(Arrived(member, ("host", member)), 1.0)
    assert gang.phase is Phase.RUNNING
    return gang


def beat_all(gang: Membership, now: float, ranks: int = 3, *, but: int = -1, cpu_s: float | None = None) -> list[Order]:
    orders: list[Order] = []
    for rank in range(ranks):
        if rank != but:
            orders += gang.handle(Beat(rank, "running", now if cpu_s is None else cpu_s, 1), now)
    return orders


def test_nobody_is_introduced_before_all_have_arrived() -> None:
    gang = gathering(Sizes.fixed(2))
    assert gang.handle(Arrived(1, ("b", 2)), 1.0) == []
    assert gang.handle(Arrived(0, ("a", 1)), 2.0) == [Introduce(1, (0, 1), (("a", 1), ("b", 2)), ((), ()))]


def test_results_come_by_rank_when_all_have_returned_and_gone() -> None:
    gang = running(2)
    assert gang.handle(Returned(1, b"1"), 2.0) == []
    assert [order for order in gang.handle(Returned(0, b"0"), 2.1) if isinstance(order, Tell)] == [
        Tell(rank, "dismiss", "the work is done") for rank in range(2)
    ]
    for rank in (1, 0):
        assert not gang.ended
        gang.handle(Gone(rank, Cause.DIED, "ended with exit code 0"), 2.2)
    assert gang.ended
    assert gang.results == [b"0", b"1"]
    assert gang.verdict() is None


def test_a_rank_that_does_not_arrive_fails_the_start_and_all_are_killed() -> None:
    gang = gathering(Sizes.fixed(2))
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


def test_one_that_is_lost_before_the_start_is_replaced_in_any_gang() -> None:
    gang = gathering(Sizes.fixed(2))
    gang.handle(Arrived(0, ("a", 1)), 1.0)
    gang.handle(Gone(1, Cause.START, "its worker went away"), 2.0)
    assert gang.tick(2.1) == [Recruit(1)]
    gang.handle(Enlisted(2), 2.1)
    assert gang.handle(Arrived(2, ("c", 3)), 3.0) == [Introduce(1, (0, 2), (("a", 1), ("c", 3)), ((), ()))]
    assert gang.losses == []  # nothing of anyone's work


def test_a_replacement_whose_worker_goes_away_first_is_replaced_and_no_second_loss() -> None:
    gang = running(2, survive=True)
    lose(gang, 1, 5.0, (0,))
    gang.tick(5.1)
    gang.handle(Enlisted(2), 5.1)
    gang.handle(Gone(2, Cause.START, "its worker went away before it began"), 5.2)
    assert Recruit(1) in gang.tick(6.0)
    assert [loss.member for loss in gang.losses] == [1]


def test_one_that_crashes_at_every_start_is_not_tried_for_ever() -> None:
    gang, now, member = gathering(Sizes.fixed(1)), 0.0, 0
    while not gang.ended:
        gang.handle(Gone(member, Cause.DIED, "ended with exit code 1", {"log": "no such module"}), now)
        for order in gang.tick(now := now + 1):
            if isinstance(order, Recruit):
                gang.handle(Enlisted(member := member + 1), now)
        assert now < 10
    verdict = gang.verdict()
    assert verdict is not None
    assert verdict.details["log"] == "no such module"


def test_the_others_are_told_at_once_and_killed_if_they_do_not_leave() -> None:
    gang = running()
    orders = gang.handle(Complained(1, Cause.RAISED, "ZeroDivisionError\nmore", {}), 5.0)
    assert orders == [Tell(rank, "dismiss", "rank 1: ZeroDivisionError") for rank in range(3)]
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
    gang.handle(Left(0, "rank 2 has left", 2), 5.0)
    gang.handle(Complained(1, Cause.RAISED, "a native collective broke", {}), 5.1)
    gang.handle(Gone(2, Cause.KILLED, "was killed by SIGKILL"), 5.3)
    verdict = gang.verdict()
    assert verdict is not None
    assert verdict.rank == 2


def test_the_end_of_one_that_was_dismissed_is_not_taken_for_the_cause() -> None:
    gang = running(2)
    gang.handle(Left(0, "rank 1 has left", 1), 5.0)
    gang.handle(Arrived(0, ("again", 0)), 5.0)
    gang.handle(Gone(0, Cause.DIED, "ended with exit code 0"), 5.1)
    gang.handle(Gone(1, Cause.DIED, "was killed by SIGSEGV"), 5.2)
    verdict = gang.verdict()
    assert gang.ended
    assert verdict is not None
    assert (verdict.rank, verdict.text) == (1, "was killed by SIGSEGV")


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


@pytest.mark.parametrize("survive", [False, True])
@pytest.mark.parametrize("state", ["stopped", "silent"])
def test_a_stopped_or_silent_rank_is_lost_within_ten_seconds(state: str, survive: bool) -> None:
    gang = running(survive=survive)
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
    assert Tell(0, "leave" if survive else "dismiss", f"rank 1: {verdict.text}") in orders
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
    gang = running(2, survive=True)
    gang.handle(Gone(1, Cause.MEMORY, "held 3 GiB, the limit is 2 GiB"), 5.0)
    verdict = gang.verdict()
    assert gang.phase is Phase.FAILING, "it would need as much again"
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


# --- gangs that survive ----------------------------------------------------------------------------------------------


def lose(gang: Membership, member: int, now: float, others: tuple[int, ...]) -> list[Order]:
    """Let `others` notice first, leave and arrive again, as they do; then the watcher tells."""
    orders: list[Order] = []
    for other in others:
        orders += gang.handle(Left(other, "a rank has left", member), now)
        orders += gang.handle(Arrived(other, ("again", other), (other,)), now)
    return orders + gang.handle(Gone(member, Cause.KILLED, "was killed by SIGKILL"), now + 0.2)


def test_survivors_keep_their_ranks_and_a_replacement_comes_behind_them() -> None:
    gang = running(survive=True)
    assert lose(gang, 0, 5.0, (1, 2)) == [
        Tell(0, "leave", "rank 1: a rank has left"),
        Tell(2, "leave", "rank 1: a rank has left"),
    ]
    assert gang.tick(5.3) == [Recruit(1)]
    gang.handle(Enlisted(3), 5.3)
    assert gang.tick(5.5) == []
    assert gang.handle(Arrived(3, ("new", 3)), 6.0) == [
        Introduce(2, (1, 2, 3), (("again", 1), ("again", 2), ("new", 3)), ((1,), (2,), ()))
    ]
    [loss] = gang.losses
    assert (loss.rank, loss.formation, loss.cause) == (0, 1, Cause.KILLED)
    assert gang.waits_s == [1.0]


def test_without_a_replacement_it_goes_on_with_those_who_are_there() -> None:
    gang = running(survive=True)
    lose(gang, 1, 5.0, (0, 2))
    assert gang.tick(5.3) == [Recruit(1)]
    [order] = gang.tick(5.4)
    assert isinstance(order, Introduce)
    assert order.members == (0, 2)


def test_a_replacement_that_is_on_its_way_is_waited_for_so_long_only() -> None:
    gang = running(survive=True)
    lose(gang, 1, 5.0, (0, 2))
    gang.tick(5.3)
    gang.handle(Enlisted(3), 5.3)
    gang.handle(Watched(3, "worker 3"), 5.4)
    assert gang.tick(7.9) == []
    [order] = gang.tick(8.0)
    assert isinstance(order, Introduce)
    assert order.members == (0, 2)
    # It comes after all: the leader is asked for a new formation at its next step.
    assert gang.handle(Arrived(3, ("new", 3)), 9.0) == []
    assert gang.tick(9.1) == [Tell(0, "regroup", "1 more ranks are there")]
    assert gang.tick(9.2) == []
    gang.handle(Left(0, "left to form again"), 9.3)
    gang.handle(Left(2, "left to form again"), 9.3)
    gang.handle(Arrived(0, ("x", 0)), 9.4)
    [order] = gang.handle(Arrived(2, ("x", 2)), 9.4)
    assert isinstance(order, Introduce)
    assert order.members == (0, 2, 3)
    assert len(gang.losses) == 1


def test_fewer_than_it_needs_at_least_are_a_named_failure_after_a_bounded_wait() -> None:
    gang = running(survive=True, least=2)
    lose(gang, 1, 5.0, (0,))
    gang.handle(Gone(2, Cause.KILLED, "its worker was lost"), 5.5)
    now = 6.0
    while not gang.ended:
        now += 1.0
        gang.handle(Beat(0, "sleeping", now, 1), now)
        gang.tick(now)
        if gang.phase is Phase.FAILING:
            gang.handle(Gone(0, Cause.KILLED, "was killed by SIGKILL"), now)
        assert now < 5.0 + DEADLINES.start_s + 3
    verdict = gang.verdict()
    assert verdict is not None
    assert "1 of at least 2 ranks were there 30 s after a loss" in verdict.text


def test_one_that_does_not_leave_is_killed_and_replaced() -> None:
    gang = running(2, survive=True)
    gang.handle(Left(0, "rank 1 did not send its part", 1), 5.0)
    gang.handle(Arrived(0, ("x", 0)), 5.0)
    now, orders = 5.0, list[Order]()
    while Kill(1) not in orders:
        now += 0.5
        beat_all(gang, now, ranks=2)
        orders += gang.tick(now)
        assert now < 5.0 + DISBAND_S + 1
    gang.handle(Gone(1, Cause.KILLED, "was killed by SIGKILL"), now)
    assert [(loss.rank, loss.cause) for loss in gang.losses] == [(1, Cause.SILENT)]


def test_one_whose_peers_lose_sight_of_it_again_and_again_is_replaced() -> None:
    gang, now = running(2, survive=True), 5.0
    orders: list[Order] = []
    while Kill(1) not in orders:
        gang.handle(Left(0, "rank 1 can't be reached", 1), now)
        gang.handle(Left(1, "the gang forms again"), now)
        for member in (0, 1):
            orders += gang.handle(Arrived(member, ("x", member)), now)
        orders += gang.tick(now := now + 0.5)
        assert now < 10
    assert [(loss.rank, loss.cause) for loss in gang.losses] == [(1, Cause.SILENT)]


@pytest.mark.parametrize("steps", [False, True])
def test_a_gang_that_makes_no_step_between_losses_gives_up(steps: bool) -> None:
    gang, now, newest = running(1, survive=True), 5.0, 0
    for turn in range(3 * PATIENCE):
        if steps:
            gang.handle(Committed(newest, turn), now)
        gang.handle(Gone(newest, Cause.KILLED, "was killed by SIGKILL", {"log": "words"}), now)
        for order in gang.tick(now := now + 0.5):
            if isinstance(order, Recruit):
                newest += 1
                gang.handle(Enlisted(newest), now)
        gang.handle(Arrived(newest, ("x", newest)), now)
        if gang.ended:
            break
    assert gang.ended is not steps
    if not steps:
        verdict = gang.verdict()
        assert verdict is not None
        assert f"{PATIENCE + 1} formations in a row broke" in verdict.text
        assert verdict.details == {"log": "words"}


def test_a_loss_after_rank_0_has_returned_takes_nothing_away() -> None:
    gang = running(survive=True)
    gang.handle(Returned(0, b"model"), 5.0)
    gang.handle(Gone(1, Cause.KILLED, "was killed by SIGKILL"), 5.1)
    gang.handle(Returned(2, b"two"), 5.2)
    for member in (0, 2):
        gang.handle(Gone(member, Cause.DIED, "ended with exit code 0"), 5.3)
    assert gang.ended
    assert gang.results == [b"model", b"", b"two"]


def test_those_who_have_returned_work_again_when_rank_0_is_lost() -> None:
    gang = running(2, survive=True)
    gang.handle(Returned(1, b"one"), 5.0)
    assert gang.handle(Gone(0, Cause.KILLED, "was killed by SIGKILL"), 5.1) == [
        Tell(1, "leave", "rank 0: was killed by SIGKILL")
    ]
    gang.handle(Left(1, "the gang forms again"), 5.2)
    gang.handle(Arrived(1, ("x", 1)), 5.2)
    gang.tick(5.3)
    [order] = gang.tick(5.4)
    assert isinstance(order, Introduce)
    assert order.members == (1,)
    gang.handle(Returned(1, b"model"), 6.0)
    assert gang.results == [b"model"]


class History:
    """Members that come, work and are lost as hypothesis says, and an owner that obeys."""

    def __init__(self, sizes: Sizes) -> None:
        self.now = 0.0
        self.gang = Membership(sizes, DEADLINES, self.now)
        self.coming: list[int] = []
        self.there: set[int] = set()
        self.formation: tuple[int, ...] = ()
        self.killed: set[int] = set()
        self.leaving: set[int] = set()
        self.count = 0

    def feed(self, event: Any) -> None:
        self.obey(self.gang.handle(event, self.now))

    def tick(self, seconds: float) -> None:
        self.now += seconds
        for member in sorted(self.there):
            self.feed(Beat(member, "running", self.now, 1))
        self.obey(self.gang.tick(self.now))

    def obey(self, orders: list[Order]) -> None:
        for order in orders:
            match order:
                case Recruit(count):
                    assert 0 < count <= 4
                    for _ in range(count):
                        self.gang.handle(Enlisted(self.count), self.now)
                        self.coming.append(self.count)
                        self.count += 1
                case Introduce(_, members, addresses, holds):
                    assert len(set(members)) == len(members) == len(addresses) == len(holds)
                    assert set(members) <= self.there, "only who is there is introduced"
                    assert not self.killed & set(members)
                    self.formation, self.leaving = members, set()
                case Kill(member):
                    assert member not in self.killed, "a member is killed once"
                    self.killed.add(member)
                case Tell(member, word):
                    if word in ("leave", "regroup"):
                        self.leaving.add(member)

    def bury(self, member: int) -> None:
        self.there.discard(member)
        self.feed(Gone(member, Cause.KILLED, "was killed by SIGKILL"))

    def settle(self) -> None:
        """Everybody does what was asked for."""
        for member in sorted(self.killed & self.there):
            self.bury(member)
        for member in self.coming:
            self.there.add(member)
            self.feed(Watched(member, "w"))
            self.feed(Arrived(member, ("h", member)))
        self.coming = []
        if self.gang.phase in (Phase.FINISHING, Phase.FAILING, Phase.STOPPING):
            for member in sorted(self.there):
                self.bury(member)
        for member in sorted(self.leaving & self.there & set(self.formation)):
            self.leaving.discard(member)
            self.feed(Left(member, "as told"))
            self.feed(Arrived(member, ("h", member)))


ACTS = st.lists(
    st.tuples(st.sampled_from(["lose", "blame", "settle", "step", "tick", "tick", "stop"]), st.integers(0, 5)),
    max_size=60,
)


@settings(max_examples=200)
@given(ACTS, st.integers(1, 4), st.integers(1, 3))
def test_a_gang_that_survives_ends_well_once_nobody_is_lost_any_more(
    acts: list[tuple[str, int]], start: int, least: int
) -> None:
    history = History(Sizes(start, min(least, start), 4, survive=True))
    gang, step = history.gang, 0
    history.tick(0.1)
    for act, number in acts:
        there = sorted(history.there)
        if gang.ended:
            break
        match act:
            case "lose" if there:
                history.bury(there[number % len(there)])
            case "blame" if gang.phase is Phase.RUNNING and set(history.formation) <= history.there:
                member = history.formation[number % len(history.formation)]
                history.feed(Left(member, "lost sight", (number + 1) % len(history.formation)))
                history.feed(Arrived(member, ("h", member)))
            case "settle":
                history.settle()
            case "step" if gang.phase is Phase.RUNNING:
                step += 1
                history.feed(Committed(history.formation[0], step))
            case "stop" if number == 0:
                history.feed(StopAsked())
            case _:
                history.tick(0.4 * number)
    # From here on all do as they are told: a formation stands, or the gang has ended with a reason.
    limit = history.now + 100
    while not gang.ended and not (gang.phase is Phase.RUNNING and len(history.formation) == 4):
        history.settle()
        history.tick(0.5)
        assert history.now < limit
    if not gang.ended:
        for member in history.formation:
            history.feed(Returned(member, b"done"))
        while not gang.ended:
            history.settle()
            history.tick(0.5)
            assert history.now < limit
        assert gang.results == [b"done"] * 4
    assert gang.results is not None or gang.verdict() is not None or gang.stop_asked


EVENTS = st.one_of(
    st.builds(Watched, st.integers(0, 2), st.just("w")),
    st.builds(Arrived, st.integers(0, 2), st.just(("h", 1))),
    st.builds(Beat, st.integers(0, 2), st.sampled_from(["running", "stopped"]), st.floats(0, 100), st.just(1)),
    st.builds(Spoke, st.integers(0, 2)),
    st.builds(Committed, st.integers(0, 2), st.integers(0, 9)),
    st.builds(Left, st.integers(0, 2), st.just("text"), st.sampled_from([None, 0, 1, 7, -1])),
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
@given(st.lists(st.tuples(EVENTS, st.floats(0, 5)), max_size=40), st.booleans())
def test_every_history_ends_in_results_a_named_failure_or_a_stop(
    history: list[tuple[Any, float]], survive: bool
) -> None:
    gang, now, killed = gathering(Sizes(3, 1, 3, survive=survive)), 0.0, set()
    for event, pause in history:
        now += pause
        for order in [*gang.handle(event, now), *gang.tick(now)]:
            if isinstance(order, Kill):
                assert order.member not in killed, "a member is killed once"
                killed.add(order.member)
    # Then nothing more is heard of anybody: every wait has a limit.
    silence = now
    while not gang.ended:
        now += 0.5
        gang.tick(now)
        assert now - silence < 30 + 20 + 2 * (KILL_S + DISBAND_S) + 110
    assert gang.results is not None or gang.verdict() is not None or gang.stop_asked
