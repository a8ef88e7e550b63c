"""The user's code on workers: present and future ones, their child processes, and after a change."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import cloudpickle
import pytest
from distributed import Client, LocalCluster

from cluster import CODE_PATH, install_code, pack_code

# Workers can't import this file: its functions travel by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder = str(tmp_path_factory.mktemp("workers"))
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, local_directory=folder
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


def call(name: str) -> object:
    import importlib

    return importlib.import_module(name).answer()


def in_a_child(name: str) -> str:
    command = [sys.executable, "-c", f"import {name}; print({name}.answer())"]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd="/").stdout.strip()


def code_path(dask_worker: object) -> tuple[str, str]:
    return os.environ[CODE_PATH], str(dask_worker.local_directory)  # type: ignore[attr-defined]  # a distributed.Worker


def write(folder: Path, value: int) -> None:
    (folder / "usercode").mkdir(exist_ok=True)
    (folder / "usercode" / "__init__.py").write_text("from usercode.inner import answer\n")
    (folder / "usercode" / "inner.py").write_text(f"def answer():\n    return {value}\n")


def test_code_is_importable_on_all_workers_their_children_and_newcomers_and_is_replaced(
    client: Client, tmp_path: Path
) -> None:
    write(tmp_path, 1)
    first = pack_code(["usercode"], tmp_path)
    install_code(client, first)
    install_code(client, first)
    assert set(client.run(call, "usercode").values()) == {1}
    assert set(client.run(in_a_child, "usercode").values()) == {"1"}
    for place, local in client.run(code_path).values():
        assert Path(place) == Path(local) / "code" / first.digest

    write(tmp_path, 2)
    install_code(client, pack_code(["usercode"], tmp_path))
    assert set(client.run(call, "usercode").values()) == {2}
    assert set(client.run(in_a_child, "usercode").values()) == {"2"}

    client.cluster.scale(3)
    client.wait_for_workers(3, timeout=60)
    assert list(client.run(call, "usercode").values()) == [2, 2, 2]

    # A worker that dies is started again by its nanny and asks for the code anew. (Not `client.restart`: with Python
    # 3.13 and Dask 2026.8 its workers do not come back, also without any plugin.)
    before = set(client.nthreads())
    os.kill(client.submit(os.getpid, pure=False).result(), signal.SIGKILL)
    deadline = time.monotonic() + 120
    while len(set(client.nthreads()) - before) < 1 or len(client.nthreads()) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert list(client.run(call, "usercode").values()) == [2, 2, 2]
