"""Lanes add up to the same bits however ranks host them, and to the same sum where that would cost too much."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pipelines.training.gang.collective import TcpCollective
from pipelines.training.reducers import ORDERED_BYTES, LaneOrder, add_in_order


@pytest.mark.parametrize("shape", [(1, 1), (7, 1), (32, 5), (33, 1002), (5, 40_000), (0, 4)])
def test_rows_are_added_one_after_the_other(shape: tuple[int, int]) -> None:
    rows = np.random.default_rng(0).normal(size=shape) * 10.0 ** np.random.default_rng(1).integers(-9, 9, shape)
    slow = np.zeros(shape[1])
    for row in rows:
        slow = slow + row
    assert add_in_order(rows).tobytes() == slow.tobytes()


@pytest.mark.parametrize("hosted", [[8], [4, 4], [3, 2, 3], [8, 0, 0], [1, 0, 7]])
def test_hosts_do_not_change_bits(mesh: Any, hosted: list[int]) -> None:
    rows = np.random.default_rng(0).normal(size=(8, 100)) * 10.0 ** np.random.default_rng(1).integers(-9, 9, (8, 100))
    starts = np.cumsum([0, *hosted])

    def program(collective: TcpCollective) -> np.ndarray | None:
        return LaneOrder(collective, 8).sum(rows[starts[collective.rank] : starts[collective.rank + 1]])

    total, *others = mesh.run([program] * len(hosted))
    assert total.tobytes() == add_in_order(rows).tobytes()
    assert others == [None] * len(others)


def test_long_vectors_are_added_by_ranks_first(mesh: Any) -> None:
    rows = np.random.default_rng(0).normal(size=(6, ORDERED_BYTES // 8))

    def program(collective: TcpCollective) -> np.ndarray | None:
        return LaneOrder(collective, 6).sum(rows[3 * collective.rank : 3 * collective.rank + 3])

    for total in mesh.run([program] * 2)[:1]:
        np.testing.assert_allclose(total, rows.sum(axis=0), rtol=0, atol=1e-14)
