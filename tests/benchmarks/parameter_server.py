"""How many rows a second does the parameter server train on, what do servers hold, and how long does a loss take?

Two servers, workers and the arbiter are processes of this machine and share its cores. Rows have 100 non-zeros, their
keys drawn from a Zipf distribution (exponent 1.1) and hashed; the loss is logistic, the rule FTRL-Proximal.
"""

from __future__ import annotations

import json
import secrets
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from pipelines.training.blocks import SparseBlock

NONZEROS = 100
BATCH_ROWS = 2048
SERVERS = 2


def run(workdir: Path, quick: bool) -> list[dict[str, Any]]:
    """Measure; nothing is kept in `workdir`."""
    seconds, runs = (0.5, 1) if quick else (4.0, 3)
    size = 10**5 if quick else 10**7
    peer = statistics.median(_peer(size, 20_000) for _ in range(runs))
    rows = []
    for replicas, target in ((False, 30_000), (True, 15_000)):
        found = [_train(size, workers=2, replicas=replicas, staleness=None, seconds=seconds) for _ in range(runs)]
        rate = statistics.median(each["rows_per_s"] for each in found)
        stale = found[-1]["staleness"]
        rows.append(
            {
                "what": f"parameter server, {size:,} weights, {'with' if replicas else 'without'} replicas: rows/s",
                "ours": rate, "peer": peer, "ratio": rate / peer, "target": f">= {target:,} rows/s",
                "met": rate >= target, "runs": runs,
                "note": f"peer: SGDClassifier.partial_fit, one process; staleness {stale}",
            }
        )  # fmt: skip
    bounded = _train(size, workers=2, replicas=True, staleness=4, seconds=seconds)
    rows.append(
        {
            "what": "parameter server, staleness 4 with replicas: rows/s against unbounded",
            "ours": bounded["rows_per_s"], "peer": rows[-1]["ours"],
            "ratio": bounded["rows_per_s"] / rows[-1]["ours"], "target": "", "met": None, "runs": 1,
            "note": f"staleness {bounded['staleness']}",
        }
    )  # fmt: skip
    for word in (signal.SIGKILL, signal.SIGSTOP):
        taken = _train(size, workers=2, replicas=True, staleness=None, seconds=seconds + 4, lose=word)["longest_wait_s"]
        rows.append(
            {
                "what": f"parameter server, longest wait of a worker when a server gets {word.name}, s", "ours": taken,
                "peer": 5.0, "ratio": 5.0 / taken, "target": "< 5 s", "met": taken < 5, "runs": 1,
                "note": "peer: the target; nothing is lost (tests/faults)",
            }
        )  # fmt: skip
    large = 10**6 if quick else 10**8
    held = _train(large, workers=1, replicas=True, staleness=None, seconds=seconds, fill=True)
    share = held["share_bytes"] / 2**20
    own = max(held["held_bytes"]) / 2**20
    rows.append(
        {
            "what": f"parameter server, {large:,} weights all touched: MiB of a server above its start", "ours": own,
            "peer": share, "ratio": own / share, "target": "<= 1.5 x (own share + replica)", "met": own <= 1.5 * share,
            "runs": 1, "note": f"FTRL, 8 bytes per weight; {held['rows_per_s']:,.0f} rows/s with one worker",
        }
    )  # fmt: skip
    return rows


def zipf_rows(rows: int, size: int, seed: int) -> SparseBlock:
    """Make rows of `NONZEROS` ones at hashed keys, and labels of a sparse logistic model."""
    generator = np.random.default_rng(seed)
    u = generator.random(rows * NONZEROS)
    reach = (size + 1.0) ** -0.1 - 1  # the inverse of the distribution function of x^-1.1 over [1, size + 1)
    ranks = ((1 + u * reach) ** -10).astype(np.int64)
    keys = (ranks * 2_654_435_761 % size).astype(np.int32)
    true = np.where(ranks < 10_000, np.sin(ranks * 1.7), 0.0).reshape(rows, NONZEROS).sum(axis=1) * 0.5
    y = (generator.random(rows) < 1 / (1 + np.exp(-true))).astype(np.float32)
    indptr = np.arange(0, rows * NONZEROS + 1, NONZEROS, dtype=np.int32)
    return SparseBlock(csr_matrix((np.ones(rows * NONZEROS, np.float32), keys, indptr), (rows, size)), y, None)


def _peer(size: int, rows: int) -> float:
    from sklearn.linear_model import SGDClassifier

    block = zipf_rows(rows, size, 0)
    X = block.X.astype(np.float64)
    model = SGDClassifier(loss="log_loss", alpha=1e-9)
    model.partial_fit(X[:100], block.y[:100], classes=[0, 1])
    began = time.perf_counter()
    model.partial_fit(X, block.y)
    return rows / (time.perf_counter() - began)


