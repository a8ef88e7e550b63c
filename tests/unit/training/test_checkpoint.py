"""What a checkpoint promises: the newest intact one is found, and a torn one never is."""

from __future__ import annotations

from pathlib import Path

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


@pytest.mark.parametrize("damage", ["state shortened", "state changed", "state lost", "commit torn", "no commit"])
def test_a_damaged_checkpoint_is_passed_over(store: ObjectStore, tmp_path: Path, damage: str) -> None:
    save_checkpoint(store, "fit", 1, b"the old state")
    save_checkpoint(store, "fit", 2, b"the new state")
    state = min((tmp_path / "fit" / "states").iterdir())
    commit = min((tmp_path / "fit" / "commits").iterdir())
    match damage:
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
    assert latest_checkpoint(store, "fit") == Checkpoint(1, b"the old state")


def test_a_failed_save_leaves_the_old_one(store: ObjectStore, tmp_path: Path) -> None:
    save_checkpoint(store, "fit", 1, b"state")
    (tmp_path / "fit" / "states").rename(tmp_path / "fit" / "kept")
    (tmp_path / "fit" / "states").write_text("not a folder")
    with pytest.raises(StorageError):
        save_checkpoint(store, "fit", 2, b"more")
    (tmp_path / "fit" / "states").unlink()
    (tmp_path / "fit" / "kept").rename(tmp_path / "fit" / "states")
    assert latest_checkpoint(store, "fit") == Checkpoint(1, b"state")
