"""On a cluster of any size the evaluation is the same, bit for bit."""

import os
import signal

import pytest
from distributed import Client, LocalCluster

from pipelines import codec
from pipelines.evaluation import EvaluateConfig, evaluate, tune

CONFIG = EvaluateConfig(segments=["carrier", "day"], calibrate="isotonic", threshold="f1")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster():
    with LocalCluster(n_workers=1, threads_per_worker=1, processes=True, dashboard_address=":0") as cluster:
        yield cluster


def test_one_worker_and_three_find_the_same_as_this_process(make_case, tmp_path, cluster):
    case = make_case("late", weight="weight", shards=20)
    scratch = str(tmp_path / "scratch")
    options = {"client": None, "scratch_url": scratch}
    alone = evaluate(case.ref, case.data, CONFIG, **options), tune(case.ref, case.data, CONFIG, **options)
    for workers in (1, 3):
        cluster.scale(workers)
        with Client(cluster) as client:
            client.wait_for_workers(workers)
            options["client"] = client
            found = evaluate(case.ref, case.data, CONFIG, **options), tune(case.ref, case.data, CONFIG, **options)
        assert codec.dump(found[0]) == codec.dump(alone[0])
        assert codec.dump(found[1]) == codec.dump(alone[1])
    assert list((tmp_path / "scratch").iterdir()) == []


def test_a_worker_that_dies_changes_nothing(make_case, tmp_path, cluster):
    case = make_case("late", shards=40)
    scratch = str(tmp_path / "scratch")
    alone = evaluate(case.ref, case.data, CONFIG, client=None, scratch_url=scratch)
    cluster.scale(2)
    with Client(cluster) as client:
        client.wait_for_workers(2)
        killed = []

        def kill_one(progress):
            if not killed:
                (pid, *_) = client.run(os.getpid).values()
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)

        found = evaluate(case.ref, case.data, CONFIG, client=client, scratch_url=scratch, on_done=kill_one)
    assert killed
    assert codec.dump(found) == codec.dump(alone)
    assert list((tmp_path / "scratch").iterdir()) == []
