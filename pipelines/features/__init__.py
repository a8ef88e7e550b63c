"""Features and target: fitted on the cluster in one pass, applied anywhere to Arrow batches, stored with the model."""

from pipelines.features.config import Constant, DatePart, FeatureConfig
from pipelines.features.fit import Fitted, check_features, fit_features
from pipelines.features.plan import FeaturePlan
from pipelines.features.resolve import Categorical
from pipelines.features.steps import Domain, FeatureType
from pipelines.features.target import LabelConfig, Target

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
