"""Who gets which workers: the rules under every history, and a gang's wait in line with a real scheduler."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import pytest
from distributed import Client, Event, LocalCluster
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pipelines.errors import DeadlineError, GangError, InterruptedRunError
from pipelines.training.gang.book import GONE_S, LOOK_S, PATIENCE_S, Answer, Book, Sight, Visit, attend, shares
from pipelines.training.gang.claim import RENEW_S, Claim
from pipelines.training.gang.queue import Place, turn


@dataclass
class Driver:
    """What the driver of a gang believes."""

    key: str
    least: int
    most: int
    held: tuple[str, ...] = ()
    started: bool = False
    wish: int = 0
    number: int = 0
    last: Visit | None = None

    def says(self, **words: Any) -> Visit:
        self.number += 1
        self.last = Visit(
            self.key,
            f"gang {self.key}",
            f"client {self.key}",
            self.number,
            self.least,
            self.most,
            self.held,
            self.started,
            self.wish,
            **words,
        )
        return self.last

    def hears(self, answer: Answer) -> None:
        self.held = answer.workers
        self.started = self.started or bool(answer.workers)


class Town:
    """A scheduler in virtual time, with workers w1, w2, … and drivers that are connected until they are cut."""

    def __init__(self, workers: int) -> None:
        self.book = Book()
        self.now = 100.0
        self.takers = [f"w{number}" for number in range(1, workers + 1)]
        self.paused: set[str] = set()
        self.cut: set[str] = set()
        self.clients: set[str] = set()

    def sight(self) -> Sight:
        return Sight(self.now, tuple(self.takers), frozenset(self.paused), frozenset(self.clients - self.cut))

    def visit(self, driver: Driver, *, lost: bool = False, **words: Any) -> Answer:
        self.clients.add(f"client {driver.key}")
        self.book, answer = attend(self.book, driver.says(**words), self.sight())
        if not lost:
            driver.hears(answer)
        return answer

    def free(self) -> list[str]:
        held = {worker for ticket in self.book.tickets for worker in ticket.workers}
        return [worker for worker in self.takers if worker not in held]


def test_gangs_that_fit_run_side_by_side_and_the_next_one_waits() -> None:
    town, (a, b, c) = Town(4), (Driver(key, 2, 2) for key in "abc")
    assert town.visit(a).workers == ("w1", "w2")
    assert town.visit(b).workers == ("w3", "w4")
    answer = town.visit(c)
    assert (answer.workers, answer.ahead, answer.free, answer.there) == ((), (), 0, 4)
    assert [(holder.name, holder.workers) for holder in answer.holders] == [("gang a", 2), ("gang b", 2)]
    town.visit(a, leaving=True)
    assert town.visit(c).workers == ("w1", "w2")


def test_a_small_gang_does_not_overtake_a_large_one() -> None:
    town, running, large, small = Town(4), Driver("a", 3, 3), Driver("b", 2, 2), Driver("c", 1, 1)
    town.visit(running)
    town.visit(large)
    answer = town.visit(small)
    assert (answer.workers, answer.ahead, answer.free) == ((), ("gang b",), 1)


def test_whoever_asks_sooner_takes_nothing_from_those_before_it() -> None:
    town, first, second, third = Town(4), Driver("a", 4, 4), Driver("b", 2, 3), Driver("c", 1, 1)
    for driver in (first, second, third):
        town.visit(driver)
    town.visit(first, leaving=True)
    assert town.visit(third).workers == ("w4",)
    assert town.visit(second).workers == ("w1", "w2", "w3")


def test_a_replacement_goes_before_those_who_wait_and_growth_after_them() -> None:
    town, running, waiting = Town(3), Driver("a", 2, 4), Driver("b", 2, 2)
    town.visit(running)
    town.visit(waiting)
    assert running.held == ("w1", "w2", "w3")
    town.takers = ["w1", "w4", "w5"]
    running.wish = 3
    town.visit(running, take=True)
    assert running.held == ("w1", "w4")
    running.wish = 1
    assert town.visit(running, take=True).free == 1
    town.visit(waiting, leaving=True)
    town.visit(running, take=True)
    assert running.held == ("w1", "w4", "w5")


def test_free_workers_are_kept_for_a_running_gang_that_has_asked_in_vain() -> None:
    town, running, waiting = Town(2), Driver("a", 2, 2), Driver("b", 1, 1)
    town.visit(running)
    town.takers = ["w1"]
    running.wish = 1
    town.visit(running, take=True)
    town.takers = ["w1", "w3"]
    assert town.visit(waiting).workers == ()
    assert town.visit(running).workers == ("w1",), "a renewal takes nothing: nobody would hand it on"
    town.visit(running, take=True)
    assert running.held == ("w1", "w3")


def test_a_paused_worker_is_kept_by_its_gang_and_given_to_nobody() -> None:
    town, a, b = Town(2), Driver("a", 1, 1), Driver("b", 1, 1)
    town.visit(a)
    town.takers, town.paused = [], {"w1", "w2"}
    assert town.visit(a).workers == ("w1",)
    assert town.visit(b).workers == ()


def test_workers_that_left_the_cluster_are_nobodys() -> None:
    town, running, waiting = Town(2), Driver("a", 2, 2), Driver("b", 2, 2)
    town.visit(running)
    town.takers = ["w2", "w3"]
    assert [holder.workers for holder in town.visit(waiting).holders] == [1]
    assert town.visit(running).workers == ("w2",)


def run_until(town: Town, end: float, *drivers: Driver) -> None:
    while town.now < end:
        town.now += 1.0
        for driver in drivers:
            town.visit(driver)


def test_a_silent_gang_is_forgotten_after_its_patience_and_sooner_when_its_connection_is_gone() -> None:
    for cut, patience in ((False, PATIENCE_S), (True, GONE_S)):
        town, silent, waiting = Town(2), Driver("a", 2, 2), Driver("b", 2, 2)
        town.visit(silent)
        town.cut = {"client a"} if cut else set()
        run_until(town, town.now + patience, waiting)
        assert waiting.held == ()
        run_until(town, town.now + 1, waiting)
        assert waiting.held == ("w1", "w2")


def test_a_scheduler_that_stood_still_takes_nobody_for_silent() -> None:
    town, running, waiting = Town(2), Driver("a", 2, 2), Driver("b", 2, 2)
    town.visit(running)
    town.visit(waiting)
    town.now += 3600
    town.visit(waiting)
    assert waiting.held == ()
    assert town.visit(running).workers == ("w1", "w2")


def test_a_gang_that_was_forgotten_goes_on_with_what_nobody_took() -> None:
    town, starved, next_one = Town(3), Driver("a", 3, 3), Driver("b", 1, 1)
    town.visit(starved)
    run_until(town, town.now + PATIENCE_S + 1, next_one)
    assert next_one.held == ("w1",)
    answer = town.visit(starved)
    assert (answer.workers, answer.taken) == (("w2", "w3"), ("w1",))
    assert town.visit(starved).taken == ()


def test_a_visit_that_comes_late_changes_nothing() -> None:
    town, gang = Town(3), Driver("a", 1, 3)
    town.visit(gang)
    old = gang.last
    assert old is not None
    gang.held = ("w1",)
    town.visit(gang)
    before = town.book.tickets
    town.book, _ = attend(town.book, replace(old, leaving=True), town.sight())
    assert town.book.tickets == before


class Histories(RuleBasedStateMachine):
    """Gangs arrive, ask, lose answers, starve, end and die, while workers come and go."""

    def __init__(self) -> None:
        super().__init__()
        self.town = Town(0)
        self.drivers: dict[str, Driver] = {}
        self.born = 0
        self.made = 0

    @initialize(workers=st.integers(0, 6))
    def begin(self, workers: int) -> None:
        self.town = Town(workers)
        self.made = workers

    def visit(self, driver: Driver, **words: Any) -> None:
        town, was = self.town, driver.started
        order = [ticket.key for ticket in town.book.tickets]
        town.visit(driver, **words)
        if driver.started and not was:
            assert driver.least <= len(driver.held) <= driver.most
            due = shares(town.book.tickets, town.free())
            for key in order[: order.index(driver.key)] if driver.key in order else order:
                ticket = town.book.find(key)
                if ticket is not None and not ticket.started:
                    assert len(due[key]) >= ticket.least, f"{driver.key} overtook {key} to its harm"

    def pick(self, index: int) -> Driver | None:
        return list(self.drivers.values())[index % len(self.drivers)] if self.drivers else None

    @rule(least=st.integers(1, 4), extra=st.integers(0, 3), lost=st.booleans())
    def arrive(self, least: int, extra: int, lost: bool) -> None:
        self.born += 1
        driver = self.drivers[f"{self.born}"] = Driver(f"{self.born}", least, least + extra)
        self.visit(driver, lost=lost)

    @rule(index=st.integers(0, 20), lost=st.booleans())
    def come_by(self, index: int, lost: bool) -> None:
        if driver := self.pick(index):
            self.visit(driver, lost=lost)

    @rule(index=st.integers(0, 20), wish=st.integers(0, 4), lost=st.booleans())
    def ask_for_more(self, index: int, wish: int, lost: bool) -> None:
        driver = self.pick(index)
        if driver is None or not driver.started:
            return
        had, driver.wish = driver.held, wish
        waiting = [ticket for ticket in self.town.book.tickets if not ticket.started]
        self.visit(driver, take=True, lost=lost)
        if not lost:
            assert len(set(driver.held) - set(had)) <= wish
            assert len(driver.held) <= driver.most
            if waiting and len(driver.held) > driver.least:
                assert set(driver.held) <= set(had), "grew while others waited"
            driver.wish = max(0, wish - len(set(driver.held) - set(had)))

    @rule(index=st.integers(0, 20), count=st.integers(0, 3))
    def give_back(self, index: int, count: int) -> None:
        if driver := self.pick(index):
            driver.held = driver.held[count:]
            self.visit(driver)

    @rule(index=st.integers(0, 20))
    def end(self, index: int) -> None:
        if driver := self.pick(index):
            del self.drivers[driver.key]
            self.visit(driver, leaving=True)

    @rule(index=st.integers(0, 20), cut=st.booleans())
    def die(self, index: int, cut: bool) -> None:
        if driver := self.pick(index):
            del self.drivers[driver.key]
            self.town.cut |= {f"client {driver.key}"} if cut else set()

    @rule(index=st.integers(0, 20))
    def old_words_arrive(self, index: int) -> None:
        driver = self.pick(index)
        if driver is not None and driver.last is not None:
            self.town.book, _ = attend(self.town.book, driver.last, self.town.sight())

    @rule(count=st.integers(1, 3))
    def workers_come(self, count: int) -> None:
        self.town.takers += [f"w{self.made + number}" for number in range(1, count + 1)]
        self.made += count

    @rule(index=st.integers(0, 20))
    def a_worker_leaves(self, index: int) -> None:
        if self.town.takers:
            del self.town.takers[index % len(self.town.takers)]

    @rule(starved=st.integers(0, 20), seconds=st.integers(0, int(PATIENCE_S)))
    def time_passes(self, starved: int, seconds: int) -> None:
        """Pass the time, in which all but one driver visit as they do; that one is heard just in time."""
        silent = self.pick(starved)
        for _ in range(seconds):
            self.town.now += 1.0
            for driver in list(self.drivers.values()):
                if driver is not silent:
                    self.visit(driver)
        if silent is not None:
            self.visit(silent)

    @invariant()
    def no_worker_has_two_gangs(self) -> None:
        held = [worker for ticket in self.town.book.tickets for worker in ticket.workers]
        assert len(held) == len(set(held))
        believed = [worker for driver in self.drivers.values() for worker in driver.held]
        assert len(believed) == len(set(believed))

    @invariant()
    def what_a_living_driver_has_is_in_the_book(self) -> None:
        for driver in self.drivers.values():
            ticket = self.town.book.find(driver.key)
            assert ticket is not None, "a driver that lives was forgotten"
            assert set(driver.held) & set(self.town.takers) <= set(ticket.workers)

    def teardown(self) -> None:
        """Let holders end: each gang that waits is served, or gives up because the cluster is too small for it."""
        rounds = 0
        while self.drivers:
            rounds += 1
            assert rounds < PATIENCE_S + self.born + 5, "gangs wait though nobody holds what they need"
            self.town.now += 1.0
            for driver in list(self.drivers.values()):
                driver.wish = 0
                answer = self.town.visit(driver)
                too_large = not answer.ahead and len(self.town.takers) < driver.least
                if driver.started or too_large:
                    del self.drivers[driver.key]
                    self.town.visit(driver, leaving=True)


Histories.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
TestHistories = Histories.TestCase


def test_renewals_are_far_more_frequent_than_patience_needs() -> None:
    assert 5 * RENEW_S <= PATIENCE_S
    assert RENEW_S <= LOOK_S, "else a silence would grow slower than the time"


# --- with a real scheduler --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        yield client


def take(client: Client | None, name: str, ranks: int, **changes: Any) -> AbstractContextManager[Claim]:
    words = {
        "min_ranks": ranks,
        "max_ranks": ranks,
        "queue_s": 20.0,
        "start_s": 20.0,
        "stop": threading.Event(),
        "on_wait": lambda place: None,
    }
    return turn(client, name, ranks=ranks, **{**words, **changes})


def test_two_small_gangs_hold_different_workers(client: Client) -> None:
    with take(client, "a", 1) as a, take(client, "b", 1) as b:
        assert set(a.workers) | set(b.workers) == set(client.scheduler_info(n_workers=-1)["workers"])
        assert len(a.workers) == len(b.workers) == 1


def test_the_place_is_told_and_the_turn_comes(client: Client) -> None:
    told: list[Place] = []
    waits, served = threading.Event(), threading.Event()

    def wait_in_line(place: Place) -> None:
        told.append(place)
        waits.set()

    def other() -> None:
        with take(client, "b", 2, on_wait=wait_in_line):
            served.set()

    thread = threading.Thread(target=other)
    with take(client, "a", 2):
        thread.start()
        assert waits.wait(20)
        assert not served.is_set()
    assert served.wait(20)
    thread.join(20)
    place = told[0]
    assert (place.position, place.ahead, place.wanted, place.free, place.there) == (1, (), 2, 0, 2)
    assert [(holder.name, holder.workers) for holder in place.holders] == [("a", 2)]


def test_a_turn_that_does_not_come_names_who_holds_what(client: Client) -> None:
    with (
        take(client, "the long one", 2),
        pytest.raises(DeadlineError, match=r"needs 1 workers, 0 of 2 are free; held by the long one \(2 workers for"),
        take(client, "b", 1, queue_s=0.1),
    ):
        pass
    with take(client, "c", 2, queue_s=0.0) as claim:  # whoever gave up is not in the line any more
        assert len(claim.workers) == 2


def test_workers_that_do_not_come_are_told_and_the_line_goes_on(client: Client) -> None:
    with pytest.raises(DeadlineError, match=r"within 0.3 s; expected 3 workers, one per rank; found 2"):
        take(client, "a", 3, start_s=0.3, queue_s=0.0).__enter__()
    with take(client, "b", 4, min_ranks=1, start_s=0.3) as claim:
        assert len(claim.workers) == 2


def test_a_stop_ends_the_wait(client: Client) -> None:
    stop = threading.Event()
    with (
        take(client, "a", 2),
        pytest.raises(InterruptedRunError, match="b was stopped while it waited"),
        take(client, "b", 1, stop=stop, on_wait=lambda place: stop.set()),
    ):
        pass


def test_workers_can_be_given_back_and_asked_for_again(client: Client) -> None:
    with take(client, "a", 2) as a:
        first, second = a.workers
        assert a.more(1) == []
        a.give_back([first])
        with take(client, "b", 1) as b:
            assert b.workers == (first,)
            assert a.more(1) == []
        assert a.more(5) == [first]
        assert a.workers == (second, first)


def test_the_least_busy_workers_come_first(client: Client) -> None:
    for worker in sorted(client.scheduler_info(n_workers=-1)["workers"]):
        go = Event(f"go-{worker}", client=client)
        busy = client.submit(go.wait, 20, workers=[worker], pure=False)
        try:
            while not client.processing()[worker]:
                threading.Event().wait(0.01)
            with take(client, "a", 1) as claim:
                assert worker not in claim.workers
        finally:
            go.set()
        busy.result(timeout=20)


def test_a_scheduler_that_was_started_anew_gets_a_new_desk(client: Client) -> None:
    def forget(dask_scheduler: Any) -> None:
        del dask_scheduler.handlers["mutirao_visit"]

    with take(client, "a", 2) as a:
        had = a.workers
        client.run_on_scheduler(forget)
        client.unregister_scheduler_plugin("mutirao-gangs")
        assert a.more(0) == []
        assert a.workers == had
        with pytest.raises(DeadlineError), take(client, "b", 1, queue_s=0.0):
            pass


def test_a_closed_client_is_told_at_once(client: Client) -> None:
    with Client(client.scheduler.address) as other:
        pass
    with pytest.raises(GangError, match="the Dask client is closed"):
        take(other, "a", 1).__enter__()


def test_a_client_that_closes_during_the_turn_does_not_hide_how_it_ended(client: Client) -> None:
    def train() -> None:
        with Client(client.scheduler.address) as other, take(other, "a", 1):
            other.close()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train()


def test_without_a_cluster_there_is_a_place_for_each_rank() -> None:
    with take(None, "a", 3) as claim:
        assert len(set(claim.workers)) == 3
        assert claim.more(1) == []
        claim.give_back(claim.workers[:2])
        assert len(claim.more(1)) == 1
        assert len(claim.workers) == 2
