"""What `run_gang` promises on one machine, without Dask: results by rank, one clear error, nothing left behind."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipelines.errors import DataError, DeadlineError, GangError, InterruptedRunError, MutiraoError, UserCodeError
from pipelines.training.gang import Deadlines, run_gang

pytestmark = pytest.mark.usefixtures("programs_on_path")


def test_ranks_meet_and_their_results_come_by_rank() -> None:
    heard: list[tuple[int, dict[str, Any]]] = []
    results = run_gang(
        None,
        "gang_programs:describe",
        [{"a": 1}, {"a": 2}, {"a": 3}],
        threads=4,
        memory_bytes=1 << 30,
        on_message=lambda rank, message: heard.append((rank, message)),
    )
    found = [json.loads(result) for result in results]
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
    [one, two] = run_gang(None, "gang_programs:describe", [{"text": text}, {"text": text[::-1]}])
    assert json.loads(one)["arguments"]["text"] == text
    assert json.loads(two)["arguments"]["text"] == text[::-1]


def test_a_start_that_takes_too_long_says_what_was_missing() -> None:
    with pytest.raises(DeadlineError, match="did not arrive"):
        run_gang(None, "gang_programs:quick", [{}, {}], deadlines=Deadlines(start_s=0.05))


@pytest.mark.slow
def test_a_gang_without_progress_ends() -> None:
    with pytest.raises(GangError, match="no rank has computed or reported"):
        run_gang(None, "gang_programs:nap", [{"seconds": 60}], deadlines=Deadlines(idle_s=2.0))


def alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
