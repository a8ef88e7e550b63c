"""Slow ranks are told from fast ones by what a row takes them, and get shares in proportion."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.training.lanes import deal_lanes
from pipelines.training.stragglers import Pace, slow_ranks, speeds
from tests.unit.training.test_lanes import plan_of


def test_the_slow_one_is_named_with_its_ratio() -> None:
    paces = {0: Pace(10.0, 1000), 1: Pace(31.0, 1000), 2: Pace(10.5, 1000)}
    assert slow_ranks(paces) == {1: pytest.approx(31 / 10.5)}
    assert speeds(paces, 4) == pytest.approx([1.0, 10 / 31, 10 / 10.5, 1.0])


def test_more_rows_are_no_reason() -> None:
    assert slow_ranks({0: Pace(10.0, 1000), 1: Pace(30.0, 3000)}) == {}


def test_of_two_the_faster_one_is_the_measure() -> None:
    assert slow_ranks({0: Pace(2.0, 100), 1: Pace(6.0, 100)}) == {1: 3.0}


@pytest.mark.parametrize(
    "paces", [{}, {0: Pace(9.0, 10)}, {0: Pace(0.01, 100), 1: Pace(0.9, 100)}, {0: Pace(3.0, 0), 1: Pace(9, 9)}]
)
def test_little_is_no_evidence(paces: dict[int, Pace]) -> None:
    assert slow_ranks(paces) == {}


@given(st.lists(st.integers(1, 100), min_size=8, max_size=40), st.lists(st.floats(0.1, 1.0), min_size=1, max_size=5))
def test_shares_are_in_proportion_to_speed(sizes: list[int], rates: list[float]) -> None:
    lanes = [(place,) for place in range(len(sizes))]
    dealt = deal_lanes(cast(Any, plan_of(sizes)), lanes, [()] * len(rates), rates)
    assert sorted(lane for own in dealt for lane in own) == list(range(len(sizes)))
    for own, rate in zip(dealt, rates, strict=True):
        share = sum(sizes) * rate / sum(rates)
        assert sum(sizes[lane] for lane in own) <= share + max(sizes) * len(rates)
