"""Evaluate a model on the held-out parts of a dataset, in one pass over it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipelines.evaluation.config import EvaluateConfig
from pipelines.evaluation.result import Evaluation, Part

if TYPE_CHECKING:
    from distributed import Client

    from pipelines.data.shards import ShardPlan
    from pipelines.data.source import Source
    from pipelines.data.split import SplitPlan
    from pipelines.features.target import Target


@dataclass(frozen=True)
class ModelRef:
    """Where `save_model` put a model, and the digest that it gave."""

    url: str
    prefix: str
    digest: str


@dataclass(frozen=True)
class EvaluationData:
    """The rows that models are evaluated on, and what is asked of them."""

    source: Source
    shards: ShardPlan
    split: SplitPlan
    target: Target
    sample_weight: str | None = None


def evaluate(
    model: ModelRef,
    data: EvaluationData,
    config: EvaluateConfig,
    *,
    client: Client | None,
    scratch_url: str,
    parts: Sequence[Part] = ("validation", "test"),
    also: Sequence[str] = (),
    on_done: Callable[[int, int], None] | None = None,
    deadline_s: float = 3600.0,
) -> Evaluation:
    """Score all rows of `parts` on the workers and measure the model.

    Results do not depend on the number of workers. What tasks spill for the exact ranking metrics lies in a folder of
    its own under `scratch_url` and is removed whatever happens; leftovers of killed evaluations there go first.
    No process holds more than 256 MiB for the metrics, whatever the rows.

    Parameters
    ----------
    model : ModelRef
        A saved model; each worker loads it once.
    data : EvaluationData
    config : EvaluateConfig
    client : distributed.Client or None
        None evaluates in this process.
    scratch_url : str
        A folder that all workers and this process reach; it belongs to this evaluation.
    parts : sequence of str
        Parts of the split.
    also : sequence of str
        Metrics to measure beside those of the config (the one that decides about a promotion).
    on_done : callable, optional
        Called with the shards done and their number.
    deadline_s : float
        For a shard.

    Raises
    ------
    DataError
        The model gives no score for some rows (NaN), or weights are negative or missing.
    UsageError
        The model's classes are not those of `data.target`.
    """
    raise NotImplementedError
