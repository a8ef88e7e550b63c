"""What is evaluated: the values that go to every worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipelines.evaluation.result import Part
from pipelines.evaluation.terms import Question

if TYPE_CHECKING:
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
    """The rows that models are evaluated on, and what is asked of them.

    `target` must have the kind and the classes of the model's own; `sample_weight` is a column of finite, non-negative
    weights (rows of weight zero are left out).
    """

    source: Source
    shards: ShardPlan
    split: SplitPlan
    target: Target
    sample_weight: str | None = None


@dataclass(frozen=True)
class ScoringJob:
    """What a worker needs to score a shard; small."""

    model: ModelRef
    source: Source
    split: SplitPlan
    target: Target
    sample_weight: str | None
    parts: tuple[Part, ...]
    question: Question
    segments: tuple[str, ...] = ()
    spill_url: str | None = None
    """A scratch folder for ordered scores; None where no metric needs them."""

    @property
    def block_rows(self) -> int:
        """Rows held per part before they are summed and spilled: some 150 bytes each meanwhile, and their scores."""
        return max(1 << 12, min(1 << 18, (1 << 21) // max(self.question.classes, 1)))
