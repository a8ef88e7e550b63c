"""Weights are saved in parts and come back for any number of servers; what is not whole is passed over."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipelines.errors import CorruptArtifactError
from pipelines.training.estimators import served_checkpoint
from pipelines.training.estimators.served_checkpoint import Piece, ServedCheckpoints, spill
from pipelines.training.strategies.parameter_server import Layout

SIZE = 1000


def pieces(layout: Layout, rows: np.ndarray) -> list[Piece]:
    """Cut rows by their places, as servers give them: those that are not zero, in pieces of 100."""
    found = []
    for shard, first in enumerate(layout.bounds[:-1]):
        for start in range(0, layout.length(shard), 100):
            part = rows[first + start : min(first + start + 100, layout.bounds[shard + 1])]
            kept = np.flatnonzero(part.any(axis=1))
            if len(kept):
                found.append((shard, (kept + start).astype(np.int32), part[kept]))
    return found


def rows_of(given: list[Piece], layout: Layout) -> np.ndarray:
    found = np.zeros((SIZE, 2), np.float32)
    for shard, keys, rows in given:
        found[keys + layout.bounds[shard]] = rows
    return found


@pytest.fixture
def rows() -> np.ndarray:
    rng = np.random.default_rng(1)
    return (rng.normal(size=(SIZE, 2)) * (rng.random((SIZE, 1)) < 0.3)).astype(np.float32)


@pytest.fixture
def checkpoints(tmp_path: Path) -> ServedCheckpoints:
    return ServedCheckpoints(str(tmp_path / "store"), "0" * 64, 2)


@pytest.mark.parametrize("servers", [1, 3, 4])
def test_rows_come_back_for_any_number_of_servers(
    rows: np.ndarray, checkpoints: ServedCheckpoints, tmp_path: Path, servers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served_checkpoint, "PART_BYTES", 1000)
    before, after = Layout(SIZE, 3), Layout(SIZE, servers)
    files = spill(pieces(before, rows), before, tmp_path)
    assert len(files) > 2
    checkpoints.save(17, {"updates": 17}, files)
    saved = checkpoints.latest()
    assert saved is not None
    assert (saved.update, saved.account, len(saved.parts)) == (17, {"updates": 17}, len(files))
    np.testing.assert_array_equal(rows_of(list(checkpoints.pieces(saved, after, tmp_path)), after), rows)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store"]


def test_the_newest_whole_one_counts_and_old_ones_go(
    rows: np.ndarray, checkpoints: ServedCheckpoints, tmp_path: Path
) -> None:
    layout = Layout(SIZE, 2)
    for update in (1, 2, 3):
        checkpoints.save(update, {}, spill(pieces(layout, update * rows), layout, tmp_path))
    stored = [path for path in (tmp_path / "store").rglob("*") if path.is_file()]
    assert len(stored) == 4  # two records, one part each
    newest = checkpoints.latest()
    assert newest is not None
    assert newest.update == 3
    next((tmp_path / "store").rglob(newest.parts[0].key)).unlink()
    older = checkpoints.latest()
    assert older is not None
    assert older.update == 2
    path = next((tmp_path / "store").rglob(older.parts[0].key))
    path.write_bytes(bytes(len(path.read_bytes())))
    with pytest.raises(CorruptArtifactError, match="not what was saved"):
        list(checkpoints.pieces(older, layout, tmp_path))


def test_nothing_is_saved_yet(checkpoints: ServedCheckpoints) -> None:
    assert checkpoints.latest() is None
