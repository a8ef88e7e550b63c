"""A store that fails says where, why and what to do, in bounded time, and shows nothing that is not complete."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pipelines.errors import ObjectNotFoundError, StorageError, UnreachableStoreError, UsageError
from pipelines.storage import open_filesystem, open_store
from pipelines.storage.faults import storage_errors

# --- local disk ------------------------------------------------------------------------------------------------------


@contextmanager
def small_disk(folder: Path, size: str = "256k") -> Iterator[bool]:
    """Mount a tiny disk on a folder, where this process may (containers often may not)."""
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True, check=False
    )
    try:
        yield mounted.returncode == 0
    finally:
        if mounted.returncode == 0:
            subprocess.run(["umount", str(folder)], check=True)


LIMITED = """
import resource, sys
from pathlib import Path
from pipelines.errors import StorageError
from pipelines.storage import open_store
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
data = Path(sys.argv[2]) if len(sys.argv) > 2 else b"x" * 1_000_000
try:
    getattr(open_store(sys.argv[1]), sys.argv[3] if len(sys.argv) > 3 else "create")("folder/key", data)
except StorageError as error:
    print(error)
"""


@pytest.mark.parametrize("call", ["create", "replace"])
def test_a_full_disk_is_told_and_nothing_is_left(tmp_path: Path, call: str) -> None:
    with small_disk(tmp_path / "disk") as mounted:
        if not mounted:
            pytest.xfail("this process may not mount a small disk; the next test limits the size of a file instead")
        store = open_store(str(tmp_path / "disk"))
        store.create("folder/small", b"fits")
        with pytest.raises(StorageError, match=r"folder/key.*no space left.*Free some space"):
            getattr(store, call)("folder/key", b"x" * 1_000_000)
        assert [info.key for info in store.list()] == ["folder/small"]
        assert os.listdir(tmp_path / "disk" / "folder") == ["small"]
        store.create("folder/key", b"y" * 1000)


@pytest.mark.parametrize("from_file", [False, True])
def test_a_file_too_large_is_told_and_nothing_is_left(tmp_path: Path, from_file: bool) -> None:
    arguments = [str(tmp_path / "store")]
    if from_file:
        (tmp_path / "source").write_bytes(b"x" * 1_000_000)
        arguments.append(str(tmp_path / "source"))
    done = subprocess.run([sys.executable, "-c", LIMITED, *arguments], capture_output=True, text=True, check=True)
    assert "folder/key: can't write: the file is larger than this place allows. Raise" in done.stdout
    assert os.listdir(tmp_path / "store" / "folder") == []
    assert list(open_store(str(tmp_path / "store")).list()) == []


# Its source is a pipe, read as slowly as the test fills it: so it is in the middle of its file when it is killed.
SLOW_WRITER = """
import sys
from pathlib import Path
import pipelines.storage.local as local
def copy(source, target):
    with open(source, "rb", buffering=0) as reader, open(target, "wb", buffering=0) as writer:
        while chunk := reader.read(4):
            writer.write(chunk)
local.shutil.copyfile = copy
local.LocalStore(sys.argv[1]).create("folder/key", Path(sys.argv[2]))
"""


@pytest.mark.slow
def test_a_writer_that_is_killed_leaves_nothing_to_be_seen(tmp_path: Path) -> None:
    source = tmp_path / "pipe"
    os.mkfifo(source)
    writer = subprocess.Popen([sys.executable, "-c", SLOW_WRITER, str(tmp_path / "store"), str(source)])
    folder = tmp_path / "store" / "folder"
    with source.open("wb") as pipe:
        pipe.write(b"half of it")
        pipe.flush()
        _wait_until(lambda: folder.is_dir() and any(path.stat().st_size for path in folder.iterdir()))
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
    (left,) = os.listdir(folder)
    assert left.startswith(".tmp-")
    store = open_store(str(tmp_path / "store"))
    assert list(store.list()) == []
    assert store.head("folder/key") is None
    with pytest.raises(ObjectNotFoundError):
        store.get("folder/key")
    store.create("folder/key", b"another")
    assert os.listdir(folder).count(left) == 1, "a young one may belong to a writer at work"
    long_ago = time.time() - 2 * 3600
    os.utime(folder / left, (long_ago, long_ago))
    assert [info.key for info in store.list("folder")] == ["folder/key"]
    assert os.listdir(folder) == ["key"], "an old one is cleared away by the next listing"


DIES = """
import os, signal, sys
from pipelines.storage import open_store
import pipelines.storage.local as local
def die(*arguments, **keywords):
    if sys.argv[2] == "after":
        original(*arguments, **keywords)
    os.kill(os.getpid(), signal.SIGKILL)
