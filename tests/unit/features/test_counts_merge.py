"""Are distinct values counted exactly up to the cap, in one order, however the rows are grouped?"""

from __future__ import annotations

from collections import Counter as Reference
from itertools import pairwise

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from pipelines.features.counts import Counter, Counts

WORDS = st.lists(st.none() | st.text("abé", max_size=2), max_size=40)


def counted(pieces: list[list[str | None]], cap: int, dictionary: bool = False) -> Counts:
    total = Counter(pa.string(), cap)
    for piece in pieces:
        part = Counter(pa.string(), cap)
        values = pa.array(piece, pa.string())
        part.update(values.dictionary_encode() if dictionary else values)
        total.merge(part.result())
    return total.result()


@given(WORDS, st.lists(st.integers(0, 40), max_size=4), st.integers(1, 9), st.booleans())
def test_counts_do_not_hang_on_grouping_or_form(
    words: list[str | None], cuts: list[int], cap: int, coded: bool
) -> None:
    bounds = [0, *sorted(min(cut, len(words)) for cut in cuts), len(words)]
    pieces = [words[a:b] for a, b in pairwise(bounds)]
    found, expected = counted(pieces, cap, coded), Reference(word for word in words if word is not None)
    assert found.missing == words.count(None)
    assert found.overflow == (len(expected) > cap)
    if not found.overflow:
        in_order = sorted(expected, key=str.encode)
        assert found.values.to_pylist() == in_order
        assert found.counts.tolist() == [expected[word] for word in in_order]


def test_of_equally_frequent_values_the_smaller_comes_first() -> None:
    found = counted([["b", "a", "b", "a", "c"]], 10)
    assert found.values[found.most_frequent()].as_py() == "a"


def test_many_batches_are_counted_in_bounded_room() -> None:
    counter, rng = Counter(pa.int64(), 100_000), np.random.default_rng(0)
    everything = []
    for _ in range(60):
        values = rng.integers(0, 5000, 1000)
        everything.append(values)
        counter.update(pa.array(values))
        assert sum(table.num_rows for table in counter._tables) <= 2 * 5000 + 4096 + 1000
    values, counts = np.unique(np.concatenate(everything), return_counts=True)
    assert counter.result().values.to_pylist() == values.tolist()
    assert counter.result().counts.tolist() == counts.tolist()
