"""Every weight has one place, and shards are asked for equally much, however keys are numbered."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.errors import UsageError
from pipelines.training.strategies.parameter_server.layout import MOST, Layout


@given(st.integers(1, 5000), st.integers(1, 7))
def test_places_are_a_permutation_that_can_be_undone(size: int, shards: int) -> None:
    layout = Layout(max(size, shards), shards)
    keys = np.arange(layout.size, dtype=np.int32)
    places = layout.place(keys)
    assert np.array_equal(np.sort(places), keys)
    assert np.array_equal(layout.keys(places), keys)


@given(st.integers(0, MOST - 1))
def test_the_largest_layout_computes_without_overflow(key: int) -> None:
    layout = Layout(MOST, 8)
    place = layout.place(np.array([key], np.int32))
    assert layout.keys(place)[0] == key
    shard, local = layout.find(key)
    assert layout.bounds[shard] + local == place[0]
    assert 0 <= local < layout.length(shard)


@given(st.integers(1, 300), st.integers(1, 5), st.data())
def test_sorted_places_are_cut_where_shards_begin(size: int, shards: int, data: st.DataObject) -> None:
    layout = Layout(max(size, shards), shards)
    places = np.array(sorted(data.draw(st.sets(st.integers(0, layout.size - 1)))), np.int64)
    cuts = layout.cut(places)
    for shard in range(shards):
        inside = places[cuts[shard] : cuts[shard + 1]]
        assert ((inside >= layout.bounds[shard]) & (inside < layout.bounds[shard + 1])).all()
    assert (cuts[0], cuts[-1]) == (0, len(places))


HOT = {
    "the first keys": np.arange(2000),
    "every second key": np.arange(0, 4000, 2),
    "every 64th key": np.arange(0, 128_000, 64),
    "the last keys": np.arange(998_000, 1_000_000),
}


@pytest.mark.parametrize("hot", HOT.values(), ids=HOT)
@pytest.mark.parametrize("shards", [2, 3, 8])
def test_keys_that_are_numbered_by_a_pattern_are_spread(hot: np.ndarray, shards: int) -> None:
    layout = Layout(1_000_000, shards)
    counts = np.diff(layout.cut(np.sort(layout.place(hot))))
    # Chance alone would give a standard deviation of √(2000/shards), at most 5 % of 1000 and 16 of 250.
    assert counts.min() > 0.8 * len(hot) / shards


@pytest.mark.parametrize(("size", "shards"), [(0, 1), (3, 4), (2**31, 2), (10, 0)])
def test_what_can_not_be_laid_out_is_refused(size: int, shards: int) -> None:
    with pytest.raises(UsageError, match=f"found {shards} shards and {size} weights"):
        Layout(size, shards)
