"""Any history of writes, deletions and listings agrees with a dictionary."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from pipelines.errors import ObjectExistsError, ObjectNotFoundError
from pipelines.storage import ObjectStore, open_store

_spaces = itertools.count()

# Few names, so that histories meet: with characters on both sides of "/", and never one as folder and object at once.
names = st.sampled_from(["a", "a-b", "a.b", "a0", "ä"])
keys = st.builds("/".join, st.tuples(st.sampled_from(["d", "d-e", "d0"]), names)) | names.map(
    lambda name: f"top-{name}"
)
contents = st.binary(max_size=20)


class Histories(RuleBasedStateMachine):
    """One store and the dictionary that it should be."""

    def __init__(self) -> None:
        super().__init__()
        self.store, self.model = self.open(), dict[str, bytes]()

    def open(self) -> ObjectStore:
        return open_store(f"memory://store-histories-{next(_spaces)}/deep")

    @rule(key=keys, data=contents)
    def create(self, key: str, data: bytes) -> None:
        if key in self.model:
            with pytest.raises(ObjectExistsError):
                self.store.create(key, data)
        else:
            assert self.store.create(key, data).size == len(data)
            self.model[key] = data

    @rule(key=keys, data=contents)
    def replace(self, key: str, data: bytes) -> None:
        self.store.replace(key, data)
        self.model[key] = data

    @rule(key=keys)
    def delete(self, key: str) -> None:
        self.store.delete(key)
        self.model.pop(key, None)

    @rule(key=keys, start=st.integers(0, 25), length=st.integers(0, 25))
    def read(self, key: str, start: int, length: int) -> None:
        if key not in self.model:
            with pytest.raises(ObjectNotFoundError):
                self.store.get(key)
            assert self.store.head(key) is None
            return
        data = self.model[key]
        assert self.store.get(key) == data
        head = self.store.head(key)
        assert head is not None
        assert head.size == len(data)
        if start < len(data):
            assert self.store.get_range(key, start, start + length, etag=head.etag) == data[start : start + length]

    @rule(
        prefix=st.sampled_from(["", "d", "d/", "d-e", "none"]),
        after=st.none() | keys,
        limit=st.none() | st.integers(0, 4),
    )
    def list(self, prefix: str, after: str | None, limit: int | None) -> None:
        folder = prefix.rstrip("/") + "/" if prefix else ""
        expected = sorted(key for key in self.model if key.startswith(folder) and (after is None or key > after))
        found = [(info.key, info.size) for info in self.store.list(prefix, after=after, limit=limit)]
        assert found == [(key, len(self.model[key])) for key in expected[:limit]]

    @invariant()
    def folders_hold_what_lies_below(self) -> None:
        expected = {key.split("/")[0] for key in self.model if "/" in key}
        assert expected <= set(self.store.folders()) <= {"d", "d-e", "d0"}


class OnDisk(Histories):
    """The same on local disk, where nothing temporary may be left either."""

    def open(self) -> ObjectStore:
        self.folder = Path(tempfile.mkdtemp(prefix="mutirao-store-"))
        return open_store(str(self.folder))

    @invariant()
    def nothing_temporary_is_left(self) -> None:
        assert not [path for path in self.folder.rglob("*") if path.name.startswith(".tmp-")]

    def teardown(self) -> None:
        shutil.rmtree(self.folder)


def _run(machine: type[RuleBasedStateMachine], examples: int, steps: int) -> None:
    chosen: Any = {"deadline": None, "suppress_health_check": list(HealthCheck)}
    run_state_machine_as_test(machine, settings=settings(max_examples=examples, stateful_step_count=steps, **chosen))


@pytest.mark.parametrize(("machine", "examples"), [(Histories, 60), (OnDisk, 12)])
def test_histories(machine: type[RuleBasedStateMachine], examples: int) -> None:
    _run(machine, examples, 25)


@pytest.mark.soak
@pytest.mark.parametrize(("machine", "examples"), [(Histories, 300), (OnDisk, 60)])
def test_long_histories(machine: type[RuleBasedStateMachine], examples: int) -> None:
    _run(machine, examples, 80)
