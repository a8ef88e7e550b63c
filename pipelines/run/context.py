"""What the user's own stages are given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pipelines.errors import UsageError

if TYPE_CHECKING:
    from distributed import Client

    from pipelines.data.dataset import Dataset
    from pipelines.data.shards import ShardPlan
    from pipelines.data.source import Source
    from pipelines.data.split import SplitPlan
    from pipelines.evaluation import Evaluation
    from pipelines.features import Fitted
    from pipelines.model import Model


@dataclass(frozen=True)
class StageContext:
    """The argument of a custom stage's function, which runs in the driver.

    Attributes
    ----------
    client : distributed.Client
        The run's cluster.
    dataset, source, shards
        The data as they were planned; pass `source` and shards to `pipelines.data.reader.read_batches` in tasks.
    params : mapping
        What the spec says under the stage's `params`.
    results : mapping of str
        What the custom stages that this one needs have returned, by their names.
    """

    client: Client
    dataset: Dataset
    source: Source
    shards: ShardPlan
    params: Mapping[str, Any]
    results: Mapping[str, Any]
    built_in: Mapping[str, Callable[[], Any]] = field(repr=False)
    """How to get what the needed built-in stages made; the properties below ask it."""

    @property
    def split(self) -> SplitPlan:
        """The fitted split (needs ``split`` or a later stage)."""
        split: SplitPlan = self._get("split")
        return split

    @property
    def fitted(self) -> Fitted:
        """The fitted features, target and checks (needs ``features`` or a later stage)."""
        fitted: Fitted = self._get("features")
        return fitted

    @property
    def model(self) -> Model:
        """The model: as trained (needs ``train``), or calibrated and with its threshold (needs ``evaluate``)."""
        model: Model = self._get("model")
        return model

    @property
    def evaluation(self) -> Evaluation:
        """The evaluation (needs ``evaluate``)."""
        evaluation: Evaluation = self._get("evaluate")
        return evaluation

    def _get(self, name: str) -> Any:
        if name not in self.built_in:
            raise UsageError(f"this stage does not need {name!r}", remedy=f"Add {name} to its `needs` in the spec.")
        return self.built_in[name]()
