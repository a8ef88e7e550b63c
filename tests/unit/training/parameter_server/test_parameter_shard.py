"""A shard is a dictionary of rows that starts at zero, refuses what would damage it, and pays for what it holds."""

from __future__ import annotations

import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.errors import DataError
from pipelines.training.strategies.parameter_server.rules import Adagrad, Ftrl, Rule, Sgd
from pipelines.training.strategies.parameter_server.shard import Shard

SIZE = 20
UPDATES = st.lists(st.dictionaries(st.integers(0, SIZE - 1), st.integers(-3, 3), min_size=1), max_size=8)


def first_if(free: bool) -> np.ndarray:
    """The place of a row that is alone, if its weight is free."""
    return np.zeros(int(free), np.intp)


@given(UPDATES, st.sampled_from([Sgd(0.5), Adagrad(0.5), Ftrl(0.5, l1=0.5)]), st.sampled_from([(), (4,), (2, 4, 19)]))
def test_a_shard_is_a_dictionary_of_rows(updates: list[dict[int, int]], rule: Rule, free: tuple[int, ...]) -> None:
    shard, model = Shard(SIZE, rule, free), {key: np.zeros((1, rule.columns), np.float32) for key in range(SIZE)}
    for clock, update in enumerate(updates):
        keys = np.array(sorted(update), np.int32)
        new = shard.push(keys, np.array([update[key] for key in keys], np.float32), clock)
        for key in keys:
            gradient = np.array([update[key]], np.float32)
            model[key] = rule.update(model[key], gradient, clock, first_if(key in free))
        np.testing.assert_array_equal(new, np.concatenate([model[key] for key in keys]))
    everything = np.arange(SIZE, dtype=np.int32)
    expected = np.concatenate([rule.weights(model[key], first_if(key in free)) for key in range(SIZE)])
    np.testing.assert_array_equal(shard.pull(everything), expected)
    held = [key for key in range(SIZE) if model[key].any()]
    keys, rows = shard.read(0, SIZE)
    copy = Shard(SIZE, rule, free)
    copy.write(keys, rows)
    assert keys.tolist() == held
    assert shard.occupied == copy.occupied == len(held)
    np.testing.assert_array_equal(copy.pull(everything), expected)


BAD = [[3, 3], [4, 2], [-1, 2], [5, SIZE]]


@pytest.mark.parametrize("keys", BAD)
def test_keys_that_would_be_written_twice_or_elsewhere_are_refused(keys: list[int]) -> None:
    shard, wrong = Shard(SIZE, Sgd()), np.array(keys, np.int32)
    for refused in (shard.pull, lambda k: shard.push(k, np.ones(2, np.float32), 0)):
        with pytest.raises(DataError, match="ascending keys from 0 to 19"):
            refused(wrong)
    assert shard.occupied == 0


def test_a_gradient_that_is_not_finite_changes_nothing() -> None:
    shard = Shard(SIZE, Adagrad())
    with pytest.raises(DataError, match="1 of them not finite"):
        shard.push(np.array([1, 2], np.int32), np.array([1.0, np.nan], np.float32), 0)
    assert shard.occupied == 0
    assert not len(shard.pull(np.empty(0, np.int32)))


def test_rows_that_were_never_written_take_no_memory() -> None:
    before = psutil.Process().memory_info().rss
    shard = Shard(100_000_000, Ftrl())
    shard.push(np.arange(0, 1000, 7, dtype=np.int32), np.ones(143, np.float32), 0)
    # Of 800 MB; one page holds all of these rows, and a page may have 2 MiB.
    assert psutil.Process().memory_info().rss - before < 32 << 20
    assert shard.occupied == 143
