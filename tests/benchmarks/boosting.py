"""How fast, and in how much memory, does XGBoost train on the gang from Parquet, against ``xgb.train`` by itself?

Both sides get two threads: ours two ranks of one thread on a two-worker ``LocalCluster``, the peer one process of two.
Both times run from Parquet files to a trained booster, without starting Python or the cluster; ours includes opening
the dataset, the pass that fits the features, and starting the ranks. Memory is the highest sum of the resident bytes of
all processes of a side (ours: driver, scheduler, workers and ranks), watched in a run of its own, since watching takes
time from both.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import threading
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil

from tests.benchmarks.synthetic import make

WORDS = {"max_depth": 6, "learning_rate": 0.3, "max_bin": 256}
THREADS = 2


def run(workdir: Path, quick: bool) -> list[dict[str, Any]]:
    """Measure; `workdir` keeps the data."""
    rows, rounds, runs = (200_000, 10, 1) if quick else (5_000_000, 50, 3)
    path = make(workdir, rows=rows)
    # Alternating, so that a slow minute of the machine hits both.
    pairs = [(_apart("ours", path, rounds), _apart("peer", path, rounds)) for _ in range(runs)]
    ours, peers = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    memory = [[_apart(side, path, rounds, watched=True)] for side in ("ours", "peer")]
    what = f"XGBoost, {rows:,} × 28, {rounds} rounds"

    def median(side: list[dict[str, Any]], key: str) -> float:
        return float(statistics.median(each[key] for each in side))

    phases = ", ".join(f"{name} {median([each['phases'] for each in ours], name):.1f}" for name in ours[0]["phases"])
    peer_phases = ", ".join(f"{name} {median([p['phases'] for p in peers], name):.1f}" for name in peers[0]["phases"])
    auc = f"AUC {median(ours, 'auc'):.5f} against {median(peers, 'auc'):.5f}"
    return [
        _row(f"{what}: end to end from Parquet, s", ours, peers, "seconds", "≤ 1.15", f"{phases}; peer {peer_phases}"),
        _row(
            f"{what}: training, features known, s", ours, peers, "training", "≤ 1.15", "without manifest and features"
        ),
        _row(
            f"{what}: CPU time, s", ours, peers, "cpu", "", "all processes from start to end, the check of the AUC too"
        ),
        _row(f"{what}: summed peak memory, MiB", *memory, "peak_mib", "≤ 1.3", auc),
    ]


def _row(
    what: str, ours: list[dict[str, Any]], peers: list[dict[str, Any]], key: str, target: str, note: str
) -> dict[str, Any]:
    a, b = (float(statistics.median(each[key] for each in side)) for side in (ours, peers))
    met = None if not target else a / b <= float(target.removeprefix("≤ "))
    return {
        "what": what, "ours": a, "peer": b, "ratio": a / b, "target": target, "met": met, "runs": len(ours),
        "note": note,
    }  # fmt: skip


def _apart(side: str, path: str, rounds: int, *, watched: bool = False) -> dict[str, Any]:
    """Run one side in a process of its own; watch the memory of its tree, or measure its processor time."""
    command = [sys.executable, "-m", "tests.benchmarks.boosting", side, path, str(rounds)]
    threads = {"OMP_NUM_THREADS": "1" if side == "ours" else str(THREADS)}  # of a process: ours has a rank per thread
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | threads)
    watcher = _Watcher(process.pid) if watched else None
    output, _ = process.communicate()
    peak = watcher.stop() if watcher else 0
    if process.returncode:
        raise RuntimeError(f"{side} failed")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return json.loads(output.splitlines()[-1]) | {"peak_mib": peak / 2**20, "cpu": cpu}


class _Watcher:
    """Samples the summed resident bytes of a process tree."""

    def __init__(self, pid: int) -> None:
        self._pid, self._peak, self._over = pid, 0, threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def stop(self) -> int:
        self._over.set()
        self._thread.join()
        return self._peak

    def _watch(self) -> None:
        while not self._over.wait(0.05):
            self._peak = max(self._peak, sum(_resident(process) for process in _tree(self._pid)))


def _tree(pid: int) -> list[psutil.Process]:
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _resident(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


# --- the two sides ---------------------------------------------------------------------------------------------------


def _ours(path: str, rounds: int) -> dict[str, Any]:
    from distributed import Client, LocalCluster

    from pipelines.data.config import DataConfig
    from pipelines.data.dataset import open_dataset
    from pipelines.data.shards import plan_shards
    from pipelines.data.source import make_source
    from pipelines.data.split import SplitConfig
    from pipelines.data.splitting import fit_split
    from pipelines.features import FeatureConfig, LabelConfig, fit_features
    from pipelines.training import TrainConfig, TrainingData
    from pipelines.training.fit import fit

    with (
        LocalCluster(n_workers=THREADS, threads_per_worker=1, processes=True, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        client.run(_warm)
        _warm()
        began = time.perf_counter()
        dataset = open_dataset(path)
        source = make_source(dataset, DataConfig(source=path))
        columns = list(dataset.schema.names)
        shards = plan_shards(dataset, columns, shards=64)
        split = fit_split(SplitConfig(kind="hash", validation=0.0, test=0.0), source, shards.shards)
        planned = time.perf_counter()
        fitted = fit_features(
            [FeatureConfig(columns=[name for name in columns if name != "label"])],
            LabelConfig(column="label"),
            source,
            shards.shards,
            split,
            client=client,
            categorical="native",
        )
        data = TrainingData(source, shards, split, fitted.plan, fitted.target, rows=fitted.rows)
        featured = time.perf_counter()
        config = TrainConfig(estimator="xgboost", params={**WORDS, "num_boost_round": rounds})
        trained = fit(config, data, client=client, ranks=THREADS, threads=1)
        done = time.perf_counter()
    seconds = trained.summary["seconds"]
    phases = {
        "open": planned - began, "features": featured - planned, "ranks": done - featured - sum(seconds.values()),
        **seconds,
    }  # fmt: skip
    auc = _auc(trained.files["model.ubj"], path)
    return {"seconds": done - began, "training": done - featured, "phases": phases, "auc": auc}


def _peer(path: str, rounds: int) -> dict[str, Any]:
    import pyarrow.parquet as pq
    import xgboost as xgb

    began = time.perf_counter()
    table = pq.read_table(path)
    label, features = table["label"].to_numpy(), table.drop_columns("label")
    read = time.perf_counter()
    matrix = xgb.QuantileDMatrix(features, label=label, nthread=THREADS, max_bin=256)
    binned = time.perf_counter()
    words = WORDS | {"objective": "binary:logistic", "tree_method": "hist", "nthread": THREADS}
    booster = xgb.train(words, matrix, rounds)
    done = time.perf_counter()
    phases = {"load": read - began, "bins": binned - read, "boost": done - binned}
    auc = _auc(bytes(booster.save_raw("ubj")), path)
    return {"seconds": done - began, "training": done - began, "phases": phases, "auc": auc}


def _warm() -> None:
    """Import what the peer, too, has imported before its clock starts."""
    for name in ("pyarrow.dataset", "xgboost", "pipelines.features.fit", "pipelines.training.estimators.boosting"):
        import_module(name)


def _auc(model: bytes, path: str) -> float:
    """AUC on the dataset's first row group: that both sides learned the same."""
    import pyarrow.parquet as pq
    import xgboost as xgb
    from sklearn.metrics import roc_auc_score

    table = pq.ParquetFile(sorted(Path(path).glob("*.parquet"))[0]).read_row_group(0)
    matrix = table.drop_columns("label").to_pandas().to_numpy()
    booster = xgb.Booster(model_file=bytearray(model))
    return float(roc_auc_score(table["label"].to_numpy(), booster.inplace_predict(matrix)))


if __name__ == "__main__":
    sides = {"ours": _ours, "peer": _peer}
    print(json.dumps(sides[sys.argv[1]](sys.argv[2], int(sys.argv[3]))))
