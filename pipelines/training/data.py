"""From shards to what a rank computes on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipelines.training.gang.context import Array

if TYPE_CHECKING:
    from pipelines.data.shards import Shard, ShardPlan
    from pipelines.data.source import Source
    from pipelines.data.split import SplitPlan
    from pipelines.features.plan import FeaturePlan
    from pipelines.features.target import Target


@dataclass(frozen=True)
class TrainingData:
    """Everything that says what is learned from, small enough to be sent to every rank.

    `rows` are the labelled rows of each part (``{"train": …, "validation": …}``), known since the features were fitted.
    """

    source: Source
    shards: ShardPlan
    split: SplitPlan
    features: FeaturePlan
    target: Target
    sample_weight: str | None = None
    rows: dict[str, int] | None = None

    def to_plain(self) -> dict[str, Any]:
        """Turn it into JSON values, for `run_gang`'s arguments."""
        raise NotImplementedError

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> TrainingData:
        """Rebuild it in a rank."""
        raise NotImplementedError


@dataclass(frozen=True)
class Rows:
    """Some rows as a trainer wants them.

    X : ndarray of float32, column-major, shape (rows, features), or ``scipy.sparse.csr_matrix`` of float32
    y : ndarray of float32, shape (rows,): class codes, or values
    weight : ndarray of float32, shape (rows,), or None: sample weights (without class weights)
    """

    X: Any
    y: Array
    weight: Array | None


def read_rows(
    data: TrainingData, shards: Sequence[Shard], part: str | None, *, batch_rows: int = 65_536
) -> Iterator[Rows]:
    """Stream a split's labelled rows of `shards`, transformed, batch by batch, in the order of the shards."""
    raise NotImplementedError


def load_part(data: TrainingData, shards: Sequence[Shard], part: str | None) -> Rows:
    """Read a split's labelled rows of `shards` into one matrix, without a second copy of it."""
    raise NotImplementedError
