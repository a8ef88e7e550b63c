"""Every object store keeps the same promises: in memory, on local disk, on SeaweedFS and on moto."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow.fs as pafs
import pytest

from pipelines.errors import ObjectChangedError, ObjectExistsError, ObjectNotFoundError, UsageError
from pipelines.storage import ObjectStore, open_filesystem, open_store

STORES = ["memory", "local", *(pytest.param(server, marks=pytest.mark.slow) for server in ("moto", "seaweedfs"))]
SHARED = STORES[1:]  # by more than one process


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    kind = request.param
    if kind == "memory":
        yield f"memory://{tmp_path.name}-{os.getpid()}/deep"
    elif kind == "local":
        yield str(tmp_path / "store")
    else:
        server = request.getfixturevalue(kind)
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        yield f"{server.url()}/deep"


@pytest.fixture
def store(url: str) -> ObjectStore:
    return open_store(url)


every_store = pytest.mark.parametrize("url", STORES, indirect=True)
every_shared_store = pytest.mark.parametrize("url", SHARED, indirect=True)


@every_store
def test_what_was_created_is_read_back(store: ObjectStore, tmp_path: Path) -> None:
    info = store.create("a/b.json", b"hello")
    assert (info.key, info.size) == ("a/b.json", 5)
    assert store.get("a/b.json") == b"hello"
    head = store.head("a/b.json")
    assert head is not None
    assert (head.key, head.size) == ("a/b.json", 5)
    assert head.modified.utcoffset() is not None
    store.get_to_file("a/b.json", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"hello"


@every_store
def test_an_empty_object_is_an_object(store: ObjectStore) -> None:
    store.create("empty", b"")
    assert store.get("empty") == b""
    assert [info.size for info in store.list()] == [0]


@every_store
def test_large_objects_and_files_travel_whole(store: ObjectStore, tmp_path: Path) -> None:
    content = os.urandom(1024) * (20 * 1024 + 1)  # three of the ranges that remote stores read by
    source = tmp_path / "source"
    source.write_bytes(content)
    store.create("from-file", source)
    store.create("from-bytes", content)
    store.replace("replaced", source)
    store.get_to_file("from-bytes", tmp_path / "copy")
    assert store.get("from-file") == content
    assert store.get("replaced") == content
    assert (tmp_path / "copy").read_bytes() == content


@every_store
def test_a_range_is_read_if_the_object_is_still_the_same(store: ObjectStore) -> None:
    store.create("key", b"0123456789")
    head = store.head("key")
    assert head is not None
    assert store.get_range("key", 2, 5) == b"234"
    assert store.get_range("key", 2, 5, etag=head.etag) == b"234"
    assert store.get_range("key", 8, 100) == b"89"
    assert store.get_range("key", 4, 4) == b""
    assert [info.etag for info in store.list()] == [head.etag]
    store.replace("key", b"abcdefghijk")
    with pytest.raises(ObjectChangedError, match="key"):
        store.get_range("key", 2, 5, etag=head.etag)
    with pytest.raises(ObjectNotFoundError):
        store.get_range("nothing", 0, 1)


@every_store
def test_a_key_is_created_once(store: ObjectStore) -> None:
    store.create("key", b"first")
    with pytest.raises(ObjectExistsError, match="key"):
        store.create("key", b"second")
    assert store.get("key") == b"first"


@every_store
def test_replace_overwrites_and_changes_the_etag(store: ObjectStore) -> None:
    store.replace("head", b"one")
    before = store.head("head")
    store.replace("head", b"two")
    after = store.head("head")
    assert store.get("head") == b"two"
    assert before is not None
    assert after is not None
    assert before.etag != after.etag


@every_store
def test_what_is_absent_is_told_apart(store: ObjectStore, tmp_path: Path) -> None:
    store.create("folder/object", b"1")
    assert store.head("folder") is None
    assert store.head("nothing") is None
    store.delete("nothing")
    for key in ("nothing", "folder", "folder/object/below"):
        with pytest.raises(ObjectNotFoundError, match=key):
            store.get(key)
    with pytest.raises(ObjectNotFoundError, match="nothing"):
        store.get_to_file("nothing", tmp_path / "target")
    assert not (tmp_path / "target").exists()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".tmp-")]


@every_store
def test_deleted_objects_are_gone_and_may_come_again(store: ObjectStore) -> None:
    store.create("key", b"first")
    store.delete("key")
    assert store.head("key") is None
    assert list(store.list()) == []
    store.create("key", b"second")
    assert store.get("key") == b"second"


@every_store
def test_listing_is_in_the_order_of_the_keys(store: ObjectStore) -> None:
    keys = ["a-b", "a.b", "a/x", "a/y/1", "a/y/2", "a0", "ab/1", "b", "z/é"]
    for key in reversed(keys):
        store.create(key, key.encode())
    assert [info.key for info in store.list()] == sorted(keys)
    assert [info.key for info in store.list("a")] == ["a/x", "a/y/1", "a/y/2"]
    assert [info.key for info in store.list("a/")] == ["a/x", "a/y/1", "a/y/2"]
    assert [info.key for info in store.list("a/y", after="a/y/1")] == ["a/y/2"]
    assert [info.key for info in store.list(limit=3)] == sorted(keys)[:3]
    assert list(store.list("nothing")) == []
    assert [info.size for info in store.list("a/y")] == [5, 5]


@every_store
def test_a_flat_folder_is_listed_page_by_page(store: ObjectStore) -> None:
    """The newest record of a log is the first one: 1,100 keys are more than a page of S3 holds."""
    keys = [f"log/{10**10 - n:010d}.json" for n in range(1, 1101)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: store.create(key, b"1"), keys))
    assert [info.key for info in store.list("log", limit=1)] == [keys[-1]]
    assert [info.key for info in store.list("log", after=keys[3])] == [keys[2], keys[1], keys[0]]
    assert [info.key for info in store.list("log")] == keys[::-1]


@every_store
def test_folders_are_named_without_what_is_below_them(store: ObjectStore) -> None:
    for key in ("models/b/versions/1", "models/a/versions/1", "models/a/aliases/c/1", "models/object"):
        store.create(key, b"1")
    assert store.folders("models") == ("a", "b")
    assert store.folders() == ("models",)
    assert store.folders("models/a") == ("aliases", "versions")
    assert store.folders("nothing") == ()


@every_store
@pytest.mark.parametrize("key", ["month=1/day=2.parquet", "a b/ü+ñ", "100%25/x%20y", "a&b?c#d;e,f@g:h~i'j"])
def test_any_printable_key_is_kept_and_found_by_the_file_system(store: ObjectStore, url: str, key: str) -> None:
    store.create(key, key.encode())
    assert [info.key for info in store.list()] == [key]
    location = open_filesystem(url)
    with location.filesystem.open_input_file(f"{location.path}/{key}") as file:
        assert file.read() == key.encode()
    below = location.filesystem.get_file_info(pafs.FileSelector(location.path, recursive=True))
    assert [info.path for info in below if info.is_file] == [f"{location.path}/{key}"]


@every_store
@pytest.mark.parametrize(
    "key",
    [
        "",
        "/a",
        "a/",
        "a//b",
        "../a",
        "a/../b",
        ".",
        "a/./b",
        "a\nb",
        "a\0b",
        ".tmp-1",
        "a/.tmp-x",
        "x" * 256,
        "x/" * 600,
    ],
)
def test_keys_that_some_store_could_not_hold_are_refused(store: ObjectStore, key: str) -> None:
    for call in (store.get, store.head, store.delete, lambda key: store.create(key, b"1")):
        with pytest.raises(UsageError):
            call(key)


@every_store
def test_of_many_threads_one_creates_a_key(store: ObjectStore) -> None:
    barrier = threading.Barrier(12)

    def race(writer: int) -> list[int]:
        won = []
        for n in range(5):
            barrier.wait()
            try:
                store.create(f"race/{n}", str(writer).encode() * 1000)
                won.append(n)
            except ObjectExistsError:
                pass
        return won

    with ThreadPoolExecutor(12) as pool:
        wins = list(pool.map(race, range(12)))
    assert sorted(n for won in wins for n in won) == [0, 1, 2, 3, 4]
    for writer, won in enumerate(wins):
        for n in won:
            assert store.get(f"race/{n}") == str(writer).encode() * 1000


RACER = """
import json, sys
from pipelines.errors import ObjectChangedError, ObjectExistsError
from pipelines.storage import open_store
store, writer = open_store(sys.argv[1]), sys.argv[2].encode()
sys.stdin.readline()  # all start together
won = []
for n in range(60):
    try:
        store.create(f"race/{n}", writer * 5000)
        won.append(n)
    except ObjectExistsError:
        pass
