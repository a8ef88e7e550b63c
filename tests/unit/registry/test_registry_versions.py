"""Versions are complete or absent, numbered without gaps, and what they were when they were published."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines.errors import CorruptArtifactError, NotFoundError, StorageError, UnreachableStoreError, UsageError
from pipelines.model import GoldenRowsError
from pipelines.registry import Registry
from pipelines.storage import ObjectStore, open_store
from pipelines.storage.local import LocalStore


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry.open(str(tmp_path / "registry"))


def test_a_published_version_predicts_and_tells_where_it_comes_from(registry: Registry, trained: Any) -> None:
    made = trained(run_id="run-1")
    version = registry.publish("flights", made.model, who="ana", notes="first", **made.arguments())
    assert (version.ref, version.run_id, version.created_by, version.kind) == ("flights/1", "run-1", "ana", "linear")
    assert version.metrics == {"test": {"auc": 0.7, "log_loss": pytest.approx(0.3)}}
    assert version.inputs == {"x": "double", "carrier": "string"}
    assert version.outputs == {"prediction": "bool", "probability": "double"}
    assert version.origin["files"] == 3
    loaded = registry.load("flights/1")
    inputs = made.golden.inputs
    assert loaded.predict(inputs).equals(made.model.predict(inputs))
    assert registry.get("models:/flights/1") == version
    assert registry.lineage("flights/1") == made.lineage
    assert registry.evaluation("flights/1") == made.evaluation
    files = registry.lineage("flights/1").files
    assert [(file.path, file.rows, file.row_groups) for file in files] == [
        (f"part-{n}.parquet", 200, ((0, 2),)) for n in range(3)
    ]


def test_the_layout_is_the_one_that_others_read(registry: Registry, trained: Any, tmp_path: Path) -> None:
    made = trained()
    registry.publish("flights", made.model, **made.arguments())
    registry.publish("flights", made.model, **made.arguments())
    registry.promote("flights", 1)
    keys = [info.key for info in registry.store.list()]
    assert "models/flights/versions/9999999999.json" in keys
    assert "models/flights/versions/9999999998.json" in keys
    assert "models/flights/aliases/champion/9999999999.json" in keys
    rest = [key for key in keys if not key.startswith("models/")]
    assert all(key.startswith("artifacts/sha256/") and len(key) == 16 + 1 + 64 for key in rest)
    record = json.loads(registry.store.get("models/flights/versions/9999999998.json"))
    assert (record["schema"], record["version"], record["name"]) == (1, 2, "flights")
    assert len({artifact["sha256"] for artifact in record["artifacts"].values()}) == len(rest), "stored once"


def test_numbers_go_on_and_the_newest_comes_first(registry: Registry, trained: Any) -> None:
    for weight in (0.1, 0.2, 0.3):
        made = trained(weight)
        registry.publish("flights", made.model, **made.arguments())
    assert [version.version for version in registry.versions("flights")] == [3, 2, 1]
    assert [version.version for version in registry.versions("flights", limit=2)] == [3, 2]
    newest = registry.newest("flights")
    assert newest is not None
    assert newest.version == 3
    assert [(each.name, each.newest.version, each.aliases) for each in registry.models()] == [("flights", 3, {})]


def test_a_resumed_run_does_not_publish_twice(registry: Registry, trained: Any) -> None:
    made = trained(run_id="run-1")
    first = registry.publish("flights", made.model, **made.arguments())
    assert registry.publish("flights", made.model, **made.arguments()) == first
    other = trained(run_id="run-2")
    assert registry.publish("flights", other.model, **other.arguments()).version == 2


def test_a_model_that_predicts_something_else_never_becomes_visible(registry: Registry, trained: Any) -> None:
    made, other = trained(0.5), trained(0.9)
    with pytest.raises(GoldenRowsError):
        registry.publish("flights", made.model, golden=other.golden, lineage=made.lineage)
    assert registry.newest("flights") is None
    assert registry.models() == ()


class Failing(LocalStore):
    """A local store whose `fail` is called before every create, with the key."""

    fail: Callable[[str], None]

    def create(self, key: str, data: bytes | Path) -> Any:
        type(self).fail(key)
        return super().create(key, data)


@pytest.mark.parametrize("at", range(8))
def test_a_publication_that_breaks_off_leaves_nothing_to_be_seen(at: int, tmp_path: Path, trained: Any) -> None:
    made, calls = trained(), []

    def fail(key: str) -> None:
        calls.append(key)
        if len(calls) == at + 1:
            raise StorageError("no space left", on=key)

    store = Failing(str(tmp_path / "registry"))
    Failing.fail = staticmethod(fail)
    with pytest.raises(StorageError, match="no space left"):
        Registry(store).publish("flights", made.model, **made.arguments())
    healthy = Registry.open(store.url)
    assert healthy.models() == ()
    assert healthy.publish("flights", made.model, **made.arguments()).version == 1
    assert healthy.verify("flights/1", deep=True).ok


class Losing(LocalStore):
    """A local store that loses the reply to the first create of a version record: before or after it was written."""

    lose_after = True
    lost = 0

    def create(self, key: str, data: bytes | Path) -> Any:
        if "versions" in key and type(self).lost == 0:
            type(self).lost += 1
            if self.lose_after:
                super().create(key, data)
            raise UnreachableStoreError("no answer in time", on=key)
        return super().create(key, data)


@pytest.mark.parametrize("lose_after", [True, False])
def test_a_lost_reply_is_settled_by_reading_back(lose_after: bool, tmp_path: Path, trained: Any) -> None:
    made = trained()
    Losing.lost, Losing.lose_after = 0, lose_after
    registry = Registry(Losing(str(tmp_path / "registry")))
    assert registry.publish("flights", made.model, **made.arguments()).version == 1
    assert [version.version for version in registry.versions("flights")] == [1]


def test_changed_and_missing_artifacts_are_found(registry: Registry, trained: Any) -> None:
    made = trained(0.77)
    version = registry.publish("flights", made.model, **made.arguments())
    assert registry.verify(version).ok
    assert registry.verify(version, deep=True).ok
    victim = version.artifacts["model/predictor/coef.npy"]
    good = registry.store.get(victim.key)
    registry.store.replace(victim.key, good[:-1] + bytes([good[-1] ^ 1]))
    assert registry.verify(version).ok, "quick sees presence and size only"
    deep = registry.verify(version, deep=True)
    assert not deep.ok
    assert "model/predictor/coef.npy" in deep.problems[0]
    with pytest.raises(CorruptArtifactError, match=victim.sha256):
        Registry.open(registry.url).load(replace(version, artifacts={**version.artifacts}))
    registry.store.delete(victim.key)
    assert "missing" in registry.verify(version).problems[0]
    with pytest.raises(CorruptArtifactError, match="missing"):
        registry.promote("flights", 1)
    registry.store.replace(victim.key, good)
    assert registry.load(version).digest == made.model.digest


def test_corrupt_artifacts_are_not_published_again(registry: Registry, trained: Any) -> None:
    made = trained(0.66)
    version = registry.publish("flights", made.model, **made.arguments())
    registry.store.replace(version.artifacts["golden/expected.arrow"].key, b"rotten")
    with pytest.raises(CorruptArtifactError):
        registry.publish("flights", made.model, **made.arguments())
    assert len(registry.versions("flights")) == 1


@pytest.mark.parametrize(
    ("ref", "message"),
    [
        ("fligths", "flights"),
        ("fligths/1", "flights"),
        ("flights/9", "newest is flights/1"),
        ("flights@champoin", "champion"),
        ("flights@challenger", "newest version is flights/1"),
    ],
)
def test_what_does_not_exist_is_told_with_the_nearest_names(
    registry: Registry, trained: Any, ref: str, message: str
) -> None:
    made = trained()
    registry.publish("flights", made.model, **made.arguments())
    registry.promote("flights", 1)
    with pytest.raises(NotFoundError, match=message):
        registry.get(ref)


def test_a_name_alone_is_its_champion_and_never_just_the_newest(registry: Registry, trained: Any) -> None:
    made = trained()
    registry.publish("flights", made.model, **made.arguments())
    with pytest.raises(NotFoundError, match="newest version is flights/1"):
        registry.get("flights")
    registry.promote("flights", 1)
    other = trained(0.9)
    registry.publish("flights", other.model, **other.arguments())
    assert registry.get("flights").version == 1
    assert registry.get("models:/flights@champion").version == 1


@pytest.mark.parametrize(
    "ref", ["", "a b", "name/0", "name/x", "name/1/2", "name@", "@alias", "7", "name@3", "../x", "/x"]
)
def test_what_is_no_reference_is_refused(registry: Registry, ref: str) -> None:
    with pytest.raises(UsageError):
        registry.get(ref)


def test_an_empty_or_absent_registry_lists_nothing(registry: Registry) -> None:
    assert registry.models() == ()
    with pytest.raises(NotFoundError, match="no model"):
        registry.versions("flights")


def test_strangers_in_the_registry_are_passed_over(registry: Registry, trained: Any) -> None:
    made = trained()
    registry.publish("flights", made.model, **made.arguments())
    registry.store.create("models/flights/versions/.DS_Store", b"")
    registry.store.create("models/flights/versions/0000000000.json.bak", b"")
    registry.store.create("models/README.md", b"")
    assert registry.publish("flights", made.model, **made.arguments()).version == 2
    assert [version.version for version in registry.versions("flights")] == [2, 1]


def test_records_of_a_newer_release_say_so(registry: Registry, trained: Any) -> None:
    made = trained()
    registry.publish("flights", made.model, **made.arguments())
    key = "models/flights/versions/9999999999.json"
    record = json.loads(registry.store.get(key))
    registry.store.replace(key, json.dumps(record | {"schema": 2}).encode())
    with pytest.raises(UsageError, match=r"newer version.*Upgrade"):
        registry.get("flights/1")
    registry.store.replace(key, b"{")
    with pytest.raises(CorruptArtifactError, match="can't be read"):
        registry.get("flights/1")


def test_time_comes_from_the_clock(tmp_path: Path, trained: Any) -> None:
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    store: ObjectStore = open_store(str(tmp_path))
    made = trained()
    registry = Registry(store, clock=lambda: now)
    assert registry.publish("flights", made.model, **made.arguments()).created == now
    assert registry.get("flights/1").created == now


def test_golden_rows_hold_no_real_data_unless_given(trained: Any) -> None:
    made = trained()
    assert made.golden.synthetic
    assert np.isfinite(made.golden.tolerance)
