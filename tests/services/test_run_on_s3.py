"""Data, runs and registry on an object store: the same spec, the same run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pipelines.data.dataset import open_dataset
from pipelines.registry import Registry
from pipelines.run import Pipeline, list_runs
from pipelines.serving.batch import predict_dataset
from pipelines.storage import open_store

FLIGHTS = Path(__file__).parents[2] / "data_samples" / "flights"


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_run_from_s3_to_s3(s3_url: str, tmp_path: Path) -> None:
    assert os.environ["AWS_ENDPOINT_URL"].startswith("http://127.0.0.1")
    store = open_store(s3_url)
    for month in (1, 2):
        key = f"month={month}/flights.parquet"
        store.create(f"flights/{key}", FLIGHTS / key)
    spec = {
        "name": "on-s3",
        "data": {"source": f"{s3_url}/flights", "derive": {"late": "arr_delay > 15"}},
        "label": {"column": "late", "on_null": "drop"},
        "split": {"kind": "grouped", "by": "day"},
        "features": [["distance", "carrier"]],
        "train": {"estimator": "xgboost", "params": {"num_boost_round": 5}},
        "evaluate": {"metrics": ["auc"]},
        "publish": {"model": "on-s3"},
        "cluster": {"workers": 2, "worker": {"memory": "1 GiB"}},
        "runs": f"{s3_url}/runs",
        "registry": f"{s3_url}/registry",
    }
    record = Pipeline(spec).run(timeout_s=300)
    assert record.version == "on-s3/1"
    assert [each.run_id for each in list_runs(f"{s3_url}/runs")] == [record.run_id]
    registry = Registry.open(f"{s3_url}/registry")
    assert registry.verify("on-s3@champion", deep=True).ok
    scored = predict_dataset(
        "on-s3@champion", f"{s3_url}/flights", f"{s3_url}/scores", registry=registry, key_columns=["flight"]
    )
    written = open_dataset({"versioned": f"{s3_url}/scores"})
    assert written.rows == scored.rows == open_dataset(f"{s3_url}/flights").rows
