"""What `run_gang` promises on one machine, without Dask: results by rank, one clear error, nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipelines.errors import DataError, DeadlineError, GangError, InterruptedRunError, MutiraoError, UserCodeError
from pipelines.training.gang import Deadlines, Loss, Sizes, run_gang
from pipelines.training.gang.events import Introduce

pytestmark = pytest.mark.usefixtures("programs_on_path")


def test_ranks_meet_and_their_results_come_by_rank() -> None:
    heard: list[tuple[int, dict[str, Any]]] = []
    gang = run_gang(
        None,
        "gang_programs:describe",
        [{"a": 1}, {"a": 2}, {"a": 3}],
        threads=4,
        memory_bytes=1 << 30,
        on_message=lambda rank, message: heard.append((rank, message)),
    )
    found = [json.loads(result) for result in gang.results]
    assert [each["rank"] for each in found] == [0, 1, 2]
    for rank, each in enumerate(found):
        assert each["size"] == 3
        assert each["sum"] == [6.0, 6.0, 6.0]
        assert each["names"] == ["rank 0", "rank 1", "rank 2"]
        assert each["arguments"] == {"a": rank + 1}
        assert each["threads"] == 4
        assert each["memory_bytes"] == 1 << 30
        assert each["blas"] == "1"
        assert not Path(each["scratch"]).exists()
        assert not psutil.pid_exists(each["pid"])
    assert sorted(heard, key=lambda pair: pair[0]) == [(rank, {"from": rank}) for rank in range(3)]


CASES = [
    ("raise", UserCodeError, ["rank 1", "ZeroDivisionError: a mistake", "gang_programs.py", "something on the way"]),
    ("data error", DataError, ["rank 1", "a label can't be read", "column late", "found words", "Mend it"]),
    ("kill", GangError, ["rank 1", "SIGKILL"]),
    ("segfault", GangError, ["rank 1", "SIGSEGV", "Segmentation fault"]),
    ("exit", UserCodeError, ["rank 1", "SystemExit: 3"]),
    ("vanish", GangError, ["rank 1", "exit code 0"]),
    ("memory", GangError, ["rank 1", "MiB", "limit is 300 MiB", "more memory"]),
    ("no bytes", GangError, ["rank 1", "returns bytes"]),
]


@pytest.mark.slow
@pytest.mark.parametrize(("what", "kind", "words"), CASES, ids=[case[0] for case in CASES])
def test_one_ranks_end_is_one_error_with_its_cause(what: str, kind: type[MutiraoError], words: list[str]) -> None:
    pids: list[int] = []
    began = time.monotonic()
    with pytest.raises(kind) as caught:
        run_gang(
            None,
            "gang_programs:misbehave",
            [{}, {"do": what}],
            memory_bytes=300 << 20,
            on_message=lambda rank, message: pids.append(message["pid"]),
        )
    assert time.monotonic() - began < 30
    for word in words:
        assert word in str(caught.value)
    assert len(pids) == 2
    assert not any(psutil.pid_exists(pid) for pid in pids)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "word"),
    [("no_such_module:f", "no_such_module"), ("gang_programs:no_such_function", "no_such_function")],
)
def test_a_program_that_is_not_there_is_named(program: str, word: str) -> None:
    with pytest.raises(MutiraoError, match=word):
        run_gang(None, program, [{}, {}])


@pytest.mark.slow
def test_deaf_ranks_and_their_own_processes_are_killed_with_the_gang() -> None:
    pids: list[int] = []
    with pytest.raises(UserCodeError, match="enough"):
        run_gang(
            None,
            "gang_programs:stubborn",
            [{}, {"do": "raise"}],
            on_message=lambda rank, message: pids.extend(message["pids"]),
        )
    assert len(pids) == 6
    assert not any(alive(pid) for pid in pids)


@pytest.mark.slow
def test_a_stop_lets_the_ranks_save_and_leave() -> None:
    stop, heard = threading.Event(), []

    def listen(rank: int, message: dict[str, Any]) -> None:
        heard.append(message)
        if sum("pid" in each for each in heard) == 2:
            stop.set()

    with pytest.raises(InterruptedRunError):
        run_gang(None, "gang_programs:polite", [{}, {}], on_message=listen, stop=stop)
    assert sorted(each["saved"] for each in heard if "saved" in each) == [0, 1]


@pytest.mark.slow
def test_ranks_that_do_not_leave_within_the_grace_time_are_killed() -> None:
    stop, pids = threading.Event(), []

    def listen(rank: int, message: dict[str, Any]) -> None:
        pids.append(message["pid"])
        stop.set()

    began = time.monotonic()
    with pytest.raises(InterruptedRunError):
        run_gang(
            None,
            "gang_programs:nap",
            [{"seconds": 60}, {"seconds": 60}],
            on_message=listen,
            stop=stop,
            deadlines=Deadlines(grace_s=1.0),
        )
    assert time.monotonic() - began < 20
    assert not any(alive(pid) for pid in pids)


@pytest.mark.slow
def test_a_collective_that_waits_too_long_names_the_rank() -> None:
    with pytest.raises(GangError, match=r"rank 1.*within 1 s"):
        run_gang(None, "gang_programs:misbehave", [{}, {"do": "deaf"}], deadlines=Deadlines(step_s=1.0))


@pytest.mark.slow
def test_what_the_listener_raises_ends_the_gang() -> None:
    pids: list[int] = []

    def listen(rank: int, message: dict[str, Any]) -> None:
        pids.append(message["pid"])
        raise KeyError("the listener's own mistake")

    with pytest.raises(KeyError, match="own mistake"):
        run_gang(None, "gang_programs:polite", [{}, {}], on_message=listen)
    assert not any(alive(pid) for pid in pids)


def test_large_arguments_and_results_arrive_whole() -> None:
    text = "0123456789" * 300_000
    [one, two] = run_gang(None, "gang_programs:describe", [{"text": text}, {"text": text[::-1]}]).results
    assert json.loads(one)["arguments"]["text"] == text
    assert json.loads(two)["arguments"]["text"] == text[::-1]


def test_a_start_that_takes_too_long_says_what_was_missing() -> None:
    with pytest.raises(DeadlineError, match="did not arrive"):
        run_gang(None, "gang_programs:quick", [{}, {}], deadlines=Deadlines(start_s=0.05))


@pytest.mark.slow
def test_a_gang_without_progress_ends() -> None:
    with pytest.raises(GangError, match="no rank has computed or reported"):
        run_gang(None, "gang_programs:nap", [{"seconds": 60}], deadlines=Deadlines(idle_s=2.0))


LANES, STEPS = 8, 40
TOTAL = sum(lane * (step + 1) for lane in range(LANES) for step in range(STEPS))


def deal(order: Introduce) -> list[dict[str, Any]]:
    size = len(order.members)
    return [
        {"lanes": list(range(rank, LANES, size)), "steps": STEPS, "pause_s": 0.02, "do": None} for rank in range(size)
    ]


def disturb(at: dict[int, list[tuple[int, int]]]) -> Callable[[int, dict[str, Any]], None]:
    """Send signals: from a step to (rank, signal), once each, to the rank's own process."""
    left = {step: list(faults) for step, faults in at.items()}
    pids: dict[int, int] = {}

    def listen(rank: int, message: dict[str, Any]) -> None:
        pids[message["rank"]] = message["pid"]
        step = message.get("step")
        if step in left and all(each in pids for each, _ in left[step]):
            for victim, sign in left.pop(step):
                os.kill(pids[victim], sign)

    return listen


