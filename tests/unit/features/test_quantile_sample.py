"""Are quantiles exact where that is promised, near elsewhere, and the same for any grouping of the rows?"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.data.hashing import hash_rows
from pipelines.features.counts import Counter
from pipelines.features.quantiles import FEWEST, Sample, SampleRule, quantiles_of_counts, quantiles_of_sample

SCHEMA = pa.schema([("0", pa.float64())])


def sampled(rule: SampleRule, hashes: np.ndarray, values: np.ndarray, cuts: list[int]) -> pa.Table:
    total = Sample(rule, SCHEMA)
    for places in np.split(np.arange(len(values)), sorted(cuts)):
        part, chosen = Sample(rule, SCHEMA), rule.chosen(hashes[places])
        part.update(hashes[places][chosen], [pa.array(values[places][chosen])])
        total.merge(part.table)
    return total.table


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=50), st.floats(0, 1))
def test_quantiles_of_counts_are_those_of_numpy(values: list[int], share: float) -> None:
    counter = Counter(pa.float64(), 100)
    counter.update(pa.array(values, pa.float64()))
    found = quantiles_of_counts(counter.result(), [share])[0]
    # The same interpolation, but for one rounding.
    assert found == pytest.approx(np.quantile(values, share), abs=1e-12)


@given(
    st.integers(0, 2000),
    st.integers(1, 500),
    st.lists(st.integers(0, 2000), max_size=5),
    st.sampled_from([1, 30, 10**9]),
)
def test_the_sample_does_not_hang_on_grouping(rows: int, wanted: int, cuts: list[int], times: int) -> None:
    """`times` as many rows were there before split and filter: a sample of what is left is never empty."""
    hashes, values = hash_rows("a", 0, np.arange(rows), 1), np.arange(rows, dtype=np.float64)
    rule = SampleRule.of(wanted, rows * times)
    found = sampled(rule, hashes, values, cuts)
    lowest = np.argsort(hashes)[:wanted]
    eligible = [place for order, place in enumerate(lowest) if hashes[place] <= rule.threshold or order < FEWEST]
    assert found["0"].to_pylist() == values[eligible].tolist()


def test_small_data_are_sampled_whole() -> None:
    hashes, values = hash_rows("a", 0, np.arange(1000), 1), np.random.default_rng(0).normal(size=1000)
    table = sampled(SampleRule.of(1000, 1000), hashes, values, [])
    assert sorted(table["0"].to_pylist()) == sorted(values)


@pytest.mark.parametrize("share", [0.01, 0.25, 0.5, 0.9])
def test_the_rank_of_a_sampled_quantile_is_within_four_sigma(share: float) -> None:
    rows, wanted = 400_000, 20_000
    hashes, values = hash_rows("file", 3, np.arange(rows), 7), np.random.default_rng(1).lognormal(size=rows)
    table = sampled(SampleRule.of(wanted, rows), hashes, values, [100_000])
    assert table.num_rows == wanted
    found = quantiles_of_sample(table["0"].to_numpy(), [share])[0]
    rank = (values < found).mean()
    assert abs(rank - share) <= 4 * (share * (1 - share) / wanted) ** 0.5


def test_missing_values_of_the_sample_do_not_count() -> None:
    assert quantiles_of_sample(np.array([np.nan, 1.0, 3.0, np.inf]), [0.5]).tolist() == [2.0]
