"""Sums are exact, so that neither order nor grouping shows in them."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipelines.evaluation import sums

finite = st.floats(allow_nan=False, allow_infinity=False, width=64)
# Below the range in which the exact sum itself leaves float64.
moderate = st.floats(min_value=-1e300, max_value=1e300, width=64)


@given(st.lists(moderate, max_size=50))
def test_a_sum_is_the_correctly_rounded_one(values):
    found = sums.as_float(sums.grouped_sums(np.array(values, np.float64))[0])
    assert found == math.fsum(values)


@given(st.lists(st.tuples(finite, st.integers(0, 3)), max_size=50), st.randoms())
def test_any_order_and_grouping_gives_the_same_sums(pairs, random):
    def total(some):
        values = np.array([value for value, _ in some], np.float64)
        return sums.grouped_sums(values, np.array([group for _, group in some], np.intp), 4)

    whole = total(pairs)
    shuffled = random.sample(pairs, len(pairs))
    cut = random.randint(0, len(pairs))
    assert sums.add(total(shuffled[:cut]), total(shuffled[cut:])) == whole


def test_groups_are_summed_apart_and_blocks_together(monkeypatch):
    rng = np.random.default_rng(1)
    values, groups = rng.standard_normal(1000) * 10.0 ** rng.integers(-250, 250, 1000), rng.integers(0, 20, 1000)
    whole = sums.grouped_sums(values, groups, 20)
    assert [sums.as_float(each) for each in whole] == [math.fsum(values[groups == g]) for g in range(20)]
    monkeypatch.setattr(sums, "_ROWS", 7)
    monkeypatch.setattr(sums, "_GROUPED_ROWS", 13)
    assert sums.grouped_sums(values, groups, 20) == whole


def test_extremes_are_exact():
    tiny, huge = 5e-324, 1.7976931348623157e308
    assert sums.as_float(sums.grouped_sums(np.array([huge, tiny, -huge]))[0]) == tiny
    assert sums.grouped_sums(np.array([huge, huge]))[0] == 2 * sums.exact(huge)


@given(finite)
def test_single_values_are_written_exactly(value):
    assert sums.as_float(sums.exact(value)) == value
    assert sums.grouped_sums(np.array([value])) == [sums.exact(value)]


def test_counts_are_sums_of_ones():
    groups = np.array([0, 2, 2, 1, 2], np.intp)
    assert sums.grouped_counts(groups, 4) == sums.grouped_sums(np.ones(5), groups, 4)


@given(st.lists(st.tuples(st.floats(-1e100, 1e100), st.floats(-1e100, 1e100)), min_size=1, max_size=20))
def test_products_are_exact_together_with_their_error(pairs):
    a, b = (np.array(side) for side in zip(*pairs, strict=True))
    a, b = np.where(abs(a) < 1e-100, 0.0, a), np.where(abs(b) < 1e-100, 0.0, b)  # Dekker's product may underflow below
    product, error = sums.two_product(a, b)
    for x, y, p, e in zip(a.tolist(), b.tolist(), product.tolist(), error.tolist(), strict=True):
        # Both sides in units of 2^-1126: the product of two such numbers has twice the shift.
        assert sums.exact(x) * sums.exact(y) == sums.whole(sums.exact(p) + sums.exact(e))
