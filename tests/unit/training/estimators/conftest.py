"""A small dataset of numbers, a category and nulls, planned, split and fitted as a run does it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
from pipelines.training.data import TrainingData

ROWS, FILES, ROW_GROUP = 6_000, 3, 500
COLUMNS = ["key", "x", "z", "carrier", "weight", "late", "band", "minutes"]


def write(folder: Path, *, rows: int = ROWS, files: int = FILES, row_group: int = ROW_GROUP) -> str:
    """Write the dataset: three labels that hang on x, z and the carrier."""
    random = np.random.default_rng(11)
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        n = rows // files
        x, z = random.normal(size=n), random.normal(size=n).astype(np.float32)
        carrier = random.choice(["AA", "B6", "DL", "UA"], n)
        signal = x + 1.5 * (carrier == "B6") + x * z + random.logistic(scale=0.3, size=n)
        table = pa.table(
            {
                "key": np.arange(n) + number * n,
                "x": pa.array(x, mask=random.random(n) < 0.05),
                "z": z,
                "carrier": pa.array(carrier, mask=random.random(n) < 0.05),
                "weight": random.uniform(0.5, 2.0, n),
                "late": pa.array(signal > 0.7, mask=random.random(n) < 0.02),
                "band": np.array(["low", "mid", "top"])[np.digitize(signal, [0.0, 1.5])],
                "minutes": signal * 10,
            }
        )
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=row_group)
    return str(folder)


@dataclass(frozen=True)
class Workshop:
    """Makes `TrainingData` of one dataset."""

    path: str

    def data(
        self,
        label: str = "late",
        *,
        kind: str = "auto",
        shards: int = 16,
        validation: float = 0.2,
        categorical: str = "native",
        filter: str | None = None,
        sparse: bool | None = None,
        weight: str | None = None,
    ) -> TrainingData:
        """Plan, split and fit."""
        config = DataConfig(source=self.path, filter=filter)
        dataset = open_dataset(self.path)
        source = make_source(dataset, config)
        planned = plan_shards(dataset, COLUMNS, shards=shards)
        split = fit_split(
            SplitConfig(kind="hash", by="key", validation=validation, test=0.1, seed=5), source, planned.shards
        )
        fitted = fit_features(
            [FeatureConfig(columns=["x", "z"]), FeatureConfig(columns=["carrier"])],
            LabelConfig(column=label, kind=kind, on_null="drop"),  # type: ignore[arg-type]  # a literal, as text
            source,
            planned.shards,
            split,
            categorical=categorical,  # type: ignore[arg-type]  # a literal, as text
            sparse=sparse,
        )
        return TrainingData(source, planned, split, fitted.plan, fitted.target, sample_weight=weight, rows=fitted.rows)


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    """The dataset of 6,000 rows."""
    return Workshop(write(tmp_path_factory.mktemp("boosting") / "data"))


@pytest.fixture(scope="session")
def write_data() -> Callable[..., str]:
    """`write`."""
    return write


@pytest.fixture(scope="session")
def data(workshop: Workshop) -> TrainingData:
    """Its binary label."""
    return workshop.data()


def held_out(data: TrainingData, part: str = "test") -> tuple[Any, Any]:
    """X and y of a split, as the trainer sees them."""
    from pipelines.training.data import load_part

    rows = load_part(data, data.shards.shards, part)
    return rows.X, rows.y


@pytest.fixture(scope="session")
def held_out_rows() -> Callable[..., tuple[Any, Any]]:
    """`held_out`."""
    return held_out
