"""Train, evaluate, version and use models on sharded Parquet datasets over Dask.

Everything a spec says can be said with objects, and everything the command line does with functions::

    import pipelines

    pipeline = pipelines.Pipeline("data_samples/flights_logistic.yaml")
    print(pipeline.plan())
    record = pipeline.run()
    model = pipelines.load_model("models:/late-flights@champion")
    model.predict(table)

Names are imported when they are first used: importing this package is cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cluster import ClusterSpec
    from pipelines.data.config import DataConfig
    from pipelines.data.dataset import Dataset, open_dataset
    from pipelines.data.split import SplitConfig
    from pipelines.evaluation import EvaluateConfig
    from pipelines.features import FeatureConfig, LabelConfig
    from pipelines.model import Model
    from pipelines.registry import PublishConfig, Registry
    from pipelines.run import (
        Pipeline,
        RunHandle,
        RunRecord,
        StageContext,
        attach,
        list_runs,
        load_model,
        predict_dataset,
    )
    from pipelines.spec import PipelineSpec, StageConfig, load_spec
    from pipelines.training import TrainConfig

_HOMES = {
    "ClusterSpec": "cluster",
    "DataConfig": "pipelines.data.config",
    "Dataset": "pipelines.data.dataset",
    "EvaluateConfig": "pipelines.evaluation",
    "FeatureConfig": "pipelines.features",
    "LabelConfig": "pipelines.features",
    "Model": "pipelines.model",
    "Pipeline": "pipelines.run",
    "PipelineSpec": "pipelines.spec",
    "PublishConfig": "pipelines.registry",
    "Registry": "pipelines.registry",
    "RunHandle": "pipelines.run",
    "RunRecord": "pipelines.run",
    "SplitConfig": "pipelines.data.split",
    "StageConfig": "pipelines.spec",
    "StageContext": "pipelines.run",
    "TrainConfig": "pipelines.training",
    "attach": "pipelines.run",
    "list_runs": "pipelines.run",
    "load_model": "pipelines.run",
    "load_spec": "pipelines.spec",
    "open_dataset": "pipelines.data.dataset",
    "predict_dataset": "pipelines.run",
}

__all__ = [
    "ClusterSpec",
    "DataConfig",
    "Dataset",
    "EvaluateConfig",
    "FeatureConfig",
    "LabelConfig",
    "Model",
    "Pipeline",
    "PipelineSpec",
    "PublishConfig",
    "Registry",
    "RunHandle",
    "RunRecord",
    "SplitConfig",
    "StageConfig",
    "StageContext",
    "TrainConfig",
    "attach",
    "list_runs",
    "load_model",
    "load_spec",
    "open_dataset",
    "predict_dataset",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
