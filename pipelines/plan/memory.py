"""How much memory a worker will need, predicted from counts before anything runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from pipelines.errors import Fault
from pipelines.plan.value import PlannedMemory

if TYPE_CHECKING:
    from pipelines.data.source import Source
    from pipelines.features.plan import FeaturePlan
    from pipelines.spec import PipelineSpec
    from pipelines.training.estimators.registry import Estimator

WORKER_BYTES = 250 << 20
"""A Dask worker with all the platform's libraries loaded and nothing to do (measured: 62 MiB without, 247 with)."""

RANK_BYTES = {"logistic_regression": 135 << 20, "linear_regression": 135 << 20, "xgboost": 170 << 20}
"""A rank's process beside its rows and batches (measured: 116–135 MiB; 131 and XGBoost's own state, together 265 with
batches, at 2.5 M rows × 28)."""

FOREIGN_RANK_BYTES = 250 << 20
"""A rank that loads scikit-learn or dask-ml."""

READ_BYTES = 96 << 20
"""Batches in flight (64 MiB at most) and one transformed batch."""

GUESSED_CATEGORIES = 100
"""Width of a one-hot encoded column whose dictionary is not known yet, unless the spec caps it lower."""


@dataclass(frozen=True)
class Width:
    """How many features a row will have, and how that is known."""

    features: int
    basis: str


def predict_memory(
    spec: PipelineSpec, source: Source, estimator: Estimator, *, rows: int, ranks: int, plan: FeaturePlan | None
) -> tuple[PlannedMemory, ...]:
    """Predict the fullest moment of the stages that use most memory, per worker.

    Parameters
    ----------
    rows : int
        Rows of the dataset, before label and filter.
    plan : FeaturePlan or None
        The fitted feature plan, when it is cached: the width is exact then.
    """
    limit = spec.cluster.worker.memory
    width = _width(spec, source, estimator, plan)
    share = 1.0 - spec.split.test - (0.0 if estimator.categorical == "native" else spec.split.validation)
    held = int(rows * share / ranks) * estimator.memory_per_row(width.features)
    rank = RANK_BYTES.get(spec.train.estimator, FOREIGN_RANK_BYTES)
    base = {"worker": WORKER_BYTES, "rank": rank, "reading": READ_BYTES}
    total = sum(base.values()) + held
    train = PlannedMemory(
        stage="train",
        predicted_bytes=total,
        limit_bytes=limit,
        parts_bytes=base | {"training data": held},
        basis=width.basis,
        data="memory" if total <= limit else _when_short(spec.train.estimator),
    )
    reading = {"worker": WORKER_BYTES, "reading": READ_BYTES}
    passes = (PlannedMemory(name, sum(reading.values()), limit, reading, "", "memory") for name in _PASSES)
    return (*passes, train)


_PASSES = ("features", "evaluate")


def memory_faults(spec: PipelineSpec) -> list[Fault]:
    """Refuse workers that are too small for anything: what a process needs before it has read a row."""
    rank = RANK_BYTES.get(spec.train.estimator, FOREIGN_RANK_BYTES)
    least, given = WORKER_BYTES + rank + READ_BYTES, spec.cluster.worker.memory
    if given >= least:
        return []
    message = f"a worker and its rank need {least >> 20} MiB before they hold a row, and get {given >> 20} MiB"
    return [Fault("cluster.worker.memory", message, "Give each worker more")]


def _when_short(estimator: str) -> str:
    """What happens when a rank's share of the data does not fit into its worker's memory."""
    return {"logistic_regression": "disk", "linear_regression": "disk", "xgboost": "refuse"}.get(estimator, "sample")


def _width(spec: PipelineSpec, source: Source, estimator: Estimator, plan: FeaturePlan | None) -> Width:
    if plan is not None:
        return Width(len(plan.names), "the fitted feature plan")
    total, guessed = 0, False
    for feature in spec.features:
        encode = feature.encode or "auto"
        for column in feature.columns:
            wide = _categorical(source.arrow_schema.field(column).type) or feature.encode is not None
            if feature.bins is not None:
                total += feature.bins if encode == "one_hot" or estimator.categorical == "one_hot" else 1
            elif encode == "hash":
                total += feature.buckets
            elif wide and (encode == "one_hot" or (encode == "auto" and estimator.categorical == "one_hot")):
                total, guessed = total + min(feature.max_categories, GUESSED_CATEGORIES), True
            else:
                total += len(feature.dates or ()) or 1
    basis = "the spec; one-hot widths are guessed until the features are fitted" if guessed else "the spec"
    return Width(total, basis)


def _categorical(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_dictionary(kind)
