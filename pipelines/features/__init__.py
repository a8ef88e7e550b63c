"""Features and target: fitted on the cluster in one pass, applied anywhere to Arrow batches, stored with the model.

The public names are loaded when they are first used: ranks and workers apply plans, and do not fit them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipelines.features.config import Constant, DatePart, FeatureConfig
    from pipelines.features.fit import Fitted, check_features, fit_features
    from pipelines.features.plan import FeaturePlan
    from pipelines.features.resolve import Categorical
    from pipelines.features.steps import Domain, FeatureType
    from pipelines.features.target import LabelConfig, Target

_HOMES = {
    "Categorical": "resolve",
    "Constant": "config",
    "DatePart": "config",
    "Domain": "steps",
    "FeatureConfig": "config",
    "FeaturePlan": "plan",
    "FeatureType": "steps",
    "Fitted": "fit",
    "LabelConfig": "target",
    "Target": "target",
    "check_features": "fit",
    "fit_features": "fit",
}

__all__ = [
    "Categorical",
    "Constant",
    "DatePart",
    "Domain",
    "FeatureConfig",
    "FeaturePlan",
    "FeatureType",
    "Fitted",
    "LabelConfig",
    "Target",
    "check_features",
    "fit_features",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
