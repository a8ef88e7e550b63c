"""Gangs on one cluster: those that fit run side by side, the others wait in line, and none waits for the dead."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, LocalCluster

from pipelines.training.gang import run_gang
from pipelines.training.gang.queue import Place

pytestmark = pytest.mark.slow

PROGRAMS = Path(__file__).parents[1] / "unit" / "training"
LIMIT_S = 100


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MUTIRAO_CODE_PATH", str(PROGRAMS))
        with (
            LocalCluster(n_workers=4, threads_per_worker=1, processes=True, dashboard_address=None) as cluster,
            Client(cluster) as client,
        ):
            client.wait_for_workers(4, timeout=60)
            yield client


class Gangs:
    """Gangs in threads of this process. What their ranks report is written down in the order in which it is heard.

    A gang's last report is heard before it gives its workers back, so nobody can be heard there before that.
    """

    def __init__(self, client: Client, folder: Path) -> None:
        self._client, self._folder = client, folder
        self.heard: list[tuple[str, str, int]] = []
        self.outcomes: dict[str, Any] = {}
        self.places: dict[str, list[Place]] = {}
        self._ranks: dict[str, int] = {}
        self._news = threading.Condition()
        self._threads: list[threading.Thread] = []

    def sign(self, name: str) -> str:
        return str(self._folder / name)

    def start(self, name: str, ranks: int, *until: str) -> None:
        """Start a gang that ends when all signs are there."""
        self.places[name] = []
        self._ranks[name] = ranks
        thread = threading.Thread(target=self._run, args=(name, ranks, until), name=name)
        self._threads.append(thread)
        thread.start()

    def _run(self, name: str, ranks: int, until: tuple[str, ...]) -> None:
        def hear(rank: int, message: dict[str, Any]) -> None:
            with self._news:
                self.heard += [(name, word, worker) for word, worker in message.items()]
                self._news.notify_all()

        def wait_in_line(place: Place) -> None:
            with self._news:
                self.places[name].append(place)
                self._news.notify_all()

        words = {"sign": self.sign(name), "until": [self.sign(each) for each in until]}
        try:
            self.outcomes[name] = run_gang(
                self._client,
                "gang_programs:linger",
                [words] * ranks,
                name=name,
                on_message=hear,
                on_wait=wait_in_line,
            ).results
        except Exception as error:  # noqa: BLE001 - a thread's boundary: the test compares it
            self.outcomes[name] = error

    def wait_for(self, what: Callable[[], bool]) -> None:
        with self._news:
            assert self._news.wait_for(what, LIMIT_S), self.outcomes

    def finish(self) -> None:
        """Wait for all; each has finished, and no worker had two gangs."""
        for thread in self._threads:
            thread.join(LIMIT_S)
        assert self.outcomes == {name: [b"done"] * ranks for name, ranks in self._ranks.items()}
        at: dict[int, str] = {}
        for name, word, worker in self.heard:
            if word == "on":
                assert worker not in at, f"{name} came to a worker that {at[worker]} had"
                at[worker] = name
            else:
                assert at.pop(worker) == name

    def here(self, until: int | None = None) -> set[str]:
        """Return the gangs that had workers when so many words had been heard."""
        there: list[str] = []
        for name, word, _ in self.heard[:until]:
            there.append(name) if word == "on" else there.remove(name)
        return set(there)

    def most_at_once(self) -> int:
        return max(len(self.here(count)) for count in range(len(self.heard) + 1))


@pytest.fixture
def gangs(client: Client, tmp_path: Path) -> Gangs:
    return Gangs(client, tmp_path)


def test_two_gangs_that_fit_run_at_the_same_time(gangs: Gangs) -> None:
    # Each stays until the other has come: one after the other they would never end.
    gangs.start("a", 2, "b")
    gangs.start("b", 2, "a")
    gangs.finish()
    assert gangs.most_at_once() == 2


def test_five_gangs_all_finish_two_at_a_time(gangs: Gangs) -> None:
    for name in "abcde":
        gangs.start(name, 2, "go")
    gangs.wait_for(lambda: len(gangs.heard) == 4 and sum(map(bool, gangs.places.values())) == 3)
    Path(gangs.sign("go")).touch()
    gangs.finish()
    assert gangs.most_at_once() == 2


def test_gangs_of_three_two_and_one_start_in_their_order_and_know_their_place(gangs: Gangs) -> None:
    gangs.start("three", 3, "go")
    gangs.wait_for(lambda: len(gangs.heard) == 3)
    gangs.start("two", 2, "one")
    gangs.wait_for(lambda: bool(gangs.places["two"]))
    gangs.start("one", 1, "two")  # one worker is free, but it is not first in the line
    gangs.wait_for(lambda: bool(gangs.places["one"]))
    place = gangs.places["one"][-1]
    assert (place.position, place.ahead, place.wanted, place.free, place.there) == (2, ("two",), 1, 1, 4)
    assert [(holder.name, holder.workers) for holder in place.holders] == [("three", 3)]
    assert {name for name, _, _ in gangs.heard} == {"three"}
    Path(gangs.sign("go")).touch()
    gangs.finish()


HOLDER = """
import sys
from distributed import Client
from pipelines.training.gang import run_gang
with Client(sys.argv[1]) as client:
    words = {"sign": sys.argv[2], "until": [sys.argv[2] + ".never"]}
    say = lambda *_: print(sys.argv[3], flush=True)
    run_gang(client, "gang_programs:linger", [words] * 3, name="the dead", **{sys.argv[3]: say})
"""


def start_driver(client: Client, sign: str, say: str) -> subprocess.Popen[str]:
    """Start a gang of three from a process of its own; it prints a line at each call of what `say` names."""
    command = [sys.executable, "-c", HOLDER, client.scheduler.address, sign, say]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def kill(driver: subprocess.Popen[str]) -> None:
    driver.kill()
    driver.wait()
    assert driver.stdout is not None
    driver.stdout.close()


def test_a_driver_that_was_killed_is_forgotten(gangs: Gangs, client: Client) -> None:
    driver = start_driver(client, gangs.sign("dead"), "on_message")
    assert driver.stdout is not None
    for _ in range(3):
        assert driver.stdout.readline() == "on_message\n"
    gangs.start("next", 4)
    gangs.wait_for(lambda: bool(gangs.places["next"]))
    assert [holder.name for holder in gangs.places["next"][-1].holders] == ["the dead"]
    assert "next" not in gangs.outcomes
    kill(driver)
    gangs.finish()


def test_a_gang_that_waits_and_is_killed_does_not_hold_up_those_behind_it(gangs: Gangs, client: Client) -> None:
    gangs.start("first", 3, "go")
    gangs.wait_for(lambda: len(gangs.heard) == 3)
    driver = start_driver(client, gangs.sign("dead"), "on_wait")
    assert driver.stdout is not None
    assert driver.stdout.readline() == "on_wait\n"
    gangs.start("behind", 1)
    gangs.wait_for(lambda: bool(gangs.places["behind"]))
    assert gangs.places["behind"][0].ahead == ("the dead",)
    kill(driver)
    gangs.wait_for(lambda: any(name == "behind" for name, _, _ in gangs.heard))
    assert "first" not in gangs.outcomes
    Path(gangs.sign("go")).touch()
    gangs.finish()
