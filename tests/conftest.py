"""Servers that tests of several rooms share. Each is started once per test process, when a test asks for it first."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import settings

# A slow machine is no failure. With CI set, hypothesis draws the same examples each time: a change is judged by itself.
settings.register_profile(
    "mutirao", parent=settings.get_profile("ci" if "CI" in os.environ else "default"), deadline=None
)
settings.load_profile("mutirao")


@dataclass(frozen=True)
class S3Server:
    """A running S3 server; `url()` names a fresh folder in it."""

    endpoint: str
    key: str = "mutirao"
    secret: str = "mutirao-secret"
    bucket: str = "mutirao-tests"

    def environment(self) -> dict[str, str]:
        """Return what a process needs in its environment to reach the server."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_REGION": "us-east-1",
        }

    def url(self) -> str:
        """Return the URL of an empty folder in the server's bucket."""
        return f"s3://{self.bucket}/{uuid.uuid4().hex}"

    def make_bucket(self) -> None:
        """Make the server's bucket. One is enough: SeaweedFS sets several volumes aside for each."""
        import boto3

        keys = {"aws_access_key_id": self.key, "aws_secret_access_key": self.secret, "region_name": "us-east-1"}
        boto3.client("s3", endpoint_url=self.endpoint, **keys).create_bucket(Bucket=self.bucket)


@pytest.fixture(scope="session")
def seaweedfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """SeaweedFS: a real, durable S3 server in a process of its own. Tests that use it are slow (4 s to start)."""
    folder = tmp_path_factory.mktemp("seaweedfs")
    server = S3Server(f"http://127.0.0.1:{(ports := _free_ports(8))[0]}")
    actions = ["Admin", "Read", "Write", "List", "Tagging"]
    reader = {"name": "reader", "actions": ["Read", "List"]}
    owner = {"name": "owner", "actions": actions}
    owner["credentials"] = [{"accessKey": server.key, "secretKey": server.secret}]
    reader["credentials"] = [{"accessKey": "reader", "secretKey": "reader-secret"}]
    (folder / "s3.json").write_text(json.dumps({"identities": [owner, reader]}))
    (folder / "data").mkdir()
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(_weed(folder, ports), stdout=log, stderr=log, preexec_fn=_die_with_parent)
    try:
        _wait_until_answers(server.endpoint, process, folder / "log")
        _wait_until(lambda: server.make_bucket() is None, process, folder / "log")
        yield server
    finally:
        os.kill(process.pid, signal.SIGKILL)  # it takes 25 s to stop on SIGTERM
        process.wait()


@pytest.fixture(scope="session")
def moto() -> Iterator[S3Server]:
    """moto: an S3 server in a thread of this process. It accepts any credentials and keeps everything in memory."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        s3 = S3Server(f"http://{host}:{port}")
        s3.make_bucket()
        yield s3
    finally:
        server.stop()


@pytest.fixture
def s3_url(seaweedfs: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """Give the URL of an empty folder on SeaweedFS, with this process's environment set to reach it."""
    for name, value in seaweedfs.environment().items():
        monkeypatch.setenv(name, value)
    return seaweedfs.url()


def _weed(folder: Path, ports: list[int]) -> list[str]:
    program = Path(sys.executable).parent / "weed"
    roles = ("s3.port", "s3.port.grpc", "master.port", "master.port.grpc", "volume.port", "volume.port.grpc")
    roles += ("filer.port", "filer.port.grpc")
    options = {
        "ip": "127.0.0.1",
        "ip.bind": "127.0.0.1",
        "dir": folder / "data",
        "s3.config": folder / "s3.json",
        "s3.port.iceberg": 0,
        "s3.port.lance": 0,
        "s3.autoCreateBucket": "false",
        "master.volumeSizeLimitMB": 64,
        "master.volumePreallocate": "false",
        "master.telemetry": "false",
        "volume.max": 40,
        **dict(zip(roles, ports, strict=True)),
    }
    return [str(program), "server", "-s3", *(f"-{name}={value}" for name, value in options.items())]


def _die_with_parent() -> None:
    """Have Linux kill the server when the test process goes, however it goes."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _wait_until_answers(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    def answers() -> bool:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            opener.open(url, timeout=5)
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False
        return True

    _wait_until(answers, process, log)


def _wait_until(ready: Callable[[], bool], process: subprocess.Popen[bytes], log: Path, seconds: float = 60) -> None:
    """Wait for a server under a generous cap; its log says what is wrong with one that does not come."""
    end = time.monotonic() + seconds
    error: Exception | None = None
    while time.monotonic() < end and process.poll() is None:
        try:
            if ready():
                return
        except Exception as failure:  # noqa: BLE001 - whatever a server that is not ready makes of a request
            error = failure
        time.sleep(0.1)
    raise RuntimeError(f"the server did not start ({error}): {log.read_text(errors='replace')[-2000:]}")
