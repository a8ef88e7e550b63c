"""Searches over small datasets, with the ranks as children of the test's own process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.data.config import DataConfig
from pipelines.data.dataset import open_dataset
from pipelines.data.shards import plan_shards
from pipelines.data.source import input_columns, make_source
from pipelines.data.split import SplitConfig
from pipelines.data.splitting import fit_split
from pipelines.evaluation import EvaluationData
from pipelines.features import FeatureConfig, LabelConfig, fit_features
from pipelines.search.trying import Arena
from pipelines.search.words import direction
from pipelines.storage import open_store
from pipelines.training.config import TrainConfig
from pipelines.training.data import TrainingData

MakeArena = Callable[..., Arena]


def regression(rows: int = 240, features: int = 12, seed: int = 0) -> pa.Table:
    """Few rows for many features, and much noise: a penalty pays."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, features)).astype(np.float32)
    y = X @ rng.normal(size=features) + 4.0 * rng.normal(size=rows)
    return pa.table({**{f"x{j}": X[:, j] for j in range(features)}, "label": y})


def classes(rows: int = 1500, seed: int = 0) -> pa.Table:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, 4)).astype(np.float32)
    label = rng.random(rows) < 1 / (1 + np.exp(-X @ [1.0, -2.0, 0.5, 0.0]))
    return pa.table({**{f"x{j}": X[:, j] for j in range(4)}, "label": label})


@pytest.fixture
def make_arena(tmp_path: Path) -> MakeArena:
    """Make an arena for a table: half of its rows train, half validate."""

    def make(table: pa.Table, train: dict[str, Any], *, metric: str, name: str = "search") -> Arena:
        folder = tmp_path / "data"
        if not folder.exists():
            folder.mkdir()
            for number in range(2):
                half = table.num_rows // 2
                pq.write_table(table.slice(number * half, half), folder / f"{number}.parquet", row_group_size=half // 2)
        dataset = open_dataset(str(folder))
        source = make_source(dataset, DataConfig(source=str(folder)))
        features = [column for column in table.column_names if column != "label"]
        shards = plan_shards(dataset, input_columns(source, table.column_names), shards=4)
        split = fit_split(SplitConfig(validation=0.5, test=0.0), source, shards.shards, None)
        fitted = fit_features(
            [FeatureConfig(columns=tuple(features))],
            LabelConfig(column="label"),
            source,
            shards.shards,
            split,
            categorical="one_hot",
        )
        data = TrainingData(source, shards, split, fitted.plan, fitted.target, None, dict(fitted.rows))
        return Arena(
            config=TrainConfig.model_validate(train),
            data=data,
            judged=EvaluationData(source, shards, split, fitted.target),
            client=None,
            ranks=2,
            threads=1,
            memory_bytes=None,
            store=open_store(str(tmp_path / "store")),
            folder=name,
            scratch_url=str(tmp_path / "scratch"),
            metric=metric,
            towards=direction(metric),
            stop=threading.Event(),
        )

    return make


@pytest.fixture
def make_regression() -> Callable[..., pa.Table]:
    return regression


@pytest.fixture
def make_classes() -> Callable[..., pa.Table]:
    return classes
