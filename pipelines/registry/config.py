"""Spec key ``publish:``: under which name, and whether the version becomes the champion."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from pipelines.config import Config
from pipelines.registry.names import is_name


class PublishConfig(Config):
    """How a run publishes its model.

    Attributes
    ----------
    model : str
        The model's name in the registry.
    promote : {"never", "always", "if_better"}
        Whether `alias` moves to the new version. if_better: when it beats the alias's version on the same test rows, or
        when there is none yet.
    alias : str
    metric : str, optional
        What if_better compares; by default the first metric of ``evaluate:``.
    min_improvement : float
        How much better it must be, in the metric's own units.
    """

    model: str
    promote: Literal["never", "always", "if_better"] = "if_better"
    alias: str = "champion"
    metric: str | None = None
    min_improvement: float = Field(0.0, ge=0)

    @field_validator("model", "alias")
    @classmethod
    def _named(cls, value: str) -> str:
        if not is_name(value):
            raise ValueError(
                f"not a name: {value!r}; use letters, digits, '.', '_' and '-', at most 100, no digits only"
            )
        return value
