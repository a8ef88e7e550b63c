"""What a spec says under `train:`."""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import Field, field_validator

from pipelines.config import Config, _seconds


class CheckpointConfig(Config):
    """How often the state of a training is saved, and how many of them are kept."""

    every: str = "60 s"
    keep: int = Field(default=3, ge=1)

    @field_validator("every", mode="before")
    @classmethod
    def _readable(cls, value: object) -> str:
        text = f"{value} s" if isinstance(value, int | float) else str(value)
        parse_every(text)
        return text

    @property
    def every_s(self) -> float | None:
        """Seconds between checkpoints, None when they are counted in steps."""
        return parse_every(self.every)[0]

    @property
    def every_steps(self) -> int | None:
        """Steps (or boosting rounds) between checkpoints, None when they are timed."""
        return parse_every(self.every)[1]


class TrainConfig(Config):
    """The part of a spec that says what is trained and how.

    `params` are the estimator's own words; they are checked by the estimator (`Estimator.check`), which knows them.
    """

    estimator: str
    """``logistic_regression``, ``linear_regression``, ``linear_svm``, ``xgboost``, or a dask-ml or scikit-learn class's
    import path."""
    params: dict[str, Any] = Field(default_factory=dict)
    """See `pipelines.training.estimators.linear_params` and ``boosting_params.XGBoostParams`` beside it, with
    XGBoost's own names; for a class by import path the arguments that it is made with."""
    strategy: Literal["synchronous"] = "synchronous"
    checkpoint: CheckpointConfig = CheckpointConfig()
    sample_weight: str | None = None
    """A column of non-negative weights."""
    class_weight: Literal["balanced"] | dict[str, float] | None = None
    """Weights by class label (as text), or ``balanced``: rows / (classes · rows of the class)."""
    lanes: int | None = Field(default=None, ge=1, le=4096)
    """Number of ordered lists of shards that ranks share; default: enough for the most workers."""
    random_state: int = Field(default=0, ge=0)
    max_sample_rows: int = Field(default=1_000_000, ge=1)
    """Foreign estimators that can't learn in pieces fit on a seeded sample of at most so many rows."""


def parse_every(text: str) -> tuple[float | None, int | None]:
    """Read ``"60 s"`` as (60.0, None) and ``"500 steps"`` or ``"20 rounds"`` as (None, n)."""
    counted = re.fullmatch(r"\s*(\d+)\s*(?:steps?|rounds?)\s*", text)
    if counted:
        if int(counted[1]) == 0:
            raise ValueError("must be at least one step")
        return None, int(counted[1])
    seconds = _seconds(text)
    if not isinstance(seconds, float) or seconds < 0:
        raise ValueError(f"not an interval: {text!r}; write it like '60 s' or '500 steps'")
    return seconds, None
