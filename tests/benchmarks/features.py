"""What a feature plan costs: applying it against a plain copy of the columns, fitting it against only reading them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pipelines.data.dataset import open_dataset
from pipelines.data.reader import read_batches
from pipelines.data.shards import plan_shards
from pipelines.data.source import make_source
from pipelines.data.split import SplitPlan
from pipelines.features import FeatureConfig, FeaturePlan, LabelConfig, fit_features
from pipelines.features.steps import Input, Number
from pipelines.features.stored import Stored
from tests.benchmarks.synthetic import make

COLUMNS = 28
BATCH = 65_536


def run(workdir: Path, quick: bool) -> list[dict[str, Any]]:
    """Measure; quick: 300,000 rows instead of 5 M."""
    rows = 300_000 if quick else 5_000_000
    return [*_transform(min(rows, 1_000_000), 3 if quick else 9), *_fit(workdir, rows, 1 if quick else 3)]


def _transform(rows: int, runs: int) -> list[dict[str, Any]]:
    table = []
    for kind in (pa.float32(), pa.float64()):
        names = [f"f{place:02d}" for place in range(COLUMNS)]
        rng = np.random.default_rng(0)
        columns = [pa.array(rng.standard_normal(rows), pa.float64()).cast(kind) for _ in names]
        batches = pa.table(columns, names=names).to_batches(max_chunksize=BATCH)
        out = np.zeros((rows, COLUMNS), np.float32, order="F")
        peer = _median(lambda: _copy(batches, out), runs)  # noqa: B023 - called at once
        for what, center, scale in (("pass through", 0.0, 1.0), ("standardise", 0.1, 1.7)):
            steps = tuple(Number(Input(name), center, scale) for name in names)
            plan = FeaturePlan(Stored(pa.schema([(name, kind) for name in names]), steps))
            ours = _median(lambda: _apply(plan, batches, out), runs)  # noqa: B023 - called at once
            table.append(
                {
                    "what": f"{what} {COLUMNS} columns of {kind}: ns a value", "ours": ours / rows / COLUMNS * 1e9,
                    "peer": peer / rows / COLUMNS * 1e9, "ratio": ours / peer, "target": "", "runs": runs,
                    "note": "peer: NumPy copies (casts) each column into the same matrix; one thread",
                }
            )  # fmt: skip
    return table


def _copy(batches: list[pa.RecordBatch], out: np.ndarray) -> None:
    start = 0
    for batch in batches:
        for place in range(COLUMNS):
            out[start : start + batch.num_rows, place] = batch.column(place).to_numpy()
        start += batch.num_rows


def _apply(plan: FeaturePlan, batches: list[pa.RecordBatch], out: np.ndarray) -> None:
    start = 0
    for batch in batches:
        plan.transform(batch, out[start : start + batch.num_rows])
        start += batch.num_rows


def _fit(workdir: Path, rows: int, runs: int) -> list[dict[str, Any]]:
    dataset = open_dataset(make(workdir, rows=rows, features=COLUMNS))
    source, names = make_source(dataset), tuple(name for name in dataset.schema.names if name != "label")
    shards = plan_shards(dataset, [*names, "label"], shards=64).shards
    split = SplitPlan("hash", None, 0.1, 0.2, 7)

    def read() -> None:
        with closing(read_batches(source, shards, [*names, "label"])) as reads:
            for _ in reads:
                pass

    def fit() -> None:
        fit_features([FeatureConfig(columns=names)], LabelConfig(column="label"), source, shards, split)

    peer, ours = _median(read, runs), _median(fit, runs)
    return [
        {
            "what": f"fit {COLUMNS} standardised columns of {rows / 1e6:.1f} M rows, with checks: seconds",
            "ours": ours, "peer": peer, "ratio": ours / peer, "target": "", "runs": runs,
            "note": "peer: our reader, the same columns; both in one process",
        }
    ]  # fmt: skip


def _median(work: Callable[[], None], runs: int) -> float:
    work()
    seconds = []
    for _ in range(runs):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)
