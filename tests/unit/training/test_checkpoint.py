"""What a checkpoint promises: the newest intact one is found, and a torn one never is."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipelines.errors import StorageError
from pipelines.storage import ObjectStore, open_store
from pipelines.training.checkpoint import Checkpoint, latest_checkpoint, save_checkpoint


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store(str(tmp_path))


def files(path: Path) -> list[str]:
    return sorted(str(each.relative_to(path)) for each in path.rglob("*") if each.is_file())


def test_nothing_saved_is_nothing_found(store: ObjectStore) -> None:
    assert latest_checkpoint(store, "fit") is None


def test_the_newest_step_is_found_and_only_so_many_are_kept(store: ObjectStore, tmp_path: Path) -> None:
    for step in (1, 2, 30, 400):
        save_checkpoint(store, "fit", step, f"state {step}".encode(), keep=2)
    assert latest_checkpoint(store, "fit") == Checkpoint(400, b"state 400")
    assert len([name for name in files(tmp_path) if "commits" in name]) == 2
    assert len([name for name in files(tmp_path) if "states" in name]) == 2


def test_prefixes_do_not_see_each_other(store: ObjectStore) -> None:
    save_checkpoint(store, "a", 5, b"a")
    save_checkpoint(store, "b", 3, b"b")
    assert latest_checkpoint(store, "b") == Checkpoint(3, b"b")


def test_a_step_saved_again_is_replaced(store: ObjectStore) -> None:
    save_checkpoint(store, "fit", 5, b"old")
    save_checkpoint(store, "fit", 5, b"new")
    assert latest_checkpoint(store, "fit") == Checkpoint(5, b"new")


DAMAGES = [
    "state shortened", "state changed", "state lost", "commit torn", "no commit", "commit of another step",
    "state elsewhere",
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_passed_over(store: ObjectStore, tmp_path: Path, damage: str) -> None:
    save_checkpoint(store, "fit", 1, b"the old state")
    save_checkpoint(store, "fit", 2, b"the new state")
    state = min((tmp_path / "fit" / "states").iterdir())
    commit = min((tmp_path / "fit" / "commits").iterdir())
    match damage:
        case "commit of another step":
            commit.write_bytes(max((tmp_path / "fit" / "commits").iterdir()).read_bytes())
        case "state elsewhere":
            commit.write_bytes(commit.read_bytes().replace(b"fit/states", b"else/where"))
        case "state shortened":
            state.write_bytes(b"the new")
        case "state changed":
            state.write_bytes(b"the neW state")
        case "state lost":
            state.unlink()
        case "commit torn":
            commit.write_bytes(b'{"step":')
        case "no commit":
            commit.unlink()
    told: list[str] = []
    assert latest_checkpoint(store, "fit", on_damage=told.append) == Checkpoint(1, b"the old state")
    assert len(told) == (damage != "no commit")
    assert all(str(tmp_path) in text and "passed over" in text for text in told)


def test_a_failed_save_leaves_the_old_one(store: ObjectStore, tmp_path: Path) -> None:
    save_checkpoint(store, "fit", 1, b"state")
    (tmp_path / "fit" / "states").rename(tmp_path / "fit" / "kept")
    (tmp_path / "fit" / "states").write_text("not a folder")
    with pytest.raises(StorageError):
        save_checkpoint(store, "fit", 2, b"more")
    (tmp_path / "fit" / "states").unlink()
    (tmp_path / "fit" / "kept").rename(tmp_path / "fit" / "states")
    assert latest_checkpoint(store, "fit") == Checkpoint(1, b"state")


def test_a_state_that_somebody_else_is_about_to_commit_is_not_removed(store: ObjectStore, tmp_path: Path) -> None:
    save_checkpoint(store, "fit", 7, b"newer")
    [commit] = (tmp_path / "fit" / "commits").iterdir()
    record = commit.read_bytes()
    commit.unlink()
    save_checkpoint(store, "fit", 5, b"older", keep=1)
    commit.write_bytes(record)
    assert latest_checkpoint(store, "fit") == Checkpoint(7, b"newer")


class Killed(BaseException):
    """The process ends here."""


OPERATIONS = ("replace", "delete", "list", "get")


class DiesAt:
    """A store whose user is killed before its n-th operation: nothing comes after it."""

    def __init__(self, store: ObjectStore, nth: int) -> None:
        self._store, self._left = store, nth

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name not in OPERATIONS:
            return found

        def call(*args: Any, **options: Any) -> Any:
            self._left -= 1
            if self._left < 0:
                raise Killed
            return found(*args, **options)

        return call


def saves(keep: int) -> Iterator[tuple[int, bytes]]:
    yield from ((step, f"state {step}".encode() * 10) for step in (3, 6, 9, 9, 12)[: keep + 3])


@pytest.mark.parametrize("keep", [1, 2])
def test_a_kill_between_any_two_operations_leaves_the_newest_complete_one(tmp_path: Path, keep: int) -> None:
    nth, ended = 0, False
    while not ended:
        store = open_store(str(tmp_path / str(nth)))
        dying, done, begun = DiesAt(store, nth), None, None
        ended = True
        try:
            for begun in saves(keep):
                save_checkpoint(dying, "fit", *begun, keep=keep)  # type: ignore[arg-type]
                done = begun
        except Killed:
            ended = False
        told: list[str] = []
        found = latest_checkpoint(store, "fit", on_damage=told.append)
        allowed = [each and Checkpoint(*each) for each in (done, begun)]
        assert found in allowed, f"killed before operation {nth}"
        assert not told, f"killed before operation {nth}"
        nth += 1
    assert nth > 4 * (keep + 3)  # two writes and two listings for each, and removals: all have been interrupted


@pytest.mark.slow
def test_a_real_kill_between_two_operations_leaves_the_newest_complete_one(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys\n"
        "from pipelines.storage import open_store\n"
        "from pipelines.training.checkpoint import save_checkpoint\n"
        "class Store:\n"
        "    def __init__(self, store, nth): self.store, self.left = store, nth\n"
        "    def __getattr__(self, name):\n"
        "        if name in ('replace', 'delete', 'list'):\n"
        "            self.left -= 1\n"
        "            if self.left < 0: os.kill(os.getpid(), signal.SIGKILL)\n"
        "        return getattr(self.store, name)\n"
        "store = Store(open_store(sys.argv[1]), int(sys.argv[2]))\n"
        "for step in (1, 2, 3):\n"
        "    save_checkpoint(store, 'fit', step, b'state %d' % step, keep=1)\n"
        "    print(step, flush=True)\n"
    )
    for nth in range(1, 18, 2):
        url = str(tmp_path / str(nth))
        ended = subprocess.run([sys.executable, "-c", program, url, str(nth)], stdout=subprocess.PIPE, check=False)
        done = int((ended.stdout.split() or [b"0"])[-1])
        assert ended.returncode == (-9 if done < 3 else 0)
        found = latest_checkpoint(open_store(url), "fit")
        assert found in [(step and Checkpoint(step, b"state %d" % step)) or None for step in (done, done + 1)]
