"""One server at a time can be lost; no shard is ever led by two, and replacements take the load back."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.errors import GangError
from pipelines.training.strategies.parameter_server.views import (
    View,
    first_view,
    refilled,
    relieved,
    unlinked,
    with_synced,
    without,
)


def addresses(count: int) -> list[tuple[str, int]]:
    return [("host", 1000 + number) for number in range(count)]


def synced(view: View) -> View:
    for shard, held in enumerate(view.shards):
        view = with_synced(view, shard, held.term)
    return view


def joined(view: View, server: int) -> View:
    return refilled(View(view.shards, {**view.servers, server: ("host", 1000 + server)}))


@given(st.integers(2, 6), st.lists(st.integers(0, 20), max_size=12))
def test_servers_that_are_lost_and_replaced_one_after_the_other_lose_no_shard(count: int, losses: list[int]) -> None:
    view, newest = first_view(addresses(count), replicas=True), count
    for loss in losses:
        lost = sorted(view.servers)[loss % len(view.servers)]
        before, view = view, without(view, lost)
        for old, held in zip(before.shards, view.shards, strict=True):
            assert lost not in (held.primary, held.replica)
            assert held.primary in (old.primary, old.replica)
            assert (held.term > old.term) == (lost in (old.primary, old.replica))
        view = synced(joined(view, newest))
        newest += 1
        while (next_view := relieved(view)) is not None:
            view = next_view
        assert all(held.synced and held.replica not in (None, held.primary) for held in view.shards)
        assert sorted(held.primary for held in view.shards) == sorted(view.servers)
    assert View.from_json(json.loads(json.dumps(view.to_json()))) == view


def test_a_shard_without_a_complete_copy_is_lost() -> None:
    alone = first_view(addresses(2), replicas=False)
    with pytest.raises(GangError, match=r"shard 1 of the weights was lost with server 1; .*found none"):
        without(alone, 1)
    filling = joined(without(first_view(addresses(2), replicas=True), 0), 2)
    with pytest.raises(GangError, match="one on server 2 that was being filled"):
        without(filling, 1)
    assert without(filling, 2).shards[0].primary == 1


@pytest.mark.parametrize(
    ("hosts", "replicas"),
    [("aabb", [2, 3, 0, 1]), ("abab", [1, 2, 3, 0]), ("aaaa", [1, 2, 3, 0]), ("aab", [1, 2, 0])],
)
def test_replicas_are_on_other_machines_where_there_are_any(hosts: str, replicas: list[int]) -> None:
    view = first_view([(host, 1000 + number) for number, host in enumerate(hosts)], replicas=True)
    assert [held.replica for held in view.shards] == replicas


def test_a_replica_is_complete_only_in_its_own_term() -> None:
    view = joined(without(first_view(addresses(2), replicas=True), 0), 2)
    assert not with_synced(view, 0, view.shards[0].term - 1).shards[0].synced
    assert with_synced(view, 0, view.shards[0].term).shards[0].synced


def test_a_replica_that_can_not_be_reached_is_given_up_once() -> None:
    view = first_view(addresses(3), replicas=True)
    term = view.shards[1].term
    given_up = unlinked(view, 1, term)
    assert given_up.shards[1].replica is None
    assert given_up.shards[1].term == term + 1
    assert unlinked(given_up, 1, term) == given_up


def test_one_server_has_no_replica_until_a_second_comes() -> None:
    view = first_view(addresses(1), replicas=True)
    assert view.shards[0].replica is None
    assert joined(view, 1).shards[0].replica == 1