def _train(
    size: int,
    *,
    workers: int,
    replicas: bool,
    staleness: int | None,
    seconds: float,
    fill: bool = False,
    lose: signal.Signals | None = None,
) -> dict[str, Any]:
    from pipelines.training.strategies.parameter_server import Arbiter, Client, Layout

    token, layout = secrets.token_bytes(32), Layout(size + 1, SERVERS)
    with Arbiter("127.0.0.1", token, servers=SERVERS, replicas=replicas, staleness=staleness) as arbiter:
        over = threading.Event()
        setting = {"address": arbiter.address, "token": token.hex(), "size": size, "staleness": staleness}
        with _processes("server", SERVERS, setting) as servers, _thread(arbiter, over):
            empty = [json.loads(_line(process)) for process in servers]
            with Client(arbiter.address, token, layout) as client:
                if fill:
                    _touch_all(client, layout)
                with _processes("worker", workers, setting | {"seconds": seconds}) as processes:
                    for process in processes:
                        _line(process)
                    for process in processes:
                        _say(process)
                    if lose is not None:
                        time.sleep(seconds / 4)  # in the midst of training
                        servers[-1].send_signal(lose)
                    done = [json.loads(_line(process)) for process in processes]
                stats = client.stats()
            over.set()
    peaks = {each["pid"]: each["peak_rss_bytes"] for each in stats}
    empty = [each for each in empty if each["pid"] in peaks]
    return {
        "rows_per_s": sum(each["rows"] / each["seconds"] for each in done),
        "staleness": _summary(arbiter.histogram),
        "held_bytes": [peaks[each["pid"]] - each["rss_bytes"] for each in empty],
        "share_bytes": stats[0]["row_bytes"] * (size + 1) / SERVERS * (2 if replicas else 1),
        "loss": statistics.mean(each["loss"] for each in done),
        "longest_wait_s": max(each["longest_wait_s"] for each in done),
    }


def _touch_all(client: Any, layout: Any) -> None:
    """Write every row once, through primaries and replicas."""
    step = 1 << 18
    for shard in range(layout.shards):
        for start in range(0, layout.length(shard), step):
            keys = np.arange(start, min(start + step, layout.length(shard)), dtype=np.int32)
            client.restore([(shard, keys, np.full((len(keys), 2), 1e-3, np.float32))])


@contextmanager
def _thread(arbiter: Any, over: threading.Event) -> Iterator[None]:
    def decide() -> None:
        while not over.is_set():
            arbiter.poll(0.05)
        arbiter.stop()

    thread = threading.Thread(target=decide)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(30)


@contextmanager
def _processes(role: str, count: int, setting: dict[str, Any]) -> Iterator[list[subprocess.Popen[str]]]:
    command = [sys.executable, "-m", "tests.benchmarks.parameter_server", role]
    pipe = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(command, **pipe) for _ in range(count)]
    try:
        for number, process in enumerate(processes):
            assert process.stdin is not None
            process.stdin.write(json.dumps(setting | {"number": number}) + "\n")
            process.stdin.flush()
        yield processes
    except BaseException:
        for process in processes:
            process.kill()
        raise
    finally:
        for process in processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:  # a server that was stopped
                process.kill()
                process.wait(10)


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def _say(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def _summary(histogram: Counter[int]) -> str:
    updates = sorted(histogram.elements())
    return (
        f"median {updates[len(updates) // 2]}, largest {updates[-1]} of {len(updates)} updates" if updates else "none"
    )


def _serve(setting: dict[str, Any]) -> None:
    import psutil

    from pipelines.training.gang.mesh import listen
    from pipelines.training.strategies.parameter_server import Ftrl, Layout, serve

    print(json.dumps({"pid": psutil.Process().pid, "rss_bytes": psutil.Process().memory_info().rss}), flush=True)
    host, port = setting["address"]
    layout, rule = Layout(setting["size"] + 1, SERVERS), Ftrl(alpha=0.1, l1=1e-4)
    serve(listen("127.0.0.1"), (host, port), bytes.fromhex(setting["token"]), layout, rule, free=[setting["size"]])


def _work(setting: dict[str, Any]) -> None:
    from pipelines.training.objectives import Logistic
    from pipelines.training.strategies.parameter_server import Client, Layout, Objective, train
    from pipelines.training.strategies.parameter_server.worker import Done, cut

    size, (host, port) = setting["size"], setting["address"]
    layout, objective = Layout(size + 1, SERVERS), Objective(Logistic(), size)
    batches = list(cut([zipf_rows(16 * BATCH_ROWS, size, setting["number"])], BATCH_ROWS))
    done: list[Done] = []
    times: list[float] = []

    def note(batch: Done) -> None:
        done.append(batch)
        times.append(time.perf_counter())

    def again() -> Iterator[SparseBlock]:
        while True:
            yield from batches

    with Client((host, port), bytes.fromhex(setting["token"]), layout) as client:
        print("ready", flush=True)
        sys.stdin.readline()
        began = time.perf_counter()
        end = began + setting["seconds"]
        train(
            client,
            layout,
            objective,
            again(),
            staleness=setting["staleness"],
            on_batch=note,
            stop_requested=lambda: time.perf_counter() > end,
        )
        taken = time.perf_counter() - began
    loss = sum(each.loss for each in done[-16:]) / sum(each.weight for each in done[-16:])
    found = {"rows": sum(each.rows for each in done), "seconds": taken, "loss": loss}
    print(json.dumps(found | {"longest_wait_s": float(np.diff(times).max(initial=0))}), flush=True)


if __name__ == "__main__":
    {"server": _serve, "worker": _work}[sys.argv[1]](json.loads(sys.stdin.readline()))
