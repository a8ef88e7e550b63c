"""A small partitioned dataset with nulls, and a model of it that is published."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.data.config import DataConfig
from pipelines.data.dataset import open_dataset
from pipelines.data.shards import plan_shards
from pipelines.data.source import make_source
from pipelines.data.split import SplitConfig
from pipelines.data.splitting import fit_split
from pipelines.features import FeatureConfig, LabelConfig, fit_features
from pipelines.model import Model, golden_rows
from pipelines.model.linear import LinearPredictor
from pipelines.registry import ModelVersion, Registry, lineage_of

ROWS = 5000
DERIVE = {"hour": "minute / 60", "far": "distance > 500", "is_late": "delay > 15"}


@dataclass(frozen=True)
class Published:
    """A dataset on disk, the model, and the registry where it is ``flights/1``, the champion."""

    folder: str
    table: pa.Table
    model: Model
    registry: Registry
    version: ModelVersion


@pytest.fixture(scope="session")
def published(tmp_path_factory: pytest.TempPathFactory) -> Published:
    folder: Path = tmp_path_factory.mktemp("flights")
    table = _table()
    for month in (1, 2, 10):
        rows = table.filter(pa.compute.equal(table["month"], month)).drop_columns(["month"])
        for part in range(2):
            path = folder / f"month={month}" / f"part-{part}.parquet"
            path.parent.mkdir(exist_ok=True)
            half = rows.num_rows // 2
            pq.write_table(rows.slice(part * half, half if part == 0 else None), path, row_group_size=300)
    dataset = open_dataset(str(folder))
    source = make_source(dataset, DataConfig(source=str(folder), derive=DERIVE, filter="delay is not None"))
    shards = plan_shards(dataset, dataset.schema.names, shards=4).shards
    split = fit_split(SplitConfig(by="id"), source, shards)
    features = [
        FeatureConfig.model_validate({"columns": ["distance", "hour"], "scale": "standard", "impute": "mean"}),
        FeatureConfig.model_validate({"columns": ["carrier"], "encode": "one_hot"}),
    ]
    fitted = fit_features(features, LabelConfig(column="is_late"), source, shards, split)
    coef = np.linspace(-1, 1, len(fitted.plan.names))[None]
    model = Model(fitted.plan, fitted.target, LinearPredictor(coef, np.array([0.1]), "logistic"))
    registry = Registry.open(str(tmp_path_factory.mktemp("registry")))
    lineage = lineage_of(dataset, source, split, {"name": "flights"})
    version = registry.publish("flights", model, golden=golden_rows(model), lineage=lineage)
    registry.promote("flights", 1)
    return Published(str(folder), table, model, registry, version)


def _table() -> pa.Table:
    rng = np.random.default_rng(5)
    distance = rng.uniform(50, 3000, ROWS)
    return pa.table(
        {
            "id": np.arange(ROWS),
            "month": np.sort(rng.choice([1, 2, 10], ROWS)).astype(np.int32),
            "distance": pa.array(distance, mask=rng.random(ROWS) < 0.1),
            "minute": rng.integers(0, 1440, ROWS),
            "carrier": pa.array(rng.choice(["AA", "UA", "DL", "ZZ"], ROWS), mask=rng.random(ROWS) < 0.05),
            "delay": pa.array(rng.normal(10, 20, ROWS), mask=rng.random(ROWS) < 0.1),
        }
    )
