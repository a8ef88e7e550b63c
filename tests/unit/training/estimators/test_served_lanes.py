"""A rank's batches are its lanes' rows, once an epoch each, from wherever it goes on."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from pipelines.errors import DataError
from pipelines.training.blocks import DenseBlock, Resident, SparseBlock, Stored
from pipelines.training.estimators.served_lanes import batches, count_batches, measure_labels

LANES = {0: (7, 5), 3: (23,), 4: (1,)}  # rows of each block
EPOCHS = 3


def lanes(*, dense: bool = False) -> dict[int, list[Stored]]:
    """Make lanes whose rows are numbered: row r has the value r + 1 in its only column, and the label r."""
    found: dict[int, list[Stored]] = {}
    first = 0
    for lane, blocks in LANES.items():
        found[lane] = []
        for rows in blocks:
            numbers = np.arange(first, first + rows, dtype=np.float32)
            X = np.ascontiguousarray((numbers + 1)[None, :]) if dense else csr_matrix((numbers + 1)[:, None])
            found[lane].append(Resident(DenseBlock(X, numbers, None) if dense else SparseBlock(X, numbers, numbers)))
            first += rows
    return found


START = dict.fromkeys(LANES, (0, []))
SETTING = {"batch_rows": 5, "epochs": EPOCHS, "seed": 3}


@pytest.mark.parametrize("dense", [False, True])
def test_every_row_comes_once_an_epoch_and_lanes_keep_step(dense: bool) -> None:
    found = list(batches(lanes(dense=dense), START, **SETTING))
    seen = Counter((batch.number // batch.batches, float(label)) for batch in found for label in batch.block.y)
    assert seen == Counter((epoch, float(row)) for epoch in range(EPOCHS) for row in range(36))
    epochs = [batch.number // batch.batches for batch in found]
    assert epochs == sorted(epochs)
    for batch in found:
        assert batch.block.rows <= 5
        np.testing.assert_array_equal(batch.block.X.toarray()[:, 0], batch.block.y + 1)


def test_going_on_gives_the_batches_that_are_missing_in_the_same_rows() -> None:
    whole = {(batch.lane, batch.number): batch.block.y.tolist() for batch in batches(lanes(), START, **SETTING)}
    positions = {0: (4, [5, 7]), 3: (0, []), 4: (2, [])}
    rest = {(batch.lane, batch.number): batch.block.y.tolist() for batch in batches(lanes(), positions, **SETTING)}
    done = {(0, number) for number in (0, 1, 2, 3, 5, 7)} | {(4, 0), (4, 1)}
    assert rest == {key: rows for key, rows in whole.items() if key not in done}


def test_classes_weigh_what_they_should() -> None:
    blocks = {0: [Resident(SparseBlock(csr_matrix(np.ones((2, 1), np.float32)), np.array([0.0, 1.0]), None))]}
    weighted = list(batches(blocks, {0: (0, [])}, batch_rows=2, epochs=1, seed=0, class_weight=np.array([0.5, 3.0])))
    rows = weighted[0].block
    assert rows.weight is not None
    np.testing.assert_array_equal(rows.weight, np.where(rows.y == 1, 3.0, 0.5))


@pytest.mark.parametrize(("rows", "count"), [(0, 0), (1, 1), (5, 1), (6, 2)])
def test_a_lane_has_as_many_batches_as_it_needs(rows: int, count: int) -> None:
    assert count_batches(rows, 5) == count


def test_labels_are_measured_and_values_looked_at() -> None:
    # rows, weight, Σwy, Σwy², weight of both classes
    X = csr_matrix(np.array([[1.0], [2.0], [0.0]], np.float32))
    block = SparseBlock(X, np.array([1, 0, 1], np.float32), np.array([2, 3, 5], np.float32))
    np.testing.assert_array_equal(measure_labels([Resident(block)], 1, 2), [3, 10, 7, 7, 3, 7])
    block.X.data[1] = np.nan
    with pytest.raises(DataError, match="missing or not finite"):
        measure_labels([Resident(block)], 1, 2)
