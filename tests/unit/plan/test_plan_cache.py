"""Stage results by content: found again, verified, and a miss says why."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.errors import CorruptArtifactError
from pipelines.plan.cache import StageCache
from pipelines.plan.keys import StageKey, code_digest, explain_difference
from pipelines.storage import open_store


@pytest.fixture
def cache(tmp_path: Path) -> StageCache:
    return StageCache(open_store(str(tmp_path)))


def key(**parameters: object) -> StageKey:
    return StageKey("train", {"parameters": parameters, "input features": "a" * 64})


def test_a_committed_result_is_found_by_equal_ingredients_only(cache: StageCache) -> None:
    cache.commit("p", key(l2=1.0), {"model": b"abc"}, {"n_iter": 3})
    found = cache.lookup(key(l2=1.0))
    assert found is not None
    assert found.summary == {"n_iter": 3}
    assert cache.read(key(l2=1.0), found, "model") == b"abc"
    assert cache.lookup(key(l2=2.0)) is None


def test_the_first_of_two_commits_wins(cache: StageCache) -> None:
    cache.commit("p", key(l2=1.0), {"model": b"first"}, {"by": 1})
    second = cache.commit("p", key(l2=1.0), {"model": b"second"}, {"by": 2})
    assert second.summary == {"by": 1}
    assert cache.read(key(l2=1.0), second, "model") == b"first"


def test_a_miss_says_what_changed(cache: StageCache) -> None:
    assert cache.why_missed("p", key(l2=1.0)) == "not computed before"
    cache.commit("p", key(l2=1.0, solver="lbfgs"), {}, {})
    assert cache.why_missed("p", key(l2=0.5, solver="lbfgs")) == "parameters.l2: 1.0 → 0.5"
    assert cache.why_missed("other", key(l2=0.5)) == "not computed before"


def test_a_changed_input_is_named_without_its_digest() -> None:
    before = {"input features": "a" * 64, "list": [1, 2], "gone": 1}
    now = {"input features": "b" * 64, "list": [1, 3]}
    assert explain_difference(before, now) == "gone: 1 → nothing; input features changed; list[1]: 2 → 3"


def test_a_damaged_file_is_refused(cache: StageCache, tmp_path: Path) -> None:
    result = cache.commit("p", key(), {"model": b"abc"}, {})
    path = tmp_path / cache.folder(key()) / "files" / result.files["model"]
    path.chmod(0o644)
    path.write_bytes(b"abd")
    with pytest.raises(CorruptArtifactError, match="not what was written"):
        cache.read(key(), result, "model")


def test_the_code_of_a_room_has_one_digest() -> None:
    assert code_digest(("pipelines.plan",)) == code_digest(("pipelines.plan",))
    assert code_digest(("pipelines.plan",)) != code_digest(("pipelines.plan", "pipelines.spec"))
