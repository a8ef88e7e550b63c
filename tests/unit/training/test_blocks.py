"""Rows are kept whole, aligned and within the budget, in memory or on disk, and every one is met once an epoch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.sparse import random as random_sparse

from pipelines.errors import TrainingError
from pipelines.training.batches import LaneStream
from pipelines.training.blocks import (
    ALIGN,
    BLOCK_VALUES,
    BlockStore,
    Buffer,
    DenseBlock,
    SparseBlock,
    Stored,
    block_rows,
)
from pipelines.training.filling import DenseFiller, SparseFiller
from pipelines.training.loading import plan_room


def fill(store: BlockStore, X: np.ndarray, y: np.ndarray, weight: np.ndarray | None, pieces: list[int]) -> list[Stored]:
    filler = DenseFiller(store, X.shape[1], weight is not None)
    start = 0
    for piece in [*pieces, len(y)]:
        stop = min(start + piece, len(y))
        while start < stop:
            count = min(filler.room, stop - start)
            filler.space(count)[:] = X[start : start + count]
            filler.added(y[start : start + count], None if weight is None else weight[start : start + count])
            start += count
    filler.finish()
    return filler.blocks


def gather(blocks: list[Stored]) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    buffer, X, y, w = Buffer(), [], [], []
    for stored in blocks:
        block = stored.fetch(buffer)
        X.append(block.X.toarray() if isinstance(block, SparseBlock) else block.X.T.copy())
        y.append(block.y.copy())
        if block.weight is not None:
            w.append(block.weight.copy())
    return np.concatenate(X), np.concatenate(y), np.concatenate(w) if w else None


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.integers(1, 20_000),
    features=st.sampled_from([1, 3, 40, 700]),
    weighted=st.booleans(),
    pieces=st.lists(st.integers(1, 9000), max_size=6),
    budget=st.sampled_from([None, 0, 3 << 20]),
)
def test_dense_rows_come_back_as_they_were_put(
    tmp_path: Path, rows: int, features: int, weighted: bool, pieces: list[int], budget: int | None
) -> None:
    rows = min(rows, 4_000_000 // features)
    rng = np.random.default_rng(rows)
    X = rng.random((rows, features), np.float32)
    y, weight = rng.random(rows, np.float32), rng.random(rows, np.float32) if weighted else None
    with BlockStore(tmp_path, budget) as store:
        blocks = fill(store, X, y, weight, pieces)
        found_X, found_y, found_weight = gather(blocks)
        np.testing.assert_array_equal(found_X, X)
        np.testing.assert_array_equal(found_y, y)
        if weight is not None:
            assert found_weight is not None
            np.testing.assert_array_equal(found_weight, weight)
        assert [block.rows for block in blocks[:-1]] == [block_rows(features)] * (len(blocks) - 1)
        if budget is not None:
            assert store.memory_bytes <= budget
        assert (store.disk_bytes == 0) is (budget is None or (store.memory_bytes > 0 and store.disk_bytes == 0))
        assert list(tmp_path.iterdir()) == [], "a file of spilled rows has no name"
        for stored in blocks[:-1]:
            block = stored.fetch(Buffer())
            assert block.X.ctypes.data % ALIGN == 0
            assert block.X.flags.c_contiguous


def test_how_rows_arrive_does_not_change_the_blocks(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X, y = rng.random((30_000, 28), np.float32), rng.random(30_000, np.float32)
    found = []
    for budget, pieces in [(None, []), (None, [1, 7, 9000]), (0, [4096] * 3), (2 << 20, [10_000])]:
        with BlockStore(tmp_path, budget) as store:
            found.append([stored.fetch(Buffer()).X.tobytes() for stored in fill(store, X, y, None, pieces)])
    assert found[0] == found[1] == found[2] == found[3]


@pytest.mark.parametrize("budget", [None, 0])
@pytest.mark.parametrize("weighted", [True, False])
def test_sparse_rows_come_back_as_they_were_put(tmp_path: Path, budget: int | None, weighted: bool) -> None:
    X = random_sparse(6_000, 300, density=0.2, format="csr", dtype=np.float32, random_state=1)
    y = np.arange(6_000, dtype=np.float32)
    weight = y + 1 if weighted else None
    with BlockStore(tmp_path, budget) as store:
        filler = SparseFiller(store)
        for start in range(0, 6_000, 1000):
            cut = slice(start, start + 1000)
            filler.add(X[cut], y[cut], None if weight is None else weight[cut])
        filler.finish()
        found_X, found_y, found_weight = gather(filler.blocks)
        assert len(filler.blocks) > 1
        assert all(block.fetch(Buffer()).X.nnz <= BLOCK_VALUES for block in filler.blocks)
    np.testing.assert_array_equal(found_X, X.toarray())
    np.testing.assert_array_equal(found_y, y)
    assert (found_weight is None) is not weighted


def test_a_row_with_more_values_than_a_block_is_a_block() -> None:
    X = random_sparse(3, 400_000, density=0.9, format="csr", dtype=np.float32, random_state=1)
    with BlockStore(Path("/nowhere"), None) as store:
        filler = SparseFiller(store)
        filler.add(X, np.ones(3, np.float32), None)
        filler.finish()
    assert [block.rows for block in filler.blocks] == [1, 1, 1]


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("steps", [1, 3, 50, 700])
def test_each_row_is_met_once_an_epoch_in_another_order(tmp_path: Path, sparse: bool, steps: int) -> None:
    rng = np.random.default_rng(0)
    sizes = [64, 640, 128, 7]
    with BlockStore(tmp_path, None) as store:
        blocks, start = [], 0
        for size in sizes:
            y = np.arange(start, start + size, dtype=np.float32)
            X = np.stack([y, 2 * y]).astype(np.float32)
            block: Any = DenseBlock(X, y, None)
            if sparse:
                from scipy.sparse import csr_matrix

                block = SparseBlock(csr_matrix(X.T), y, None)
            blocks.append(store.keep(block))
            start += size
        stream = LaneStream(3, blocks, seed=int(rng.integers(100)))
        orders = []
        for epoch in (0, 1):
            seen = []
            for step in range(steps):
                for part in stream.take(epoch, step, steps):
                    values = part.X.toarray()[:, 1] if sparse else part.X[1]
                    np.testing.assert_array_equal(values, 2 * part.y)
                    seen.extend(part.y.tolist())
            assert sorted(seen) == list(range(start))
            orders.append(seen)
        assert orders[0] != orders[1]


def test_any_step_of_any_epoch_can_be_taken_alone(tmp_path: Path) -> None:
    with BlockStore(tmp_path, None) as store:
        y = np.arange(1000, dtype=np.float32)
        blocks = [store.keep(DenseBlock(y[None, at : at + 100], y[at : at + 100], None)) for at in range(0, 1000, 100)]
        whole = LaneStream(0, blocks, seed=1)
        taken = [np.concatenate([part.y for part in whole.take(2, step, 13)]) for step in range(13)]
        for step in (12, 5, 0):
            alone = LaneStream(0, blocks, seed=1)
            np.testing.assert_array_equal(np.concatenate([part.y for part in alone.take(2, step, 13)]), taken[step])


def test_memory_is_shared_out_between_blocks_and_reading() -> None:
    assert plan_room(None, 10, 28, 1).blocks_bytes is None
    room = plan_room(1 << 30, 200 << 20, 28, 2)
    assert room.blocks_bytes is not None
    assert room.blocks_bytes + 2 * room.in_flight_bytes + (200 << 20) < 1 << 30
    assert (plan_room(300 << 20, 200 << 20, 28, 1).blocks_bytes or 0) < 10 << 20
    assert plan_room(300 << 20, 200 << 20, 28, 16).blocks_bytes == 0
    with pytest.raises(TrainingError, match="too small"):
        plan_room(250 << 20, 200 << 20, 28, 1)
