"""Lanes add up to the same bits however ranks host them, at every size; rank 0 leads, and only it is told."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from pipelines.errors import TrainingError
from pipelines.training import reducers
from pipelines.training.gang.collective import TcpCollective
from pipelines.training.reducers import GATHER_VALUES, PIECE_VALUES, ReproducibleSum
from pipelines.training.reproducible import MAX_ADDENDS

LANES = 16
# By rank: neighbouring lanes, every n-th lane, ranks without any, in no order at all; seven ranks.
HOSTED: list[list[list[int]]] = [
    [list(range(16))],
    [list(range(8)), list(range(8, 16))],
    [list(range(rank, 16, 3)) for rank in range(3)],
    [[15, 0, 7], [], [8, *range(1, 7), *range(9, 15)]],
    [[], list(range(15, -1, -1)), []],
    [list(range(16 * rank // 7, 16 * (rank + 1) // 7)) for rank in range(7)],
    [[5 * lane % 16 for lane in range(rank, 16, 7)] for rank in range(7)],
]


def partials(size: int) -> np.ndarray:
    rng = np.random.default_rng(size)
    return rng.normal(size=(LANES, size)) * 10.0 ** rng.integers(-9, 9, (LANES, size))


@pytest.mark.parametrize("size", [0, 1, 5, 1002, GATHER_VALUES // 7, GATHER_VALUES // 2 + 1, 100_100])
def test_hosts_do_not_change_bits(mesh: Any, size: int) -> None:
    rows = partials(size)
    bits = set()
    for hosted in HOSTED:

        def program(collective: TcpCollective, hosted: list[list[int]] = hosted) -> np.ndarray | None:
            return ReproducibleSum(collective).sum(rows[hosted[collective.rank]])

        total, *others = mesh.run([program] * len(hosted))
        assert others == [None] * len(others)
        bits.add(total.tobytes())
    assert len(bits) == 1
    assert PIECE_VALUES < 100_100 / 3  # the longest takes two and three ranks several rounds
    exact = [math.fsum(column) for column in rows[:, ::501].T]
    np.testing.assert_array_max_ulp(np.frombuffer(bits.pop())[::501], np.array(exact, np.float64), maxulp=1)


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_neither_the_way_nor_the_pieces_change_bits(mesh: Any, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    rows = partials(size)
    expected = mesh.run([lambda collective: ReproducibleSum(collective).sum(rows)])[0].tobytes()
    monkeypatch.setattr(reducers, "GATHER_VALUES", 0)
    monkeypatch.setattr(reducers, "PIECE_VALUES", 31)
    for hosted in HOSTED[1:]:  # up to seventeen rounds; some ranks have no piece at all of the shortest

        def program(collective: TcpCollective, hosted: list[list[int]] = hosted) -> np.ndarray | None:
            return ReproducibleSum(collective).sum(rows[hosted[collective.rank]])

        assert mesh.run([program] * len(hosted))[0].tobytes() == expected


@pytest.mark.parametrize("size", [3, GATHER_VALUES + 3])
def test_what_is_not_finite_is_told(mesh: Any, size: int) -> None:
    rows = np.ones((4, size))
    rows[2, 0], rows[3, 1], rows[1, 2], rows[2, 2] = np.nan, -np.inf, np.inf, -np.inf

    def program(collective: TcpCollective) -> np.ndarray | None:
        return ReproducibleSum(collective).sum(rows[collective.rank :: 2])

    total, _ = mesh.run([program] * 2)
    np.testing.assert_array_equal(total, [np.nan, -np.inf, np.nan, *[4.0] * (size - 3)])


@pytest.mark.parametrize("size", [3, GATHER_VALUES + 1])
def test_the_result_is_the_callers_own_and_its_argument_stays(mesh: Any, size: int) -> None:
    rows = np.ones((2, size))

    def program(collective: TcpCollective) -> np.ndarray | None:
        total = ReproducibleSum(collective).sum(rows)
        if total is not None:
            total[:] = 7.0
        return total

    for ranks in (1, 2):
        total, *_ = mesh.run([program] * ranks)
        np.testing.assert_array_equal(total, 7.0)
    np.testing.assert_array_equal(rows, 1.0)


@pytest.mark.parametrize("size", [2, GATHER_VALUES + 1])
def test_more_lanes_than_can_be_added_are_refused(mesh: Any, size: int) -> None:
    rows = np.broadcast_to(np.zeros((1, size)), (MAX_ADDENDS // 2 + 1, size))

    def program(collective: TcpCollective) -> np.ndarray | None:
        return ReproducibleSum(collective).sum(rows)

    found = mesh.run([program] * 2)
    assert isinstance(found[0], TrainingError)
    assert "Train with fewer lanes" in str(found[0])