original = getattr(os, sys.argv[3])
setattr(os, sys.argv[3], die)
open_store(sys.argv[1]).create("folder/key", b"whole" * 1000)
"""


@pytest.mark.parametrize(
    ("moment", "call", "there"),
    [("before", "fsync", False), ("before", "link", False), ("after", "link", True), ("after", "fsync", False)],
)
def test_a_crash_at_any_moment_leaves_all_or_nothing(tmp_path: Path, moment: str, call: str, there: bool) -> None:
    # Folders are made and synced first, by somebody else, so that the first fsync is the object's own.
    (tmp_path / "folder").mkdir()
    done = subprocess.run([sys.executable, "-c", DIES, str(tmp_path), moment, call], check=False)
    assert done.returncode == -signal.SIGKILL
    store = open_store(str(tmp_path))
    assert [(info.key, info.size) for info in store.list()] == ([("folder/key", 5000)] if there else [])
    if there:
        assert store.get("folder/key") == b"whole" * 1000


DENIED = """
import os, sys
from pipelines.errors import StorageError
from pipelines.storage import open_store
if os.getuid() == 0:
    os.setuid(65534)
store = open_store(sys.argv[1])
listed = lambda key: list(store.list(key))
calls = [(store.create, "new", b"1"), (store.get, "old"), (listed, "closed"), (store.delete, "old")]
for call, *arguments in calls:
    try:
        call(*arguments)
    except StorageError as error:
        print(error)