print(json.dumps(won))
"""


@every_shared_store
@pytest.mark.slow
def test_of_many_processes_one_creates_a_key(store: ObjectStore, url: str) -> None:
    pipe = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    racers = [subprocess.Popen([sys.executable, "-c", RACER, url, f"{writer}"], **pipe) for writer in range(4)]
    for racer in racers:
        racer.stdin.write(b"go\n")
        racer.stdin.flush()
    wins = [json.loads(racer.communicate(timeout=120)[0]) for racer in racers]
    assert sorted(n for won in wins for n in won) == list(range(60))
    for writer, won in enumerate(wins):
        assert all(store.get(f"race/{n}") == f"{writer}".encode() * 5000 for n in won)


@every_store
def test_readers_see_the_old_or_the_new_bytes_while_a_key_is_replaced(store: ObjectStore) -> None:
    store.replace("head", b"0" * 100_000)
    stop = threading.Event()

    def write() -> None:
        n = 0
        while not stop.is_set():
            n = (n + 1) % 10
            store.replace("head", str(n).encode() * 100_000)

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        try:
            seen = [store.get("head") for _ in range(60)]
        finally:
            stop.set()
        writing.result()
    assert all(len(data) == 100_000 and len(set(data)) == 1 for data in seen)


@every_store
def test_a_store_travels_by_its_url(store: ObjectStore) -> None:
    store.create("key", b"1")
    again = pickle.loads(pickle.dumps(store))
    assert again == store
    assert again.get("key") == b"1"
    assert open_store(store.url).get("key") == b"1"
