"""The order of samples is a pure function, the same on every machine."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.data.order import epoch_order, mix, random_words


def test_words_are_pinned() -> None:
    # SplitMix64 seeded with 1234567 gives these (Vigna's reference implementation), whatever NumPy's version.
    state = np.uint64(1234567)
    words = mix(state + np.uint64(0x9E3779B97F4A7C15) * np.arange(1, 6, dtype=np.uint64))
    assert words.tolist() == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert random_words(2, "order", 7, 0, 0).tolist() == [7123770515445170959, 1589340102492195796]


def test_orders_are_pinned() -> None:
    assert epoch_order(7, 0, 0, 10).tolist() == [1, 5, 2, 0, 4, 3, 8, 6, 9, 7]
    assert epoch_order(7, 1, 0, 10).tolist() == [7, 5, 3, 8, 4, 9, 1, 2, 6, 0]


@given(st.integers(-(2**40), 2**40), st.integers(0, 1000), st.integers(0, 100), st.integers(0, 300))
@settings(max_examples=50)
def test_an_order_visits_everything_once(seed: int, epoch: int, lane: int, n: int) -> None:
    order = epoch_order(seed, epoch, lane, n)
    assert sorted(order.tolist()) == list(range(n))
    assert order.tolist() == epoch_order(seed, epoch, lane, n).tolist()


def test_epochs_lanes_and_seeds_differ() -> None:
    orders = {tuple(epoch_order(seed, epoch, lane, 50)) for seed in (0, 1) for epoch in (0, 1) for lane in (0, 1)}
    assert len(orders) == 8


def test_places_are_even() -> None:
    # 4,000 orders of 8: every element at every place 500 ± 5 σ (σ = 21) times.
    counts = np.zeros((8, 8), int)
    for epoch in range(4000):
        counts[epoch_order(3, epoch, 0, 8), np.arange(8)] += 1
    assert abs(counts - 500).max() < 105
