"""Any history of publications, promotions and rollbacks, with rivals and lost replies, against a trusted model."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from pipelines.errors import AliasMovedError, NotFoundError, ObjectExistsError, UnreachableStoreError, UsageError
from pipelines.registry import Registry
from pipelines.registry.log import record_number
from pipelines.storage import ObjectInfo, ObjectStore, open_store

_spaces = itertools.count()

FAULTS = ["none", "reply lost", "request lost", "conflict that nobody won", "rival"]


@dataclass
class Unreliable:
    """A store whose next creation of a record fails in a scripted way; it is an `ObjectStore` otherwise."""

    inner: ObjectStore
    fault: str = "none"
    rival: Callable[[], None] = lambda: None

    @property
    def url(self) -> str:
        return self.inner.url

    def create(self, key: str, data: bytes | Path) -> ObjectInfo:
        if record_number(key) is None or self.fault == "none":
            return self.inner.create(key, data)
        fault, self.fault = self.fault, "none"
        if fault == "conflict that nobody won":
            raise ObjectExistsError("409", on=key)
        if fault == "rival":
            self.rival()
            return self.inner.create(key, data)
        if fault == "reply lost":
            self.inner.create(key, data)
        raise UnreachableStoreError("no answer", on=key)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@dataclass
class Alias:
    """What an alias should be: its entries in order, and the versions that rollbacks go through."""

    entries: list[tuple[str, int]] = field(default_factory=list)
    stack: list[int] = field(default_factory=list)

    @property
    def current(self) -> int | None:
        return self.entries[-1][1] if self.entries else None

    def promote(self, version: int) -> None:
        if version != self.current:
            self.entries.append(("promote", version))
            if self.stack[-1:] != [version]:
                self.stack.append(version)

    def roll_back(self, version: int) -> None:
        self.entries.append(("rollback", version))
        if version in self.stack:
            self.stack = self.stack[: self.stack.index(version) + 1]
        else:
            self.stack.append(version)


class Histories(RuleBasedStateMachine):
    """One registry in memory, and what it should hold."""

    models: list[Any]

    def __init__(self) -> None:
        super().__init__()
        plain = open_store(f"memory://histories-{next(_spaces)}")
        self.store = Unreliable(plain)
        self.registry, self.other = Registry(self.store), Registry(plain)
        self.digests: list[str] = []
        self.aliases = {"champion": Alias(), "challenger": Alias()}

    def publish_elsewhere(self) -> None:
        made = self.models[0]
        self.digests.append(self.other.publish("m", made.model, **made.arguments()).model_digest)

    @rule(which=st.integers(0, 2), fault=st.sampled_from(FAULTS))
    def publish(self, which: int, fault: str) -> None:
        self.store.fault, self.store.rival = fault, self.publish_elsewhere
        made = self.models[which]
        version = self.registry.publish("m", made.model, **made.arguments())
        self.digests.append(made.model.digest)
        assert version.version == len(self.digests)

    @precondition(lambda self: self.digests)
    @rule(data=st.data(), alias=st.sampled_from(["champion", "challenger"]), fault=st.sampled_from(FAULTS))
    def promote(self, data: st.DataObject, alias: str, fault: str) -> None:
        version = data.draw(st.integers(1, len(self.digests)))
        rival = data.draw(st.integers(1, len(self.digests)))

        def move_elsewhere() -> None:
            self.other.promote("m", rival, alias)
            self.aliases[alias].promote(rival)

        self.store.fault, self.store.rival = fault, move_elsewhere
        entry = self.registry.promote("m", version, alias)
        self.store.fault = "none"
        self.aliases[alias].promote(version)
        assert entry.version == version

    @precondition(lambda self: self.digests)
    @rule(data=st.data(), expected=st.integers(0, 3))
    def promote_if_it_is_still(self, data: st.DataObject, expected: int) -> None:
        version = data.draw(st.integers(1, len(self.digests)))
        alias = self.aliases["champion"]
        if (expected or None) == alias.current:
            self.registry.promote("m", version, guarded=True, expected=expected or None)
            alias.promote(version)
        else:
            with pytest.raises(AliasMovedError):
                self.registry.promote("m", version, guarded=True, expected=expected or None)

    @precondition(lambda self: self.aliases["champion"].entries)
    @rule(fault=st.sampled_from(FAULTS[:-1]))
    def refuse(self, fault: str) -> None:
        current = self.aliases["champion"].current
        assert current is not None
        self.store.fault = fault
        self.registry.refuse("m", len(self.digests), why="worse", expected=current)
        self.aliases["champion"].entries.append(("refuse", current))

    @precondition(lambda self: self.aliases["champion"].entries)
    @rule(to=st.none() | st.integers(1, 4), fault=st.sampled_from(FAULTS[:-1]))
    def roll_back(self, to: int | None, fault: str) -> None:
        alias = self.aliases["champion"]
        held = [version for _, version in alias.entries]
        self.store.fault = fault
        if to is None and len(alias.stack) < 2:
            with pytest.raises(UsageError):
                self.registry.rollback("m")
        elif to is not None and (to not in held or to == held[-1]):
            with pytest.raises((NotFoundError, UsageError)):
                self.registry.rollback("m", to=to)
        else:
            expected = alias.stack[-2] if to is None else to
            assert self.registry.rollback("m", to=to).version == expected
            alias.roll_back(expected)
        self.store.fault = "none"

    @invariant()
    def versions_are_the_models(self) -> None:
        versions = self.other.versions("m") if self.digests else ()
        assert [(each.version, each.model_digest) for each in reversed(versions)] == list(enumerate(self.digests, 1))

    @invariant()
    def aliases_are_the_models(self) -> None:
        current = {name: alias.current for name, alias in self.aliases.items() if alias.entries}
        assert self.other.aliases("m") == current
        for name, alias in self.aliases.items():
            if alias.entries:
                log = self.other.history("m", name)
                assert [(entry.action, entry.version) for entry in reversed(log)] == alias.entries
                assert [entry.number for entry in reversed(log)] == list(range(1, len(log) + 1))
                assert [entry.previous for entry in reversed(log)] == [None, *(v for _, v in alias.entries[:-1])]


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spend no time between the attempts to settle a lost reply."""
    from pipelines.storage import once

    original = once.create_once
    monkeypatch.setattr(
        "pipelines.registry.log.create_once", lambda store, key, data: original(store, key, data, sleep=lambda _: None)
    )


def _run(trained: Any, examples: int, steps: int) -> None:
    Histories.models = [trained(weight) for weight in (0.1, 0.2, 0.3)]
    chosen = settings(max_examples=examples, stateful_step_count=steps, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(Histories, settings=chosen)


@pytest.mark.usefixtures("no_waiting")
def test_short_histories(trained: Any) -> None:
    _run(trained, examples=12, steps=12)


@pytest.mark.slow
@pytest.mark.usefixtures("no_waiting")
def test_histories(trained: Any) -> None:
    _run(trained, examples=25, steps=30)


@pytest.mark.soak
@pytest.mark.usefixtures("no_waiting")
def test_long_histories(trained: Any) -> None:
    _run(trained, examples=100, steps=60)
