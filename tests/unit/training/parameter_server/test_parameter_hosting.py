"""Which rank starts a server: all that are wanted at first, later one for each rank that has none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.training.strategies.parameter_server.hosting import share_out


@pytest.mark.parametrize(
    ("hosted", "servers", "begun", "expected"),
    [
        ([0, 0, 0], 2, False, [1, 1, 0]),
        ([0, 0], 5, False, [3, 2]),
        ([0, 1], 2, False, [1, 0]),
        ([1, 0, 1], 3, True, [0, 1, 0]),
        ([1], 2, True, [0]),
        ([1], 2, False, [1]),
        ([1, 1], 1, True, [0, 0]),
    ],
)
def test_servers_are_spread(hosted: list[int], servers: int, begun: bool, expected: list[int]) -> None:
    assert share_out(hosted, servers, begun=begun) == expected


@given(hosted=st.lists(st.integers(0, 3), min_size=1, max_size=8), servers=st.integers(1, 12), begun=st.booleans())
def test_there_are_never_too_many_nor_two_where_one_was_lost(hosted: list[int], servers: int, begun: bool) -> None:
    found = share_out(hosted, servers, begun=begun)
    after = [have + more for have, more in zip(hosted, found, strict=True)]
    assert sum(after) <= max(servers, sum(hosted))
    if begun:
        assert all(have == 1 for have, more in zip(after, found, strict=True) if more)
        assert sum(after) >= min(servers, len(hosted))
    else:
        assert sum(after) >= servers
