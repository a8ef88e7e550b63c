"""How is a FeaturePlan fitted? With mergeable statistics, in one pass over the shards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pipelines.features.config import FeatureConfig
from pipelines.features.plan import FeaturePlan
from pipelines.features.target import LabelConfig, Target

if TYPE_CHECKING:
    from distributed import Client

    from pipelines.data.shards import Shard
    from pipelines.data.source import Source
    from pipelines.data.split import SplitPlan

Categorical = Literal["one_hot", "native"]
"""What an estimator wants of categories and missing values: see `FeatureConfig`."""


@dataclass(frozen=True)
class Fitted:
    """What one pass over the data found.

    Parameters
    ----------
    plan : FeaturePlan
    target : Target
    checks : mapping of split part to JSON-able per-column checks
        Parts are ``train``, ``validation`` and ``test``; all rows, those without a label too.
    rows : mapping of split part to int
        Labelled rows.
    dropped : mapping of reason to int
        ``label_null``: rows of all parts left out because their label is missing.
    """

    plan: FeaturePlan
    target: Target
    checks: Mapping[str, Any]
    rows: Mapping[str, int]
    dropped: Mapping[str, int]


def fit_features(
    features: Sequence[FeatureConfig], label: LabelConfig, source: Source, shards: Sequence[Shard], split: SplitPlan,
    *, client: Client | None = None, categorical: Categorical = "one_hot", sparse: bool | None = None,
    on_done: Callable[..., None] | None = None,
) -> Fitted:  # fmt: skip
    """Fit features and target: statistics of the training split, checks of all parts, one task per shard.

    Results are merged in shard order, so they are the same bits for any number of workers.

    Parameters
    ----------
    features, label
        As in the spec.
    source, shards, split
        What is read, and which rows are for training.
    client : distributed.Client, optional
        None: everything in this process.
    categorical : {"one_hot", "native"}
        What the estimator wants where a feature does not say.
    sparse : bool, optional
        Force a CSR or a dense matrix; None: CSR if one-hot columns make it sparse enough (never for ``native``).
    on_done : callable, optional
        Called as `map_shards` does, for progress.

    Raises
    ------
    SpecError
        Features that do not fit the columns' types: all faults at once.
    DataError
        Labels or features that can't be used: see `LabelConfig` and `FeatureConfig`.
    """
    raise NotImplementedError