SIZES = Sizes(start=3, least=1, most=3, survive=True)


@pytest.mark.slow
@pytest.mark.parametrize("victims", [(0,), (1,), (0, 1), (0, 1, 2)])
def test_a_gang_that_survives_goes_on_from_what_was_committed(victims: tuple[int, ...]) -> None:
    losses: list[Loss] = []
    found = run_gang(
        None,
        "gang_programs:count",
        deal,
        sizes=SIZES,
        on_message=disturb({10: [(victim, signal.SIGKILL) for victim in victims]}),
        on_loss=losses.append,
    )
    step, total, size, _ = json.loads(found.results[0])
    assert (step, total) == (STEPS, TOTAL)
    assert size == 3, "those that were lost were replaced"
    assert sorted(loss.rank for loss in losses) == sorted(victims)
    assert all("SIGKILL" in loss.text for loss in losses)
    assert found.losses == tuple(losses)
    assert 2 <= found.formations <= 2 + len(victims)


@pytest.mark.slow
def test_a_stopped_rank_is_replaced() -> None:
    found = run_gang(
        None, "gang_programs:count", deal, sizes=SIZES, on_message=disturb({10: [(1, signal.SIGSTOP)]}),
        deadlines=Deadlines(silence_s=1.5),
    )  # fmt: skip
    assert json.loads(found.results[0])[:2] == [STEPS, TOTAL]
    assert [(loss.rank, loss.cause) for loss in found.losses] == [(1, "silent")]


@pytest.mark.slow
def test_a_rank_that_is_stopped_in_turns_is_slow_and_not_lost() -> None:
    """Nearly every look at it falls into the time that it is stopped."""
    over = threading.Event()

    def slow(pid: int) -> None:
        with suppress(ProcessLookupError):
            while not over.wait(0.01):
                os.kill(pid, signal.SIGSTOP)
                over.wait(0.2)
                os.kill(pid, signal.SIGCONT)

    def listen(rank: int, message: dict[str, Any]) -> None:
        if rank == 1 and message.get("step") == 2:
            threading.Thread(target=slow, args=(message["pid"],), daemon=True).start()

    try:
        found = run_gang(
            None, "gang_programs:count", deal, sizes=SIZES, on_message=listen, deadlines=Deadlines(silence_s=1.0)
        )  # fmt: skip
    finally:
        over.set()
    assert json.loads(found.results[0])[:2] == [STEPS, TOTAL]
    assert found.losses == ()


@pytest.mark.slow
def test_one_loss_after_the_other_is_survived_as_long_as_there_are_steps_between() -> None:
    faults = {step: [(step % 3, signal.SIGKILL)] for step in range(3, 24, 3)}
    found = run_gang(None, "gang_programs:count", deal, sizes=SIZES, on_message=disturb(faults))
    assert json.loads(found.results[0])[:2] == [STEPS, TOTAL]
    assert len(found.losses) == 7


@pytest.mark.slow
def test_a_rank_that_always_dies_ends_the_gang_with_its_cause() -> None:
    with pytest.raises(GangError, match=r"(?s)formations in a row broke.*SIGSEGV"):
        run_gang(
            None,
            "gang_programs:misbehave",
            lambda order: [{"do": "segfault"} if rank == 1 else {} for rank in range(len(order.members))],
            sizes=replace(SIZES, start=2, most=2),
        )


def alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
