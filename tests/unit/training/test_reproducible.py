"""Sums are the same bits in any order and grouping, over the whole range of doubles, and no worse than plain sums."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.errors import TrainingError
from pipelines.training.reproducible import FOLDS, MAX_ADDENDS, WIDTH, Binned, deposit, finish, merge

LARGEST, LEAST = float(np.finfo(np.float64).max), 5e-324
SPECIAL = [0.0, -0.0, LEAST, -LEAST, 2.0**-1022, -(2.0**-1022), LARGEST, -LARGEST, 2.0**1006, -(2.0**1006), 1.0, -1.0]
FINITE = st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.sampled_from(SPECIAL))
ANY = st.one_of(FINITE, st.sampled_from([math.inf, -math.inf, math.nan]))


def edges(lowest: int) -> st.SearchStrategy[float]:
    """Values around the edges of a few neighbouring bins, where the topmost bin changes and where ties lie."""
    return st.builds(
        lambda place, offset, step, sign: sign * math.ldexp(1.0 + step * 2.0**-52, WIDTH * place - 1074 + offset),
        st.integers(lowest, lowest + FOLDS),
        st.integers(-3, 2),
        st.sampled_from([0, 1, 2, 1 << 51, (1 << 52) - 1]),
        st.sampled_from([-1.0, 1.0]),
    )


def matrices(values: st.SearchStrategy[float], rows: int = 10) -> st.SearchStrategy[np.ndarray]:
    return st.tuples(st.integers(0, rows), st.integers(1, 3)).flatmap(
        lambda shape: st.lists(values, min_size=shape[0] * shape[1], max_size=shape[0] * shape[1]).map(
            lambda found: np.array(found, np.float64).reshape(shape)
        )
    )


def grouped(rows: np.ndarray, rng: random.Random) -> Binned:
    """Add rows in a random order, in random groups of groups, some of them empty, some sent as bytes."""
    order = rng.sample(range(len(rows)), len(rows))
    cuts = sorted(rng.choices(range(len(rows) + 1), k=rng.randint(0, 6)))
    groups = [rows[order[low:high]] for low, high in zip([0, *cuts], [*cuts, len(rows)], strict=True)]
    sums = [deposit(group) for group in groups]
    while len(sums) > 1:
        taken = [sums.pop(rng.randrange(len(sums))) for _ in range(rng.randint(2, len(sums)))]
        sums.append(Binned.from_bytes(merge(taken).to_bytes(), rows.shape[1]))
    return sums[0]


def bits(total: Binned) -> tuple[bytes, bytes]:
    return total.to_bytes(), finish(total).tobytes()


@settings(max_examples=100, deadline=None)
@given(matrices(ANY), st.randoms(use_true_random=False))
def test_neither_order_nor_grouping_changes_bits(rows: np.ndarray, rng: random.Random) -> None:
    whole = deposit(rows)
    for _ in range(3):
        assert bits(grouped(rows, rng)) == bits(whole)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.integers(0, 38).flatmap(lambda lowest: matrices(edges(lowest))), st.randoms(use_true_random=False))
def test_values_at_the_edges_of_bins_are_cut_alike_whatever_else_is_added(rows: np.ndarray, rng: random.Random) -> None:
    whole = deposit(rows)
    for _ in range(3):
        assert bits(grouped(rows, rng)) == bits(whole)


@settings(max_examples=100, deadline=None)
@given(matrices(FINITE), st.data())
def test_huge_cancellation_leaves_what_is_small(rows: np.ndarray, data: st.DataObject) -> None:
    # Everything and its opposite but for one row, which is kept as far as the largest addend's bins reach.
    rng = data.draw(st.randoms(use_true_random=False))
    doubled = np.concatenate([rows, -rows, np.ones((1, rows.shape[1]))])
    total = grouped(doubled, rng)
    assert bits(total) == bits(deposit(doubled))
    for column, found in enumerate(finish(total)):
        largest = max([Fraction(1), *(abs(Fraction(each)) for each in rows[:, column].tolist())])
        assert abs(Fraction(float(found)) - 1) <= len(doubled) * Fraction(1, 1 << (WIDTH * (FOLDS - 1))) * largest


@settings(max_examples=100, deadline=None)
@given(matrices(FINITE, rows=20))
def test_the_error_is_within_the_bound(rows: np.ndarray) -> None:
    for column, found in enumerate(finish(deposit(rows))):
        addends = [Fraction(each) for each in rows[:, column].tolist()]
        exact, largest = sum(addends, Fraction(0)), max(map(abs, addends), default=Fraction(0))
        lost = len(addends) * Fraction(1, 1 << (WIDTH * (FOLDS - 1))) * largest
        if math.isinf(found):
            # Half a unit beyond the largest double, less what the bound allows.
            assert abs(exact) + lost + Fraction(1, 1 << 52) * abs(exact) >= Fraction(LARGEST)
        else:
            assert abs(Fraction(float(found)) - exact) <= lost + Fraction(1, 1 << 52) * abs(exact)


@pytest.mark.parametrize("spread", [0, 10, 30, 300])
@pytest.mark.parametrize("addends", [1, 2, 16, 33, 500])
def test_sums_are_as_good_as_the_correctly_rounded_ones(addends: int, spread: int) -> None:
    rng = np.random.default_rng([addends, spread])
    rows = rng.normal(size=(addends, 200)) * 10.0 ** rng.uniform(-spread, spread, (addends, 200))
    exact = np.array([math.fsum(column) for column in rows.T])
    # The correctly rounded sum or its neighbour; a plain sum is off by up to `addends` such steps of the largest.
    np.testing.assert_array_max_ulp(finish(deposit(rows)), exact, maxulp=1)


def test_the_most_addends_of_the_most_units_are_counted_exactly() -> None:
    # Just below half a unit of the next bin, which are the largest counts there are, in all but the topmost bins.
    exponents = np.arange(-1074 + WIDTH * FOLDS, 960, WIDTH) - 1
    rows = np.tile(np.ldexp(1 - 2.0**-53, exponents), (MAX_ADDENDS, 1))
    expected = [float(MAX_ADDENDS * Fraction(float(each))) for each in rows[0]]
    assert finish(deposit(rows)).tolist() == expected
    assert finish(merge([deposit(-rows[:5000]), deposit(-rows[5000:])])).tolist() == [-each for each in expected]


@pytest.mark.parametrize("parts", [[MAX_ADDENDS + 1], [MAX_ADDENDS, 1], [0, 5000, 5000]])
def test_more_addends_than_are_exact_are_refused(parts: list[int]) -> None:
    with pytest.raises(TrainingError, match=f"expected at most {MAX_ADDENDS:,}"):
        merge([deposit(np.ones((count, 1))) for count in parts])


@pytest.mark.parametrize(
    ("addends", "expected"),
    [
        ([1.0, math.inf], math.inf),
        ([-math.inf, LARGEST, -math.inf], -math.inf),
        ([math.inf, -math.inf], math.nan),
        ([math.nan, 1.0], math.nan),
        ([math.nan, math.inf], math.nan),
        ([LARGEST, LARGEST], math.inf),
        ([-LARGEST, -LARGEST], -math.inf),
        ([LARGEST, LARGEST, -LARGEST], LARGEST),
        ([LARGEST, 1.0, -LARGEST], 0.0),  # 1 is 2^1023 times smaller than the largest: below the bins
        ([LEAST, LEAST], 2 * LEAST),
        ([-0.0, -0.0], 0.0),
        ([], 0.0),
    ],
)
def test_the_ends_of_the_range(addends: list[float], expected: float) -> None:
    # Beside columns that are finite, which stay as they are.
    rows = np.stack([np.array([3.5, each, -0.25]) for each in addends]) if addends else np.zeros((0, 3))
    found = finish(deposit(rows))
    count = len(addends)
    assert found.tobytes() == np.array([3.5 * count, expected, 0.0 - 0.25 * count]).tobytes()


@pytest.mark.parametrize("size", [0, 1, 8191, 8192, 8193, 20_000])
def test_elements_do_not_touch_each_other(size: int) -> None:
    rng = np.random.default_rng(size)
    rows = rng.normal(size=(5, size)) * 10.0 ** rng.integers(-200, 200, (5, size))
    with np.errstate(over="ignore"):
        rows[:, ::977] *= 1e200  # in some columns infinities, in some the topmost bin
    given = rows.copy()
    found = finish(deposit(rows))
    assert rows.tobytes() == given.tobytes()
    for column in [*range(0, size, 977), *range(size - 1, 0, -1511)]:
        assert found[column : column + 1].tobytes() == finish(deposit(rows[:, column : column + 1])).tobytes()


def test_matrices_need_not_be_contiguous() -> None:
    rows = np.random.default_rng(0).normal(size=(300, 7))
    assert bits(deposit(rows.T)) == bits(deposit(np.ascontiguousarray(rows.T)))


def test_parts_put_together_are_the_whole() -> None:
    total = deposit(np.random.default_rng(0).normal(size=(4, 100)))
    parts = [finish(Binned.from_bytes(total.part(low, low + 25).to_bytes(), 25)) for low in range(0, 100, 25)]
    assert np.concatenate(parts).tobytes() == finish(total).tobytes()
    assert len(total.to_bytes()) == 4 + 100 * (8 * FOLDS + 1)
