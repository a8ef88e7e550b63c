"""An alias is a log: what it means, what it meant before, who moved it and why."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from pipelines.errors import AliasMovedError, NotFoundError, UsageError
from pipelines.registry import Registry
from pipelines.registry.log import append


@pytest.fixture
def registry(tmp_path: Path, trained: Any) -> Registry:
    """Four versions of one model."""
    registry = Registry.open(str(tmp_path / "registry"))
    for weight in (0.1, 0.2, 0.3, 0.4):
        made = trained(weight)
        registry.publish("flights", made.model, **made.arguments())
    return registry


def test_a_promotion_records_who_when_from_to_and_why(registry: Registry) -> None:
    registry.promote("flights", 1, who="ana", why="first")
    before = datetime.now(UTC)
    entry = registry.promote("flights", 3, who="bo", why="better by 2 %")
    assert (entry.number, entry.action, entry.previous, entry.version) == (2, "promote", 1, 3)
    assert (entry.who, entry.why) == ("bo", "better by 2 %")
    assert before <= entry.when <= datetime.now(UTC)
    assert registry.history("flights") == (entry, registry.history("flights")[1])
    assert registry.aliases("flights") == {"champion": 3}
    assert registry.get("flights").version == 3


def test_aliases_are_independent(registry: Registry) -> None:
    registry.promote("flights", 1)
    registry.promote("flights", 4, "challenger")
    assert registry.aliases("flights") == {"challenger": 4, "champion": 1}
    assert registry.get("flights@challenger").version == 4
    assert len(registry.history("flights", "challenger")) == 1


def test_promoting_what_it_means_already_adds_no_entry(registry: Registry) -> None:
    first = registry.promote("flights", 2, why="one")
    assert registry.promote("flights", 2, why="two") == first
    assert registry.history("flights") == (first,)


def test_rollbacks_undo_promotions_one_after_the_other(registry: Registry) -> None:
    for version in (1, 2, 3):
        registry.promote("flights", version)
    assert registry.rollback("flights", why="bad calibration").version == 2
    assert registry.rollback("flights").version == 1
    with pytest.raises(UsageError, match="nothing to roll back to"):
        registry.rollback("flights")
    registry.promote("flights", 4)
    assert registry.rollback("flights").version == 1
    log = [(entry.action, entry.version) for entry in reversed(registry.history("flights"))]
    assert log[:3] == [("promote", 1), ("promote", 2), ("promote", 3)]
    assert log[3:] == [("rollback", 2), ("rollback", 1), ("promote", 4), ("rollback", 1)]


def test_a_rollback_may_name_any_version_that_the_alias_has_meant(registry: Registry) -> None:
    for version in (1, 2, 3):
        registry.promote("flights", version)
    assert registry.rollback("flights", to=1).version == 1
    assert registry.rollback("flights", to=3).version == 3
    with pytest.raises(NotFoundError, match=r"never meant version 4.*one of 1, 2, 3.*promote"):
        registry.rollback("flights", to=4)
    with pytest.raises(UsageError, match="means version 3 already"):
        registry.rollback("flights", to=3)


def test_refusals_stay_in_the_log_and_change_nothing(registry: Registry) -> None:
    registry.promote("flights", 1)
    entry = registry.refuse("flights", 2, why="contaminated", expected=1, evidence={"outcome": "contaminated"})
    assert (entry.action, entry.version, entry.previous, entry.candidate) == ("refuse", 1, 1, 2)
    assert registry.get("flights").version == 1
    registry.promote("flights", 3)
    assert registry.rollback("flights").version == 1, "a refused version is nothing to go back to"


def test_a_guarded_move_needs_the_alias_to_be_where_it_was(registry: Registry) -> None:
    registry.promote("flights", 1, guarded=True, expected=None)
    registry.promote("flights", 2)
    with pytest.raises(AliasMovedError, match=r"expected version 1.*found version 2"):
        registry.promote("flights", 3, guarded=True, expected=1)
    with pytest.raises(AliasMovedError, match="expected version none"):
        registry.promote("flights", 3, guarded=True, expected=None)
    registry.refuse("flights", 3, why="worse", expected=2)
    assert registry.promote("flights", 3, guarded=True, expected=2).previous == 2, "a refusal does not move it"


def test_a_rollback_that_meets_another_move_is_not_done_blindly(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.promote("flights", 1)
    registry.promote("flights", 2)
    history = registry.history("flights")
    monkeypatch.setattr(Registry, "history", lambda *_, **__: history)
    registry.promote("flights", 3)
    with pytest.raises(AliasMovedError):
        registry.rollback("flights")


@pytest.mark.parametrize(
    ("name", "version", "alias", "error"),
    [
        ("flights", 9, "champion", NotFoundError),
        ("fligths", 1, "champion", NotFoundError),
        ("flights", 1, "7", UsageError),
        ("flights", 1, "a/b", UsageError),
        ("..", 1, "champion", UsageError),
    ],
)
def test_what_can_not_be_promoted_is_told(
    registry: Registry, name: str, version: int, alias: str, error: type[Exception]
) -> None:
    with pytest.raises(error):
        registry.promote(name, version, alias)
    assert registry.aliases("flights") == {}


def test_the_history_of_an_alias_that_never_was_is_not_empty_but_unknown(registry: Registry) -> None:
    with pytest.raises(NotFoundError, match="no alias 'champion'"):
        registry.history("flights")
    with pytest.raises(NotFoundError, match="no model"):
        registry.history("nothing")


def test_a_log_that_is_left_as_it_is_gives_its_newest_record(tmp_path: Path) -> None:
    store = Registry.open(str(tmp_path)).store
    assert append(store, "log", lambda number, previous: None) is None
    append(store, "log", lambda number, previous: f"{number}".encode())
    assert append(store, "log", lambda number, previous: None) == (1, b"1")
