"""Are mean and variance right, and do they forget how the rows were grouped?"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import reduce

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pipelines.features.moments import Moments, measure, steady

NUMBERS = arrays(
    np.float64,
    st.integers(1, 60),
    elements=st.floats(-1e6, 1e6, allow_nan=False).map(lambda x: round(x, 3)) | st.just(float("nan")),
)


def merged(pieces: list[np.ndarray]) -> Moments:
    return reduce(Moments.merge, (measure(piece) for piece in pieces), Moments())


@settings(max_examples=40)
@given(NUMBERS, st.lists(st.integers(0, 60), max_size=5))
def test_any_grouping_gives_the_moments_of_all_rows(values: np.ndarray, cuts: list[int]) -> None:
    found, there = merged(np.split(values, sorted(cuts))), values[np.isfinite(values)]
    assert (found.count, found.missing) == (len(there), int(np.isnan(values).sum()))
    if len(there):
        # Sums of n = 60 terms: n·2⁻⁵³ relative to the largest term, with room.
        scale = np.abs(there).max() or 1.0
        assert found.mean + found.rest == pytest.approx(there.mean(), abs=1e-13 * scale)
        assert found.squares == pytest.approx(((there - there.mean()) ** 2).sum(), rel=1e-12, abs=1e-24 * scale**2)
        assert (found.low, found.high) == (there.min(), there.max())


@settings(max_examples=40)
@given(NUMBERS, NUMBERS, NUMBERS)
def test_merging_is_associative(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    x, y, z = (measure(values) for values in (a, b, c))
    left, right = x.merge(y).merge(z), x.merge(y.merge(z))
    assert (left.count, left.missing, left.low, left.high) == (right.count, right.missing, right.low, right.high)
    scale = max((abs(v) for v in (left.low, left.high) if math.isfinite(v)), default=1.0) or 1.0
    assert left.mean == pytest.approx(right.mean, abs=1e-13 * scale)
    assert left.squares == pytest.approx(right.squares, rel=1e-12, abs=1e-24 * scale**2)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("offset", [0.0, 1e3, -1e7, 1e12])
def test_the_rounded_moments_are_the_same_bits_for_any_grouping(seed: int, offset: float) -> None:
    rng = np.random.default_rng(seed)
    values = rng.normal(offset, 3.0, 50_000)
    groupings = [[values], np.array_split(values, 7), np.split(values, np.sort(rng.integers(0, 50_000, 40)))]
    assert len({steady(merged(pieces)) for pieces in groupings}) == 1


def test_a_large_mean_does_not_drown_a_small_variance() -> None:
    values = 1e9 + np.random.default_rng(0).normal(0, 1e-2, 20_000)
    exact = [Fraction(value) for value in values.tolist()]
    mean = sum(exact) / len(exact)
    variance = sum((value - mean) ** 2 for value in exact) / len(exact)
    found_mean, found_std = steady(measure(values))
    # The mean is the nearest float64, the deviation is good to 32 bits.
    assert found_mean == float(mean)
    assert found_std == pytest.approx(math.sqrt(variance), rel=1e-9)


def test_float32_is_summed_in_float64() -> None:
    values = np.full(1_000_000, 0.1, np.float32)
    values[0] = 0.2
    expected = values.astype(np.float64)
    assert steady(measure(values))[0] == pytest.approx(expected.mean(), rel=1e-9)
    assert steady(measure(values))[1] == pytest.approx(expected.std(), rel=1e-9)


def test_missing_and_infinite_values_are_counted_and_left_out() -> None:
    found = measure(np.array([1.0, np.nan, np.inf, 3.0, -np.inf, np.nan]))
    assert (found.count, found.missing, found.infinite, found.mean, found.low, found.high) == (2, 2, 2, 2.0, 1.0, 3.0)


def test_a_first_block_far_from_the_rest_does_no_harm() -> None:
    values = np.random.default_rng(0).normal(0, 1, 20_000)
    values[:8192] += 1e8
    found = measure(values)
    exact = [Fraction(value) for value in values.tolist()]
    mean = sum(exact) / len(exact)
    squares = sum((value - mean) ** 2 for value in exact)
    assert found.mean + found.rest == pytest.approx(float(mean), rel=1e-14)
    assert found.squares == pytest.approx(float(squares), rel=1e-13)


def test_a_constant_has_no_deviation_at_all() -> None:
    assert steady(measure(np.full(100_003, 0.1))) == (0.1, 0.0)


def test_a_variance_beyond_float64_is_an_overflow() -> None:
    with pytest.raises(OverflowError):
        steady(measure(np.array([1e300, -1e300])))
