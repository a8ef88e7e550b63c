"""A tiny real dataset, with real models trained-by-hand on it: plans are fitted, coefficients chosen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.data.config import DataConfig
from pipelines.data.dataset import Dataset, open_dataset
from pipelines.data.shards import plan_shards
from pipelines.data.source import Source, make_source
from pipelines.data.split import SplitConfig, SplitPlan
from pipelines.data.splitting import fit_split
from pipelines.evaluation import Evaluation, Measures, PartEvaluation
from pipelines.features import FeatureConfig, Fitted, LabelConfig, fit_features
from pipelines.model import Golden, Model, golden_rows
from pipelines.model.linear import LinearPredictor
from pipelines.registry import Lineage, lineage_of

ROWS = 600


@dataclass(frozen=True)
class Trained:
    """All that `Registry.publish` takes."""

    model: Model
    golden: Golden
    lineage: Lineage
    evaluation: Evaluation

    def arguments(self) -> dict[str, Any]:
        return {"golden": self.golden, "lineage": self.lineage, "evaluation": self.evaluation}


@dataclass(frozen=True)
class Data:
    """A dataset with its source, split and fitted features."""

    dataset: Dataset
    source: Source
    split: SplitPlan
    fitted: Fitted


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    folder: Path = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(3)
    table = pa.table(
        {
            "id": np.arange(ROWS),
            "x": rng.standard_normal(ROWS),
            "carrier": pa.array(rng.choice(["AA", "UA", "DL"], ROWS)),
            "late": rng.random(ROWS) < 0.4,
        }
    )
    for number in range(3):
        pq.write_table(table.slice(number * 200, 200), folder / f"part-{number}.parquet", row_group_size=80)
    dataset = open_dataset(str(folder))
    source = make_source(dataset, DataConfig(source=str(folder)))
    shards = plan_shards(dataset, dataset.schema.names, shards=4).shards
    split = fit_split(SplitConfig(by="id", validation=0.1, test=0.2), source, shards)
    features = [
        FeatureConfig.model_validate({"columns": ["x"], "scale": "standard"}),
        FeatureConfig.model_validate({"columns": ["carrier"], "encode": "one_hot"}),
    ]
    fitted = fit_features(features, LabelConfig(column="late"), source, shards, split)
    return Data(dataset, source, split, fitted)


@pytest.fixture(scope="session")
def trained(data: Data) -> Callable[..., Trained]:
    """Make something to publish: ``trained(weight=0.5, auc=0.7, run_id="r1", **changes of the lineage)``."""

    def make(weight: float = 0.5, *, auc: float = 0.7, run_id: str = "", **changes: Any) -> Trained:
        names = data.fitted.plan.names
        coef = np.full((1, len(names)), weight)
        predictor = LinearPredictor(coef, np.array([0.1]), "logistic")
        model = Model(data.fitted.plan, data.fitted.target, predictor, written_by=(("mutirao", "0"),))
        spec = {"name": "flights", "train": {"estimator": "logistic_regression"}}
        lineage = lineage_of(data.dataset, data.source, data.split, spec, rows={"train": 400}, run_id=run_id)
        return Trained(model, golden_rows(model), replace(lineage, **changes), evaluation_of(model, auc))

    return make


def evaluation_of(model: Model, auc: float, rows: str = "same rows") -> Evaluation:
    part = PartEvaluation(Measures(120, 120.0, {"auc": auc, "log_loss": 1 - auc}), rows_digest=rows)
    return Evaluation("binary", model.digest, {"test": part}, classes=(False, True))
