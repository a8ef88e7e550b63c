"""Faults of ranks, workers and drivers on a Dask cluster: each ends in one clear error in seconds, nothing is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from distributed import Client, LocalCluster

from pipelines.errors import DeadlineError, GangError, InterruptedRunError, MutiraoError, UserCodeError
from pipelines.training.gang import Deadlines, Loss, Sizes, run_gang
from pipelines.training.gang.events import Introduce
from pipelines.training.gang.launch import DaskLauncher
from pipelines.training.gang.queue import Place
from pipelines.training.gang.watcher import Launch

pytestmark = pytest.mark.slow

PROGRAMS = Path(__file__).parents[1] / "unit" / "training"
MARK = "MUTIRAO_TEST_OF_FAULTS"
LAUNCH = Launch("x", 0, ("127.0.0.1", 9), "00", "m:f", 1, None, 1.0, 1.0)


@pytest.fixture(scope="module")
def mark() -> Iterator[str]:
    """Mark every process that these tests start, through the environment."""
    mine = uuid.uuid4().hex
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(MARK, mine)
        patch.setenv("MUTIRAO_CODE_PATH", str(PROGRAMS))
        yield mine


@pytest.fixture(scope="module")
def cluster(mark: str) -> Iterator[LocalCluster]:
    with LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster:
        yield cluster


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    with Client(cluster) as client:
        client.wait_for_workers(2, timeout=60)
        yield client


def ranks_of(mark: str) -> list[int]:
    """Processes of ranks that these tests have started, and that still live."""
    found = []
    for process in psutil.process_iter():
        try:
            marked = process.environ().get(MARK) == mark and "MUTIRAO_RANK" in process.environ()
            if marked and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def wait_until_gone(mark: str, seconds: float) -> None:
    end = time.monotonic() + seconds
    while ranks_of(mark):
        assert time.monotonic() < end, f"ranks are left: {ranks_of(mark)}"
        time.sleep(0.1)


# what a rank does to itself or its worker → the error, its words, and the most seconds from the fault to the error
FAULTS = [
    ("raise", UserCodeError, ["rank 1", "ZeroDivisionError", "something on the way"], 10),
    ("kill", GangError, ["rank 1", "SIGKILL"], 10),
    ("stop", GangError, ["rank 1", "stopped for"], 15),
    ("exit", UserCodeError, ["rank 1", "SystemExit"], 10),
    ("memory", GangError, ["rank 1", "limit is 500 MiB"], 20),
    ("kill worker", GangError, ["rank 1", "worker was lost"], 10),
    ("stop worker", GangError, ["rank 1", "silent for"], 20),
]


@pytest.mark.parametrize(("what", "kind", "words", "seconds"), FAULTS, ids=[fault[0] for fault in FAULTS])
def test_a_fault_is_one_error_and_nothing_is_left(
    client: Client, mark: str, what: str, kind: type[MutiraoError], words: list[str], seconds: float
) -> None:
    begun: list[float] = []
    workers = {worker.pid for worker in map(psutil.Process, client.run(os.getpid).values())}
    try:
        with pytest.raises(kind) as caught:
            run_gang(
                client,
                "gang_programs:misbehave",
                [{}, {"do": what}],
                memory_bytes=500 << 20,
                on_message=lambda rank, message: begun.append(time.monotonic()),
            )
        assert time.monotonic() - begun[-1] < seconds
    finally:
        for pid in workers:
            if psutil.pid_exists(pid):
                os.kill(pid, signal.SIGCONT)
    for word in words:
        assert word in str(caught.value)
    # A worker that was stopped can only end its rank once it goes on.
    wait_until_gone(mark, 10)


def test_the_next_gang_runs_after_a_worker_was_killed(client: Client, mark: str) -> None:
    with pytest.raises(GangError):
        run_gang(client, "gang_programs:misbehave", [{}, {"do": "kill worker"}])
    # The nanny's new worker has another address.
    assert run_gang(client, "gang_programs:quick", [{}, {}]).results == [b"done", b"done"]
    wait_until_gone(mark, 5)


def test_two_gangs_on_one_cluster_both_finish(client: Client, mark: str) -> None:
    outcomes: dict[str, Any] = {}
    waited: list[Place] = []

    def train(name: str) -> None:
        gang = run_gang(client, "gang_programs:quick", [{"turns": 100}] * 2, name=name, on_wait=waited.append)
        outcomes[name] = gang.results

    threads = [threading.Thread(target=train, args=(name,)) for name in ("first", "second", "third")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert outcomes == {name: [b"done", b"done"] for name in ("first", "second", "third")}
    assert waited
    wait_until_gone(mark, 5)


def test_the_queue_has_a_deadline_that_names_the_holder(client: Client, mark: str) -> None:
    stop = threading.Event()
    holder = threading.Thread(target=hold, args=(client, stop))
    holder.start()
    time.sleep(3)
    try:
        with pytest.raises(DeadlineError, match="the long one"):
            run_gang(client, "gang_programs:quick", [{}], deadlines=Deadlines(queue_s=1.5))
    finally:
        stop.set()
        holder.join(60)
    wait_until_gone(mark, 5)


def hold(client: Client, stop: threading.Event) -> None:
    with suppress(InterruptedRunError):
        run_gang(client, "gang_programs:polite", [{}, {}], stop=stop, name="the long one")


def test_more_ranks_than_workers_is_said_after_a_bounded_wait(client: Client) -> None:
    with pytest.raises(DeadlineError, match=r"expected 3 workers.*found 2"):
        run_gang(client, "gang_programs:quick", [{}] * 3, deadlines=Deadlines(start_s=1.0))


def test_a_busy_worker_is_named_when_the_start_takes_too_long(client: Client, mark: str) -> None:
    worker = sorted(client.scheduler_info(n_workers=-1)["workers"])[0]
    busy = client.submit(time.sleep, 20, key="somebody-elses-work", workers=[worker], pure=False)
    time.sleep(0.5)
    began = time.monotonic()
    with pytest.raises(DeadlineError, match="somebody-elses-work"):
        run_gang(client, "gang_programs:quick", [{}, {}], deadlines=Deadlines(start_s=6.0))
    assert time.monotonic() - began < 20
    wait_until_gone(mark, 5)
    busy.cancel()


DRIVER = """
import sys
from distributed import Client
from pipelines.training.gang import run_gang
with Client(sys.argv[1]) as client:
    run_gang(client, sys.argv[2], [{}, {}], on_message=lambda rank, message: print("started", flush=True))
