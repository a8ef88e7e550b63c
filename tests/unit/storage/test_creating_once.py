"""A create whose reply was lost is settled: the caller knows whether the bytes there are its own."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from pipelines.errors import ObjectExistsError, StorageError, UnreachableStoreError
from pipelines.storage import create_once, open_store, require_create_only
from pipelines.storage.probe import probe_create_only

_names = itertools.count()


class Scripted:
    """A store in memory that does to each create what its script says, and to each get after it."""

    def __init__(self, creates: list[str], gets: list[str] | None = None) -> None:
        self.inner = open_store(f"memory://once-{next(_names)}")
        self.creates, self.gets = creates, gets or []

    def create(self, key: str, data: bytes) -> Any:
        match self.creates.pop(0) if self.creates else "works":
            case "reply lost":
                self.inner.create(key, data)
                raise UnreachableStoreError("no answer", on=key)
            case "request lost":
                raise UnreachableStoreError("no answer", on=key)
            case "retried inside":
                self.inner.create(key, data)
                raise ObjectExistsError("taken", on=key)
            case "nobody won":
                raise ObjectExistsError("conflict", on=key)
            case "denied":
                raise StorageError("permission denied", on=key)
        return self.inner.create(key, data)

    def get(self, key: str) -> bytes:
        if self.gets and self.gets.pop(0) == "fails":
            raise UnreachableStoreError("no answer", on=key)
        return self.inner.get(key)


def settle(store: Scripted, data: bytes = b"mine") -> tuple[bool, list[float]]:
    waits: list[float] = []
    return create_once(store, "key", data, sleep=waits.append), waits  # type: ignore[arg-type]  # only what is used


@pytest.mark.parametrize(
    ("creates", "gets"),
    [
        (["works"], []),
        (["reply lost"], []),
        (["reply lost"], ["fails"]),
        (["reply lost", "works"], ["fails", "fails"]),
        (["request lost"], []),
        (["request lost", "reply lost"], []),
        (["retried inside"], []),
        (["nobody won"], []),
        (["nobody won", "request lost", "reply lost"], []),
        (["request lost", "request lost", "request lost"], []),
    ],
)
def test_it_wins_where_nobody_else_writes(creates: list[str], gets: list[str]) -> None:
    store = Scripted(creates, gets)
    assert settle(store)[0] is True
    assert store.inner.get("key") == b"mine"


@pytest.mark.parametrize("creates", [["works"], ["reply lost"], ["request lost"], ["nobody won"]])
def test_it_loses_where_somebody_was_first(creates: list[str]) -> None:
    store = Scripted(["works" if each == "reply lost" else each for each in creates])
    store.inner.create("key", b"theirs")
    assert settle(store)[0] is False
    assert store.inner.get("key") == b"theirs"


def test_it_waits_longer_each_time_and_then_says_that_it_does_not_know() -> None:
    store = Scripted(["request lost"] * 9)
    waits: list[float] = []
    with pytest.raises(UnreachableStoreError, match=r"not known whether.*Try again"):
        create_once(store, "key", b"mine", sleep=waits.append)  # type: ignore[arg-type]  # only what is used
    assert waits == sorted(waits)
    assert len(waits) == 3
    assert store.inner.head("key") is None


def test_what_can_not_be_written_is_not_tried_again() -> None:
    store = Scripted(["denied", "works"])
    with pytest.raises(StorageError, match="denied"):
        settle(store)
    assert store.creates == ["works"]


class Overwriting:
    """A store like a server that knows nothing of conditions."""

    url = "s3://old/place"

    def __init__(self) -> None:
        self.inner = open_store(f"memory://once-{next(_names)}")

    def create(self, key: str, data: bytes) -> Any:
        return self.inner.replace(key, data)


def test_a_server_that_overwrites_is_refused() -> None:
    store = Overwriting()
    with pytest.raises(StorageError, match=r"s3://old/place: this server overwrites.*If-None-Match"):
        probe_create_only(store)  # type: ignore[arg-type]  # only what is used


def test_a_store_that_keeps_its_promise_is_not() -> None:
    store = open_store(f"memory://once-{next(_names)}")
    probe_create_only(store)
    probe_create_only(store)


@pytest.mark.slow
def test_a_real_server_keeps_its_promise(s3_url: str) -> None:
    require_create_only(open_store(s3_url))
    assert [info.key for info in open_store(s3_url).list()] == ["_probe/create-only"]
