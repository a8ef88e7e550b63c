"""A small dataset with what evaluation meets: null labels, weights, segments, several files and row groups."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.data.dataset import open_dataset
from pipelines.data.reader import read_batches
from pipelines.data.shards import plan_shards
from pipelines.data.source import make_source
from pipelines.data.split import SplitConfig
from pipelines.data.splitting import fit_split
from pipelines.evaluation import EvaluationData, ModelRef
from pipelines.features import FeatureConfig, LabelConfig, fit_features
from pipelines.model import Model, save_model
from pipelines.model.linear import LinearPredictor
from pipelines.storage import open_store

ROWS = 6000
FEATURES = ("x1", "x2")


def table(seed: int = 0, rows: int = ROWS) -> pa.Table:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((2, rows))
    odds = 1.5 * x[0] - x[1] - 0.5
    carrier = np.array(["AA", "UA", "DL", None], object)[rng.choice(4, rows, p=[0.6, 0.3, 0.08, 0.02])]
    late = rng.random(rows) < 1 / (1 + np.exp(-odds))
    noisy = np.stack([odds, -odds, x[1]]).T + rng.gumbel(size=(rows, 3))
    gone = rng.random(rows) < 0.05
    return pa.table(
        {
            "x1": x[0],
            "x2": x[1],
            "gappy": pa.array(x[1], mask=rng.random(rows) < 0.01),
            "carrier": pa.array(carrier, pa.string()),
            "plane": rng.integers(0, 400, rows),
            "flight": np.arange(rows),
            "day": pa.array(rng.integers(0, 365, rows), pa.int32()),
            "weight": rng.choice([0.0, 0.5, 1.25, 3.0], rows),
            "late": pa.array(late, mask=gone),
            "delay": pa.array(100.0 * odds + 30 * rng.standard_normal(rows), mask=gone),
            "kind": pa.array(np.array(["early", "late", "lost"])[noisy.argmax(axis=1)], mask=gone),
        }
    )


@dataclass(frozen=True)
class Case:
    """A saved model and the data that it is evaluated on."""

    ref: ModelRef
    model: Model
    data: EvaluationData

    def rows(self, part: str) -> dict[str, np.ndarray]:
        """The labelled rows of a part, read and scored all at once, for scikit-learn."""
        source, shards = self.data.source, self.data.shards.shards
        reads = read_batches(source, shards, source.arrow_schema.names, split=self.data.split, part=part)
        whole = pa.Table.from_batches([read.batch for read in reads])
        whole = whole.filter(whole[self.data.target.column].is_valid())
        found = {name: whole[name].to_numpy(zero_copy_only=False) for name in whole.column_names}
        return found | {
            "scores": self.model.scores(whole),
            "y": self.data.target.encode(whole[self.data.target.column]),
        }


@pytest.fixture(scope="session")
def dataset(tmp_path_factory):
    folder: Path = tmp_path_factory.mktemp("dataset")
    whole = table()
    for i, start in enumerate(range(0, ROWS, 2000)):
        pq.write_table(whole.slice(start, 2000), folder / f"part-{i}.parquet", row_group_size=700)
    return open_dataset(str(folder))


@pytest.fixture(scope="session")
def make_case(dataset, tmp_path_factory):
    """Make a case: ``make_case(label, coef, …)``."""
    source = make_source(dataset)
    store = open_store(str(tmp_path_factory.mktemp("models")))

    split = fit_split(SplitConfig(kind="grouped", by="day", validation=0.2, test=0.4), source, ())

    @cache
    def fit(label, features):
        shards = plan_shards(dataset, dataset.schema.names, shards=1).shards
        config = FeatureConfig(columns=features, scale="none", impute="none")
        return fit_features([config], LabelConfig(column=label, on_null="drop"), source, shards, split)

    def make(label="late", *, weight=None, shards=7, wrong=False, features=FEATURES):
        fitted = fit(label, features)
        model = Model(fitted.plan, fitted.target, predictor(fitted.target.kind, -1.0 if wrong else 1.0, len(features)))
        prefix = f"{label}-{wrong}-{'-'.join(features)}"
        ref = ModelRef(store.url, prefix, save_model(model, store, prefix))
        plan = plan_shards(dataset, dataset.schema.names, shards=shards)
        return Case(ref, model, EvaluationData(source, plan, split, fitted.target, weight))

    return make


def predictor(kind, sign, features):
    # Deliberately not calibrated: odds are half of what they should be, and shifted.
    if kind == "binary":
        return LinearPredictor(sign * np.resize([0.75, -0.5], (1, features)), np.array([0.4]), "logistic")
    if kind == "regression":
        return LinearPredictor(np.resize([120.0, -90.0], (1, features)), np.array([-40.0]), "identity")
    return LinearPredictor(np.array([[0.8, -0.5], [-0.8, 0.5], [0.1, 0.7]]), np.array([0.1, 0.0, -0.2]), "softmax")