"""


def test_what_is_not_permitted_is_told(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o755)
    for parent in tmp_path.parents:
        if parent.stat().st_uid == os.getuid() and parent != Path("/"):
            os.chmod(parent, parent.stat().st_mode | 0o055)
    (tmp_path / "old").write_bytes(b"1")
    (tmp_path / "old").chmod(0)
    (tmp_path / "closed").mkdir(mode=0)
    (tmp_path).chmod(0o555)
    done = subprocess.run([sys.executable, "-c", DENIED, str(tmp_path)], capture_output=True, text=True, check=True)
    tmp_path.chmod(0o755)
    lines = done.stdout.splitlines()
    expected = [("new", "write"), ("old", "read"), ("closed", "list"), ("old", "delete")]
    for line, (name, doing) in zip(lines, expected, strict=True):
        assert line.startswith(f"{tmp_path}/{name}: can't {doing}: permission denied. Check the permissions")


def test_a_file_in_the_way_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"1")
    with pytest.raises(StorageError, match="a part of the path is a file"):
        open_store(str(tmp_path / "file")).create("key", b"1")
    with pytest.raises(StorageError, match="a part of the path is a file"):
        list(open_store(str(tmp_path / "file")).list())


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("ftp://host/x", "unknown kind of URL ftp://"),
        ("s3://", "names no bucket"),
        ("s3://key:secret@bucket/x", "credentials don't belong in a URL"),
        ("hdfs://name/x", "can't be written there yet"),
        ("file://host/x", "names no host"),
        ("", "may not be empty"),
    ],
)
def test_urls_that_name_no_store_are_refused(url: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as raised:
        open_store(url)
    assert "secret" not in str(raised.value)


# --- S3 --------------------------------------------------------------------------------------------------------------

CALLS: dict[str, Callable[[str], Any]] = {
    "create": lambda url: open_store(url, timeout_s=1).create("key", b"1"),
    "get": lambda url: open_store(url, timeout_s=1).get("key"),
    "list": lambda url: list(open_store(url, timeout_s=1).list()),
    "pyarrow": lambda url: _read_with_pyarrow(url),
}


def _read_with_pyarrow(url: str) -> bytes:
    location = open_filesystem(url, timeout_s=1)
    with storage_errors(url, "read"), location.filesystem.open_input_stream(f"{location.path}/key") as file:
        return bytes(file.read())


def _set(monkeypatch: pytest.MonkeyPatch, **environment: str) -> None:
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_CA_BUNDLE", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    settings = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}
    for name, value in (settings | environment).items():
        monkeypatch.setenv(name, value)


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS)
def test_an_endpoint_where_nobody_listens_is_told(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        endpoint = f"http://127.0.0.1:{taken.getsockname()[1]}"
        _set(monkeypatch, AWS_ENDPOINT_URL=endpoint)
        with pytest.raises(UnreachableStoreError, match=rf"can't be reached.*{endpoint}.*AWS_ENDPOINT_URL"):
            CALLS[call]("s3://bucket/x")


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS)
def test_a_server_that_is_silent_is_told_in_bounded_time(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=50) as silent:
        _set(monkeypatch, AWS_ENDPOINT_URL=f"http://127.0.0.1:{silent.getsockname()[1]}")
        started = time.monotonic()
        with pytest.raises(UnreachableStoreError, match="does not answer in time"):
            CALLS[call]("s3://bucket/x")
        assert time.monotonic() - started < 60, "a wait without end; the deadline is a second"


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS)
def test_a_host_without_an_address_is_told(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    _set(monkeypatch, AWS_ENDPOINT_URL="http://there-is-no-such-host.invalid", NO_PROXY="*", no_proxy="*")
    with pytest.raises(StorageError, match="host name of its endpoint can't be resolved"):
        CALLS[call]("s3://bucket/x")


@pytest.mark.slow
@pytest.mark.parametrize("call", ["create", "get", "list"])
def test_a_bucket_that_does_not_exist_is_told(seaweedfs: Any, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    _set(monkeypatch, **seaweedfs.environment())
    with pytest.raises(StorageError, match="the bucket does not exist") as raised:
        CALLS[call]("s3://there-is-no-such-bucket/x")
    assert "s3://there-is-no-such-bucket/x" in str(raised.value)


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(("key", "secret"), [("nobody", "nothing"), ("mutirao", "wrong")])
def test_credentials_that_are_not_accepted_are_told(
    seaweedfs: Any, monkeypatch: pytest.MonkeyPatch, call: str, key: str, secret: str
) -> None:
    wrong = {"AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret}
    _set(monkeypatch, **(seaweedfs.environment() | wrong))
    with pytest.raises(StorageError, match=r"credentials (are not accepted|that the server does not accept)") as raised:
        CALLS[call](seaweedfs.url())
    assert secret not in str(raised.value)


@pytest.mark.slow
def test_credentials_that_may_only_read_are_told_when_they_write(seaweedfs: Any, s3_url: str, monkeypatch: Any) -> None:
    open_store(s3_url).create("key", b"1")
    reader = {"AWS_ACCESS_KEY_ID": "reader", "AWS_SECRET_ACCESS_KEY": "reader-secret"}
    _set(monkeypatch, **(seaweedfs.environment() | reader))
    assert open_store(s3_url).get("key") == b"1"
    with pytest.raises(StorageError, match=r"can't write: permission denied.*Check what the credentials may do"):
        open_store(s3_url).create("new", b"1")
    with pytest.raises(StorageError, match="can't delete: permission denied"):
        open_store(s3_url).delete("key")


@pytest.mark.slow
def test_missing_credentials_are_told(seaweedfs: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _set(monkeypatch, **seaweedfs.environment(), AWS_METADATA_ENDPOINT="http://127.0.0.1:1")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with pytest.raises(StorageError, match=r"no credentials were found.*AWS_ACCESS_KEY_ID"):
        open_store(seaweedfs.url(), timeout_s=1).get("key")


@pytest.mark.slow
def test_a_profile_gives_the_credentials(seaweedfs: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _set(monkeypatch, **seaweedfs.environment(), AWS_PROFILE="work")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    credentials = f"[work]\naws_access_key_id = {seaweedfs.key}\naws_secret_access_key = {seaweedfs.secret}\n"
    (tmp_path / "credentials").write_text(credentials)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    url = seaweedfs.url()
    open_store(url).create("key", b"1")
    assert _read_with_pyarrow(url) == b"1"


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"AWS_ENDPOINT_URL": "localhost:9000"}, "starts with http"),
        ({"AWS_SECRET_ACCESS_KEY": ""}, "AWS_SECRET_ACCESS_KEY: half of the credentials is missing"),
        ({"MUTIRAO_STORE_TIMEOUT_S": "soon"}, "not a number of seconds"),
    ],
)
def test_settings_that_can_not_be_right_are_refused(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], message: str
) -> None:
    _set(monkeypatch, **environment)
    for opens in (open_store, open_filesystem):
        with pytest.raises(UsageError, match=message):
            opens("s3://bucket/x")


def _wait_until(condition: Callable[[], bool], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the writer has not begun"
        time.sleep(0.01)
