"""Features and target: fitted on the cluster in one pass, applied anywhere to Arrow batches, stored with the model."""

from pipelines.features.config import Constant, DatePart, FeatureConfig
from pipelines.features.fit import Categorical, Fitted, fit_features
from pipelines.features.plan import Domain, FeaturePlan, FeatureType
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
    "fit_features",
]
