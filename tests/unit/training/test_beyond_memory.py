"""Rows of four times the memory that a rank may use are trained on, within it; columns are held by one rank each."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pytest

from pipelines.features import FeatureConfig
from pipelines.training.config import TrainConfig
from pipelines.training.fit import fit

LIMIT = 272 << 20
CATEGORIES = 100


class Peak:
    """The most resident bytes of a rank, looked at from outside every 20 ms."""

    def __init__(self) -> None:
        self.bytes, self._over = 0, threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Peak:
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


@pytest.mark.slow
def test_four_times_the_memory_trains_within_it(maker: Any, tmp_path: Path) -> None:
    rows = 4 * LIMIT // (4 * (CATEGORIES + 1))
    rng = np.random.default_rng(0)
    code = rng.integers(0, CATEGORIES, rows)
    x = rng.normal(size=rows).astype(np.float32)
    label = (rng.random(rows) < 1 / (1 + np.exp(-x - code / 50 + 1))).astype(np.int8)
    names = pa.array([f"c{number:02d}" for number in range(CATEGORIES)])
    colour = pa.DictionaryArray.from_arrays(pa.array(code, pa.int8()), names)
    table = pa.table({"colour": colour, "x": x, "label": label})
    features = [FeatureConfig(columns=["colour", "x"])]
    data = maker.prepare(table, features=features, sparse=False, shards=48)
    del table, colour, code
    config = TrainConfig(estimator="logistic_regression", params={"l2": 1e-4})
    with Peak() as peak:
        found = fit(config, data, client=None, ranks=1, memory_bytes=LIMIT)
    [rank] = found.summary["ranks"]
    assert rank["disk_bytes"] + rank["memory_bytes"] >= 4 * LIMIT
    assert found.summary["converged"]
    assert 0 < peak.bytes <= LIMIT


@pytest.mark.slow
def test_a_rank_never_holds_the_columns_of_others(maker: Any) -> None:
    rows, columns = 160_000, 4
    rng = np.random.default_rng(0)
    names = pa.array([f"c{number:02d}" for number in range(CATEGORIES)])
    codes = {f"colour{j}": rng.integers(0, CATEGORIES, rows, np.int8) for j in range(columns)}
    table = pa.table(
        {name: pa.DictionaryArray.from_arrays(pa.array(code), names) for name, code in codes.items()}
        | {"label": rng.integers(0, 2, rows).astype(np.int8)}
    )
    data = maker.prepare(table, features=[FeatureConfig(columns=list(codes))], sparse=False)
    whole = rows * columns * CATEGORIES * 4
    peaks = []
    for ranks in (1, 2):
        config = TrainConfig(
            estimator="logistic_regression",
            params={"l2": 1e-4, "tol": 1e-2},
            strategy={"name": "model_parallel", "blocks": 4},
        )
        with Peak() as peak:
            found = fit(config, data, client=None, ranks=ranks)
        peaks.append(peak.bytes)
        # Labels are kept beside each of the blocks; slabs end with some space that is not used.
        assert max(rank["memory_bytes"] for rank in found.summary["ranks"]) < whole / ranks * 1.1
    # What one rank has beyond what each of two has is half of the values; a tenth for what else processes do.
    assert peaks[0] - peaks[1] > 0.4 * whole
