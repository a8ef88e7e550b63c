"""Checkpoints of another training are refused with what is different, and never gone on from."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.errors import UsageError
from pipelines.storage import ObjectStore, open_store
from pipelines.training.checkpoint import save_checkpoint
from pipelines.training.identity import differences, prefix_of, record_identity, refuse_others

PLAIN: dict[str, Any] = {
    "version": 3,
    "config": {"params": {"l2": 1e-4}, "random_state": 0},
    "files": {"a.parquet": "10 bytes, x"},
}
OTHERS = [
    ({"version": 4}, "version: 3 → 4"),
    ({"config": {"params": {"l2": 0.5}, "random_state": 0}}, "config.params.l2: 0.0001 → 0.5"),
    ({"config": {"params": {}, "random_state": 0}}, "config.params.l2: 0.0001 → nothing"),
    ({"files": {"a.parquet": "11 bytes, y"}}, 'files.a.parquet: "10 bytes, x" → "11 bytes, y"'),
]
_names = itertools.count()


@pytest.fixture
def store() -> ObjectStore:
    return open_store(f"memory://identity-{next(_names)}")


def saved(store: ObjectStore, plain: dict[str, Any], *, recorded: bool = True) -> None:
    prefix = prefix_of("linear", plain)
    if recorded:
        record_identity(store, prefix, plain)
    save_checkpoint(store, prefix, 5, b"state")


@pytest.mark.parametrize(("change", "told"), OTHERS)
def test_checkpoints_of_another_training_are_refused_with_the_differences(
    store: ObjectStore, change: dict[str, Any], told: str
) -> None:
    saved(store, PLAIN)
    now = PLAIN | change
    with pytest.raises(UsageError) as caught:
        refuse_others(store, "linear", prefix_of("linear", now), now)
    assert told in str(caught.value)
    assert prefix_of("linear", PLAIN) in caught.value.on


def test_ones_own_are_gone_on_from_whatever_else_is_there(store: ObjectStore) -> None:
    other = PLAIN | {"version": 1}
    saved(store, other)
    saved(store, PLAIN)
    refuse_others(store, "linear", prefix_of("linear", PLAIN), PLAIN)


def test_nothing_saved_other_kinds_and_mere_records_are_no_reason(store: ObjectStore) -> None:
    refuse_others(store, "linear", prefix_of("linear", PLAIN), PLAIN)
    save_checkpoint(store, "xgboost-0123", 5, b"state")
    record_identity(store, prefix_of("linear", {"version": 1}), {"version": 1})
    refuse_others(store, "linear", prefix_of("linear", PLAIN), PLAIN)


def test_checkpoints_without_a_record_are_refused_too(store: ObjectStore) -> None:
    saved(store, PLAIN, recorded=False)
    now = PLAIN | {"version": 4}
    with pytest.raises(UsageError, match="without a record"):
        refuse_others(store, "linear", prefix_of("linear", now), now)


PLAINS = st.recursive(
    st.integers() | st.text(max_size=3) | st.booleans(),
    lambda inner: st.dictionaries(st.text("abc", min_size=1, max_size=2), inner, max_size=3),
    max_leaves=8,
)


@given(PLAINS, PLAINS)
def test_there_are_differences_exactly_between_different_values(one: Any, other: Any) -> None:
    assert list(differences(one, one)) == []
    assert bool(list(differences(one, other))) == (one != other) or {one, other} <= {0, 1} | {True, False}
