"""The spec of a pipeline: the same keys in YAML and as Python objects."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import Field, StringConstraints, field_validator

from cluster import ClusterSpec
from pipelines.config import Config
from pipelines.data.config import DataConfig
from pipelines.data.split import SplitConfig
from pipelines.evaluation.config import EvaluateConfig
from pipelines.features.config import FeatureConfig
from pipelines.features.target import LabelConfig
from pipelines.registry.config import PublishConfig
from pipelines.training.config import TrainConfig

BUILT_IN_STAGES = ("split", "features", "train", "evaluate", "publish")
"""The stages of every pipeline, in their order; custom stages may need any of them but ``publish``."""

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
"""A name that is safe in object keys and on command lines."""


class StageConfig(Config):
    """An extra step: the user's own function, called in the driver after the stages that it needs.

    The function takes one `pipelines.run.StageContext` and returns a JSON-able value, or None. What it raises fails the
    run before anything is published.
    """

    name: Name
    call: str
    needs: tuple[str, ...] = ("evaluate",)
    params: dict[str, Any] = Field(default_factory=dict)
    cache: bool = False
    """Whether its result is taken from an earlier run with the same code, params and inputs, instead of calling it."""

    @field_validator("call")
    @classmethod
    def _target(cls, value: str) -> str:
        if not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", value):
            raise ValueError(f"not a function's address: {value!r}; write it like 'package.module:function'")
        return value

    @field_validator("name")
    @classmethod
    def _not_built_in(cls, value: str) -> str:
        if value in BUILT_IN_STAGES:
            raise ValueError(f"{value!r} is a stage of every pipeline; give yours another name")
        return value


class PipelineSpec(Config):
    """One pipeline: what data, which label, how it is split, trained, evaluated and published, and where it runs.

    Paths are relative to the working directory, as in any command.
    """

    name: Name
    data: DataConfig
    label: LabelConfig
    split: SplitConfig = SplitConfig()
    features: tuple[FeatureConfig, ...] = Field(min_length=1)
    train: TrainConfig
    evaluate: EvaluateConfig = EvaluateConfig()
    publish: PublishConfig | None = None
    stages: tuple[StageConfig, ...] = ()
    code: tuple[str, ...] = ()
    """The user's own modules and packages, shipped to the workers: paths of files or folders."""
    cluster: ClusterSpec = ClusterSpec()
    """Where it runs: a mapping, or in YAML the path of a file that holds one."""
    runs: str | None = None
    """Where runs and their cache live (URL or path); see `pipelines.spec.settings`."""
    registry: str | None = None
    """Where model versions live (URL or path)."""