"""


@pytest.mark.parametrize("program", ["gang_programs:polite", "gang_programs:stubborn"])
def test_ranks_end_with_a_driver_that_was_killed(client: Client, mark: str, program: str) -> None:
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, client.scheduler.address, program], stdout=subprocess.PIPE, text=True
    )
    assert driver.stdout is not None
    assert driver.stdout.readline() == "started\n"
    assert driver.stdout.readline() == "started\n"
    assert len(ranks_of(mark)) >= 2
    driver.kill()
    driver.wait()
    driver.stdout.close()
    wait_until_gone(mark, 10)
    # Its workers are free some seconds after its connection to the scheduler broke.
    assert run_gang(client, "gang_programs:quick", [{}, {}]).results == [b"done", b"done"]


def test_the_first_interrupt_lets_the_ranks_save_and_leave(client: Client, mark: str) -> None:
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, client.scheduler.address, "gang_programs:polite"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert driver.stdout is not None
    for _ in range(2):
        assert driver.stdout.readline() == "started\n"
    driver.send_signal(signal.SIGINT)
    out, err = driver.communicate(timeout=30)
    assert out == "started\nstarted\n"  # what the ranks said when they had saved
    assert "KeyboardInterrupt" in err
    wait_until_gone(mark, 5)


def test_scratch_folders_of_killed_workers_are_swept_by_the_next_gang(client: Client, mark: str) -> None:
    folders = client.run(lambda dask_worker: dask_worker.local_directory)
    left = [Path(folder) / "gang.elsewhere.1.1.x" for folder in folders.values()]
    import socket

    dead = [Path(folder) / f"gang.{socket.gethostname()}.999999.1.x" for folder in folders.values()]
    for folder in [*left, *dead]:
        folder.mkdir()
    run_gang(client, "gang_programs:quick", [{}, {}])
    assert not any(folder.exists() for folder in dead)
    assert all(folder.exists() for folder in left), "another machine's folders are not ours to judge"


def test_a_member_whose_worker_went_away_before_it_started_is_told_and_its_place_given_back(client: Client) -> None:
    there = sorted(client.scheduler_info(n_workers=-1)["workers"])
    claim = FixedClaim(("tcp://127.0.0.1:9", *there[1:]), there[:1])
    launcher = DaskLauncher(client, claim)
    numbers = iter(range(9))
    assert launcher.start(2, lambda: replace(LAUNCH, member=next(numbers))) == [(0, there[1]), (1, there[0])]
    assert claim.workers == (there[1], there[0])
    launcher._places[1] = "tcp://127.0.0.1:9"
    [(member, text)] = launcher.lost([1])
    assert member == 1
    assert "went away before it began" in text
    launcher.close()


class FixedClaim:
    """A claim with workers to spare."""

    def __init__(self, workers: tuple[str, ...], spare: list[str]) -> None:
        self.workers, self._spare = workers, spare

    def more(self, count: int) -> list[str]:
        found, self._spare = self._spare[:count], self._spare[count:]
        self.workers += tuple(found)
        return found

    def give_back(self, addresses: Any) -> None:
        self.workers = tuple(each for each in self.workers if each not in addresses)


STEPS = 160  # of 0.05 s: long enough for a stopped rank to be noticed
COUNT = Sizes(start=2, least=1, most=2, survive=True)


def deal(order: Introduce) -> list[dict[str, Any]]:
    size = len(order.members)
    return [{"lanes": list(range(rank, 8, size)), "steps": STEPS, "pause_s": 0.05} for rank in range(size)]


@pytest.mark.parametrize("what", ["kill rank", "stop rank", "kill worker", "stop both"])
def test_a_gang_that_survives_goes_on_after_any_loss(client: Client, mark: str, what: str) -> None:
    workers = {worker.pid for worker in map(psutil.Process, client.run(os.getpid).values())}
    sign = signal.SIGKILL if what.startswith("kill") else signal.SIGSTOP
    told: list[float] = []

    def listen(rank: int, message: dict[str, Any]) -> None:
        if message.get("step") == 10 and rank == 1 and not told:
            process = psutil.Process(message["pid"])
            told.append(time.monotonic())
            for each in (process, *process.parents()[: 0 if what.endswith("rank") else 1]):
                each.send_signal(sign)

    losses: list[tuple[float, Loss]] = []
    try:
        found = run_gang(
            client,
            "gang_programs:count",
            deal,
            sizes=COUNT,
            on_message=listen,
            on_loss=lambda loss: losses.append((time.monotonic() - told[0], loss)),
        )
    finally:
        for pid in workers:
            if psutil.pid_exists(pid):
                os.kill(pid, signal.SIGCONT)
    step, total, _, _ = json.loads(found.results[0])
    assert (step, total) == (STEPS, sum(lane * (step + 1) for lane in range(8) for step in range(STEPS)))
    [(noticed_s, loss)] = losses
    assert loss.rank == 1
    assert noticed_s < (5 if what.startswith("kill") else 12)
    wait_until_gone(mark, 10)


def test_a_gang_grows_when_a_worker_comes(cluster: LocalCluster, client: Client, mark: str) -> None:
    formations: list[tuple[int, int]] = []

    def listen(rank: int, message: dict[str, Any]) -> None:
        if "size" in message and rank == 0:
            formations.append((message["formation"], message["size"]))
        if message.get("step") == 5 and rank == 0 and len(formations) == 1:
            cluster.scale(3)

    try:
        found = run_gang(
            client, "gang_programs:count", lambda order: [{**each, "steps": 400} for each in deal(order)],
            sizes=replace(COUNT, most=3), on_message=listen,
        )  # fmt: skip
        assert json.loads(found.results[0])[0] == 400
        assert formations == [(1, 2), (2, 3)]
        assert found.losses == ()
    finally:
        cluster.scale(2)
    wait_until_gone(mark, 10)
