"""The pipeline's spec: one document, all its faults at once."""

from pipelines.spec.loading import load_spec
from pipelines.spec.pipeline import BUILT_IN_STAGES, PipelineSpec, StageConfig
from pipelines.spec.settings import Places, find_places

__all__ = ["BUILT_IN_STAGES", "PipelineSpec", "Places", "StageConfig", "find_places", "load_spec"]
