"""What do columns over ranks cost and save, against rows over ranks, with two ranks of one thread each?

Dense: many numeric columns, as many bytes for each rank either way; what differs is what is exchanged (two floats a
row, or 25 bytes a weight) and that a pass goes over the values twice, before and after the exchange. Hashed: more
weights than values in the data, where rows over ranks hold every weight, and a gradient for each lane, on every rank.

A step's time is a fit's, without loading, over its passes (evaluations of the objective). Memory is the most resident
bytes of any rank's process, looked at from outside every 20 ms.
"""

from __future__ import annotations

import os
import statistics
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

STRATEGIES: dict[str, Any] = {"ours": {"name": "model_parallel", "blocks": 2}, "peer": "synchronous"}


def run(workdir: Path, quick: bool) -> list[dict[str, Any]]:
    """Measure; `workdir` keeps the data."""
    runs = 1 if quick else 3
    dense = (2000, 500) if quick else (20_000, 2000)
    buckets = 1 << (16 if quick else 20)
    return [
        *_rows(f"dense, {dense[0]:,} × {dense[1]:,}", _dense(workdir, *dense), runs),
        *_rows(f"hashed, 20,000 × 10 values in {buckets:,} features", _hashed(workdir, 20_000, buckets), runs),
    ]


def _rows(what: str, data: Any, runs: int) -> list[dict[str, Any]]:
    found = {side: [_measured(data, strategy) for _ in range(runs)] for side, strategy in STRATEGIES.items()}
    median = {
        side: {key: statistics.median(each[key] for each in seen) for key in seen[0]} for side, seen in found.items()
    }
    ours, peer = median["ours"], median["peer"]
    note = (
        f"loading {ours['load_s']:.2f} against {peer['load_s']:.2f} s; exchanging scores, with the loss, takes "
        f"{ours['exchange_ms']:.3g} ms of a step; {ours['kept_mib']:.0f} against {peer['kept_mib']:.0f} MiB of values"
    )
    return [
        {
            "what": f"{what}: ms a step of L-BFGS, columns over ranks against rows over ranks",
            "ours": ours["step_ms"], "peer": peer["step_ms"], "ratio": ours["step_ms"] / peer["step_ms"],
            "target": None, "met": None, "runs": runs, "note": note,
        },
        {
            "what": f"{what}: MiB of the largest rank, columns over ranks against rows over ranks",
            "ours": ours["peak_mib"], "peer": peer["peak_mib"], "ratio": ours["peak_mib"] / peer["peak_mib"],
            "target": None, "met": None, "runs": runs, "note": "",
        },
    ]  # fmt: skip


def _measured(data: Any, strategy: Any) -> dict[str, float]:
    from pipelines.training import TrainConfig
    from pipelines.training.fit import fit

    params = {"l2": 1e-4, "solver": "lbfgs", "tol": 0.0, "max_iter": 10}
    config = TrainConfig(estimator="logistic_regression", params=params, strategy=strategy)
    with _Peak() as peak:
        summary = fit(config, data, client=None, ranks=2).summary
    ranks = summary["ranks"]
    return {
        "step_ms": 1e3 * summary["fit_s"] / summary["passes"],
        "exchange_ms": 1e3 * max(rank.get("exchange_s", 0.0) for rank in ranks) / summary["passes"],
        "load_s": max(rank["load_s"] for rank in ranks),
        "kept_mib": max(rank["memory_bytes"] for rank in ranks) / 2**20,
        "peak_mib": peak.bytes / 2**20,
    }


class _Peak:
    """The most resident bytes of any rank among this process's children."""

    def __init__(self) -> None:
        self.bytes, self._over = 0, threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> _Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.02):
            for process in psutil.Process(os.getpid()).children(recursive=True):
                try:
                    if "pipelines.training.gang.rank" in process.cmdline():
                        self.bytes = max(self.bytes, process.memory_info().rss)
                except psutil.Error:
                    continue


def _dense(workdir: Path, rows: int, columns: int) -> Any:
    from pipelines.features import FeatureConfig, FeaturePlan
    from pipelines.features.steps import Input, Number
    from pipelines.features.stored import Stored

    folder = workdir / f"wide-{rows}x{columns}"
    names = [f"f{j:05d}" for j in range(columns)]
    if not (folder / "_SUCCESS").exists():
        folder.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng(0)
        X = rng.standard_normal((columns, rows), dtype=np.float32)
        odds = (rng.normal(size=columns) * (rng.random(columns) < 0.02)).astype(np.float32) @ X
        label = (rng.random(rows) < 1 / (1 + np.exp(-odds))).astype(np.int8)
        pq.write_table(
            pa.table([*X, label], names=[*names, "label"]),
            folder / "part-0.parquet", row_group_size=-(-rows // 4), use_dictionary=["label"],
        )  # fmt: skip
        (folder / "_SUCCESS").touch()
    # Fitted on one column: what that takes with thousands is not what is measured here.
    data = _prepared(folder, names, [FeatureConfig(columns=names[:1], scale="none")])
    schema = pa.schema([(name, pa.float32()) for name in names])
    plan = FeaturePlan(Stored(schema, tuple(Number(Input(name), fill=0.0) for name in names)))
    return replace(data, features=plan)


def _hashed(workdir: Path, rows: int, buckets: int) -> Any:
    from pipelines.features import FeatureConfig

    names = [f"word{j}" for j in range(10)]
    folder = workdir / f"words-{rows}"
    if not (folder / "_SUCCESS").exists():
        folder.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng(0)
        words = {name: pa.array(rng.zipf(1.3, rows) % 1_000_000) for name in names}
        table = pa.table({**words, "label": rng.integers(0, 2, rows).astype(np.int8)})
        pq.write_table(table, folder / "part-0.parquet", row_group_size=-(-rows // 8))
        (folder / "_SUCCESS").touch()
    features = [FeatureConfig(columns=names, encode="hash", buckets=buckets // 10)]
    return _prepared(folder, names, features)


def _prepared(folder: Path, names: list[str], features: list[Any]) -> Any:
    from pipelines.data.config import DataConfig
    from pipelines.data.dataset import open_dataset
    from pipelines.data.shards import plan_shards
    from pipelines.data.source import make_source
    from pipelines.data.split import SplitConfig
    from pipelines.data.splitting import fit_split
    from pipelines.features import LabelConfig, fit_features
    from pipelines.training import TrainingData

    dataset = open_dataset(str(folder))
    source = make_source(dataset, DataConfig(source=str(folder)))
    plan = plan_shards(dataset, [*names, "label"], shards=8)
    split = fit_split(SplitConfig(validation=0, test=0), source, plan.shards, None)
    fitted = fit_features(features, LabelConfig(column="label"), source, plan.shards, split)
    return TrainingData(source, plan, split, fitted.plan, fitted.target, None, fitted.rows)
