"""A local cluster: started within bounds, scaled, following the load, stopped when idle, and clear when it is gone."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import cloudpickle
import psutil
import pytest

from cluster import (
    Cluster,
    ClusterDeadlineError,
    ClusterLostError,
    ClusterSpec,
    ClusterUsageError,
    PreflightError,
    WorkerSpec,
    connect,
)
from cluster.backends.local import ALLOCATOR
from cluster.scratch import ScratchFolder, clear_abandoned

# Workers can't import this file: its functions travel by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.slow

LIMIT_S = 60.0
WORKER = WorkerSpec(memory=512 * 2**20)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    scratch = str(tmp_path_factory.mktemp("scratch"))
    with connect(ClusterSpec(workers=2, max_workers=3, worker=WORKER, scratch=scratch)) as connected:
        yield connected


def test_workers_have_what_the_spec_says(cluster: Cluster) -> None:
    workers = cluster.workers()
    assert [(worker.threads, worker.memory_bytes, worker.host) for worker in workers] == [
        (1, WORKER.memory, "127.0.0.1")
    ] * 2
    assert cluster.client.submit(sum, [1, 2]).result() == 3
    assert cluster.scheduler_address.startswith("tcp://127.0.0.1:")


def test_workers_keep_the_memory_that_the_next_batch_needs(cluster: Cluster) -> None:
    found = cluster.client.run(lambda: {name: os.environ[name] for name in ALLOCATOR})
    assert list(found.values()) == [{name: str(value) for name, value in ALLOCATOR.items()}] * len(found)


def test_the_users_allocator_setting_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "1048576")
    with connect(ClusterSpec(workers=1, worker=WORKER, scratch=str(tmp_path))) as own:
        assert set(own.client.run(os.environ.get, "MALLOC_TRIM_THRESHOLD_").values()) == {"1048576"}


def test_the_dashboard_answers_under_its_link(cluster: Cluster) -> None:
    from urllib.request import urlopen

    assert cluster.dashboard_link.startswith("http://127.0.0.1:")
    with urlopen(cluster.dashboard_link, timeout=LIMIT_S) as page:
        assert page.status == 200


def test_everything_listens_on_the_loopback_only(cluster: Cluster) -> None:
    owner = psutil.Process()
    listening = [
        connection.laddr.ip
        for process in [owner, *owner.children(recursive=True)]
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert len(listening) >= 4
    assert set(listening) == {"127.0.0.1"}


def test_logs_go_into_files(cluster: Cluster) -> None:
    cluster.client.run(warn)
    assert cluster.log_folder is not None
    texts = {path.name: path.read_text() for path in cluster.log_folder.iterdir()}
    assert set(texts) >= {"scheduler.log", "worker-0.log", "worker-1.log"}
    assert "a warning of the user's" in texts["worker-0.log"]
    assert "distributed" in texts["scheduler.log"]


def warn() -> None:
    logging.getLogger("mine").warning("a warning of the user's")


def test_a_killed_worker_comes_back(cluster: Cluster) -> None:
    before = {worker.address for worker in cluster.workers()}
    cluster.client.submit(os._exit, 1, retries=0, pure=False, allow_other_workers=False)
    until(lambda: {worker.address for worker in cluster.workers()} != before and len(cluster.workers()) == 2)


def test_a_worker_that_is_lost_twice_comes_back(tmp_path: Path) -> None:
    """Dask ends a nanny whose worker is away 15 s after a loss: a second one just before that is such a moment."""
    with connect(ClusterSpec(workers=1, worker=WORKER, scratch=str(tmp_path))) as own:
        time.sleep(1)  # a worker that is killed while it starts has failed, for its nanny
        began = time.monotonic()
        first = kill_worker(own)
        until(lambda: [worker.address for worker in own.workers()] not in ([], first))
        time.sleep(began + 14.7 - time.monotonic())
        second = kill_worker(own)
        time.sleep(1.5)
        until(lambda: [worker.address for worker in own.workers()] not in ([], second))
        assert own.client.submit(sum, [1, 2]).result(LIMIT_S) == 3


def kill_worker(cluster: Cluster) -> list[str]:
    """Kill the only worker; returns its address."""
    [(address, pid)] = cluster.client.run(os.getpid).items()
    os.kill(pid, signal.SIGKILL)
    return [address]


def test_scaling_is_waited_for_and_bounded_by_the_machine(cluster: Cluster) -> None:
    cluster.scale(3)
    cluster.wait_for_workers(3, LIMIT_S)
    cluster.scale(1)
    until(lambda: len(cluster.workers()) == 1)
    with pytest.raises(PreflightError, match="memory"):
        cluster.scale(9_000)
    with pytest.raises(ClusterUsageError):
        cluster.scale(-1)
    cluster.scale(2)
    cluster.wait_for_workers(2, LIMIT_S)


def test_workers_that_do_not_come_are_named(cluster: Cluster) -> None:
    with pytest.raises(ClusterDeadlineError, match=r"5 workers within 0\.2 s; found 2 workers") as raised:
        cluster.wait_for_workers(5, 0.2)
    assert "worker-" in str(raised.value) or str(cluster.log_folder) in str(raised.value)


def test_following_the_load(tmp_path: Path) -> None:
    spec = ClusterSpec(workers=1, max_workers=2, worker=WORKER, dashboard=None, scratch=str(tmp_path))
    with connect(spec) as cluster:
        assert cluster.dashboard_link == ""
        cluster.adapt()
        futures = cluster.client.map(time.sleep, [0.5] * 40, pure=False)
        until(lambda: len(cluster.workers()) == 2)
        cluster.client.cancel(futures)
        with pytest.raises(ClusterUsageError):
            cluster.adapt(3, 2)


def test_an_idle_cluster_stops_by_itself_and_says_so(tmp_path: Path) -> None:
    spec = ClusterSpec(workers=1, worker=WORKER, dashboard=None, idle_timeout=1.0, scratch=str(tmp_path))
    cluster = connect(spec)
    try:
        client = cluster.client
        client.submit(time.sleep, 4).result()  # work is not idleness
        until(lambda: cluster.closed)
        until(lambda: not list(tmp_path.glob("cluster-*")))
        with pytest.raises(ClusterLostError, match=r"stops after 1 s without work"):
            _ = cluster.client
    finally:
        cluster.close()


def test_closing_twice_is_fine_and_using_it_afterwards_is_told(tmp_path: Path) -> None:
    cluster = connect(ClusterSpec(worker=WORKER, dashboard=None, scratch=str(tmp_path)))
    cluster.close()
    cluster.close()
    for use in (lambda: cluster.client, lambda: cluster.scale(1), cluster.workers, lambda: cluster.dashboard_link):
        with pytest.raises(ClusterLostError, match="it was closed"):
            use()
    assert not list(tmp_path.iterdir())


def test_workers_that_die_at_start_end_the_wait_with_their_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broken environment: something on the workers' path raises when Python starts."""
    (tmp_path / "sitecustomize.py").write_text("import os, sys\nif '--multiprocessing-fork' in sys.argv: os._exit(7)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    began = time.monotonic()
    spec = ClusterSpec(worker=WORKER, dashboard=None, start_timeout=600.0, scratch=str(tmp_path / "scratch"))
    with pytest.raises(ClusterDeadlineError, match="workers did not come") as raised:
        connect(spec)
    assert "worker 0: its process is failed" in str(raised.value)
    assert "exited with status 7" in str(raised.value)
    assert time.monotonic() - began < 300


def test_what_dead_clusters_left_is_cleared_but_not_what_lives(tmp_path: Path) -> None:
    living = ScratchFolder(tmp_path)
    dead, old = tmp_path / "cluster-dead", tmp_path / "cluster-old"
    for folder in (dead, old):
        (folder / "workers").mkdir(parents=True)
        (folder / "logs").mkdir()
        (folder / "owner.lock").write_text("")
    os.utime(old, (0, 0))
    clear_abandoned(tmp_path, now=time.time())
    assert living.workers.exists()
    assert not (dead / "workers").exists()
    assert (dead / "logs").exists()
    assert not old.exists()
    living.close()
    assert not living.path.exists()
