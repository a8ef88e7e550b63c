"""What a spec says under `train:`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from pipelines.config import Config, _seconds
from pipelines.training.tuning import TuneConfig


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


class SynchronousConfig(Config):
    """Every step takes a mini-batch (or the whole data) from all lanes, and waits for all ranks.

    Parameters
    ----------
    accumulate : int
        Mini-batches that are added up for one step of the optimiser (mini-batch solvers).
    reduce_every : int
        Steps that each lane takes for itself before the lanes' weights are averaged (local SGD; mini-batch solvers).
        With ``solver: sgd`` on sparse features such a step costs what its rows hold, however many weights there are;
        penalties are taken once, before the averaging, for all those steps: with large ones keep it small.
    compression : {"top_k", "float16"}, optional
        What is sent of a lane's gradient (with `reduce_every`: of its weights' change): the largest components only, or
        all in half precision. What is left out is added to the next one (error feedback).
    top_k : float, optional
        The share of components that ``top_k`` sends; default 0.01.
    """

    name: Literal["synchronous"] = "synchronous"
    accumulate: int = Field(default=1, ge=1, le=10_000)
    reduce_every: int = Field(default=1, ge=1, le=10_000)
    compression: Literal["top_k", "float16"] | None = None
    top_k: float | None = Field(default=None, gt=0, le=1)

    @model_validator(mode="after")
    def _refuse_impossible(self) -> Self:
        if self.top_k is not None and self.compression != "top_k":
            raise ValueError("top_k is the share that compression: top_k sends; set that too, or leave top_k out")
        if self.accumulate > 1 and self.reduce_every > 1:
            raise ValueError("accumulate and reduce_every contradict each other: give one of them")
        return self

    @property
    def batches_only(self) -> tuple[str, ...]:
        """The settings that were made and that only mini-batch solvers can follow."""
        changed = {"accumulate": self.accumulate > 1, "reduce_every": self.reduce_every > 1}
        return tuple(name for name, on in (changed | {"compression": self.compression is not None}).items() if on)


class AsynchronousConfig(Config):
    """Ranks take micro-batches when they are ready, and nobody waits for a slow one (mini-batch solvers).

    Parameters
    ----------
    staleness : int
        The most updates that may be committed between a rank's reading of the weights and its own update. 0: a clock
        commits once every lane's gradient is there, which gives what ``synchronous`` gives, to the bit.
    """

    name: Literal["asynchronous"] = "asynchronous"
    staleness: int = Field(default=4, ge=0, le=10_000)


class ParameterServerConfig(Config):
    """Weights are spread by key over servers; ranks pull and push the keys of their mini-batch (sparse features).

    Parameters
    ----------
    servers : int, optional
        Default: as many as ranks, at most 8. With copies at most one for each rank.
    replicate : bool
        Whether each server's weights are kept by a second one, too, so that losing one loses nothing. One server has
        no copy.
    staleness : int, optional
        As with ``asynchronous``; None does not bound it.
    """

    name: Literal["parameter_server"] = "parameter_server"
    servers: int | None = Field(default=None, ge=1, le=256)
    replicate: bool = True
    staleness: int | None = Field(default=None, ge=0, le=10_000)

    @model_validator(mode="after")
    def _refuse_impossible(self) -> Self:
        if self.servers == 1 and self.replicate and "replicate" in self.model_fields_set:
            raise ValueError("a copy needs a second server: set servers to 2 at least, or replicate: false")
        return self


class ModelParallelConfig(Config):
    """Each rank has blocks of the columns, and their weights: for more columns than one worker can hold.

    The bits of the model hang on the number of blocks, not on the ranks; a checkpoint is gone on from with the same
    number only.

    Parameters
    ----------
    blocks : int, optional
        At most as many as there are features; there are no more ranks than blocks. Default: one for each thread of the
        ranks at the start.
    """

    name: Literal["model_parallel"] = "model_parallel"
    blocks: int | None = Field(default=None, ge=1, le=4096)


STRATEGIES = ("synchronous", "asynchronous", "parameter_server", "model_parallel")
Strategy = Annotated[
    SynchronousConfig | AsynchronousConfig | ParameterServerConfig | ModelParallelConfig, Field(discriminator="name")
]


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
    strategy: Strategy = SynchronousConfig()
    """One of `STRATEGIES`, alone or with its settings: ``{name: asynchronous, staleness: 4}``."""
    min_workers: int = Field(default=1, ge=1)
    """With how many workers, at least, a training goes on that has lost some."""
    max_workers: int | None = Field(default=None, ge=1)
    """To how many a training grows while it runs; default: the cluster's own limit."""
    stragglers: Literal["keep", "deal"] = "keep"
    """What happens to the shards of a rank that is much slower than the others: it keeps them, or they are dealt out
    anew, in proportion to speed (synchronous training of linear models; the model stays the same to the bit)."""
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
    tune: TuneConfig | None = None
    """Search for parameters; see `pipelines.training.tuning.TuneConfig`."""

    @field_validator("strategy", mode="before")
    @classmethod
    def _by_name(cls, value: object) -> object:
        """Take a bare name for the strategy with its default settings."""
        if isinstance(value, dict) and "name" not in value:
            raise ValueError(f"name one of {', '.join(STRATEGIES)}: {{name: …, its settings}}")
        name = value.get("name") if isinstance(value, dict) else value
        if isinstance(name, str) and name not in STRATEGIES:
            near = get_close_matches(name, STRATEGIES, 1)
            raise ValueError(f"no strategy {name!r}" + (f"; did you mean {near[0]}?" if near else f"; {STRATEGIES}"))
        return {"name": value} if isinstance(value, str) else value

    def for_trial(self, found: Mapping[str, Any]) -> TrainConfig:
        """Return the plain training with the parameters that a search has `found`."""
        return self.model_copy(update={"params": {**self.params, **found}, "tune": None})

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.max_workers is not None and self.max_workers < self.min_workers:
            raise ValueError(f"min_workers ({self.min_workers}) is above max_workers ({self.max_workers})")
        return self


def refuse_other_strategies(config: TrainConfig) -> None:
    """Raise ``ValueError`` for an estimator that only trains synchronously, and knows no settings of that."""
    if config.strategy != SynchronousConfig():
        words = config.strategy.model_dump(exclude_defaults=True) or config.strategy.name
        raise ValueError(
            f"strategy: {words} is for linear models; {config.estimator} trains with strategy: synchronous"
        )


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
