"""What a spec says under `train: tune:`: which parameters are searched, how, and when to stop."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, model_validator

from pipelines.config import Config, Seconds

Scalar: TypeAlias = str | int | float | bool | None
Sampler = Literal["tpe", "random", "grid", "cmaes"]
Pruner = Literal["none", "median", "hyperband", "successive_halving"]

_GOLDEN = 0.381966
"""Where between its ends a range is tried out: at no round number."""


def _number(value: object) -> object:
    """Read ``1e-6``, which is a text in YAML 1.1; leave everything else."""
    if isinstance(value, str) and re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)[eE][+-]?\d+", value):
        return float(value)
    return value


def _end(value: object) -> object:
    value = _number(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"not a number: {value!r}")
    return value


End = Annotated[int | float, BeforeValidator(_end)]


class Range(Config):
    """Numbers from `low` to `high`, both included: whole ones when both ends (and `step`) are written so.

    Parameters
    ----------
    low, high : int or float
    log : bool
        Whether the logarithm is sampled evenly.
    step : int or float, optional
        Only every `step`-th from `low`.
    """

    low: End
    high: End
    log: bool = False
    step: End | None = None

    @model_validator(mode="after")
    def _refuse_impossible(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"low ({self.low:g}) is above high ({self.high:g}): swap them")
        if self.log and self.low <= 0:
            raise ValueError(f"a logarithm needs low above 0, found {self.low:g}: raise low, or leave log out")
        if self.step is not None and self.step <= 0:
            raise ValueError(f"step is above 0, found {self.step:g}")
        if self.log and self.step is not None:
            raise ValueError("log and step contradict each other: give one of them")
        return self

    @property
    def whole(self) -> bool:
        """Whether it holds whole numbers only."""
        return all(isinstance(each, int) for each in (self.low, self.high, self.step or 1))

    def values(self) -> tuple[int | float, ...] | None:
        """All numbers of the range; None when they can't be counted."""
        if self.log or (self.step is None and not self.whole):
            return None
        # In decimals, as Optuna counts: from 0.1 by 0.1 the third is 0.3.
        low, high, step = (Decimal(str(each)) for each in (self.low, self.high, self.step or 1))
        kind = int if self.whole else float
        return tuple(kind(low + number * step) for number in range(int((high - low) // step) + 1))

    def examples(self) -> tuple[int | float, ...]:
        """Both ends, and a number between them."""
        values = self.values()
        if values is not None:
            return tuple(dict.fromkeys((values[0], values[len(values) // 2], values[-1])))
        if self.log:
            between = float(self.low) * (self.high / self.low) ** _GOLDEN
        else:
            between = self.low + (self.high - self.low) * _GOLDEN
        inner = round(between) if self.whole else float(between)
        return tuple(dict.fromkeys((self.low, inner, self.high)))

    def __str__(self) -> str:
        step = f", every {self.step:g}" if self.step is not None else ""
        return f"{self.low:g} … {self.high:g}{step}{' (log)' if self.log else ''}"


def _scalar(value: object) -> object:
    value = _number(value)
    if value is not None and not isinstance(value, str | int | float | bool):
        raise ValueError(f"a choice is a text, a number, true, false or null, found {value!r}")
    return value


def _distinct(values: tuple[Scalar, ...]) -> tuple[Scalar, ...]:
    if len(set(values)) < len(values):
        raise ValueError("a choice stands there twice: leave one out")
    return values


Choices = Annotated[
    tuple[Annotated[Scalar, BeforeValidator(_scalar)], ...], Field(min_length=1), AfterValidator(_distinct)
]


def _shape(value: object) -> str | None:
    if isinstance(value, list | tuple):
        return "choices"
    return "range" if isinstance(value, dict | Range) else None


Searched = Annotated[
    Annotated[Range, Tag("range")] | Annotated[Choices, Tag("choices")],
    Discriminator(
        _shape,
        custom_error_type="space_error",
        custom_error_message="write a range, {low: …, high: …}, or a list of choices",
    ),
]


class TuneConfig(Config):
    """The part of a spec that has an estimator's parameters searched by Optuna, each trial judged on validation.

    The best trial's model is the run's model.

    Parameters
    ----------
    space : dict
        By the estimator's own parameter names: ``{low, high, log, step}``, or a list of choices. What is not searched
        stands under ``params``. Every combination must be allowed.
    trials : int
        How many; a ``grid`` has no more than it has points.
    timeout : seconds, optional
        No trial is begun later; those that are at work end.
    metric : str, optional
        What a trial is worth on the validation rows; default: ``auc`` for classes, ``rmse`` for values. Whether more or
        less of it is better is the metric's own.
    sampler : {"tpe", "random", "grid", "cmaes"}
        Optuna's. With ``parallel: 1`` the same seed gives the same trials, also when the run was resumed in between.
    pruner : {"none", "median", "hyperband", "successive_halving"}
        Optuna's: ends trials that are worse on their way than others were at the same step. Seen on their way are:
        XGBoost's last `eval_metric` on validation, round by round; the training's objective of linear models, penalty
        included, step by step (mini-batch solvers: epoch by epoch), which can't tell whether a penalty is good. Other
        estimators say nothing on their way.
    seed : int
    parallel : int
        Trials at a time. Each has so much of the workers as is its share; where there are fewer workers than trials
        these wait in line.
    """

    space: dict[str, Searched] = Field(min_length=1)
    trials: int = Field(default=20, ge=1, le=100_000)
    timeout: Seconds | None = Field(default=None, gt=0)
    metric: str | None = None
    sampler: Sampler = "tpe"
    pruner: Pruner = "none"
    seed: int = Field(default=0, ge=0)
    parallel: int = Field(default=1, ge=1, le=256)

    @model_validator(mode="after")
    def _refuse_impossible(self) -> Self:
        ranges = {name: each for name, each in self.space.items() if isinstance(each, Range)}
        endless = [name for name, each in ranges.items() if each.values() is None]
        if self.sampler == "grid" and endless:
            raise ValueError(
                f"a grid needs numbers that can be counted, and {', '.join(endless)} has none: give step, or choices"
            )
        if self.sampler == "cmaes" and len(ranges) < 2:
            raise ValueError("cmaes needs at least two ranges of numbers: use sampler: tpe")
        return self

    def grid(self) -> dict[str, tuple[Scalar, ...]]:
        """All values of each parameter, for a ``grid``."""
        return {name: (each.values() or ()) if isinstance(each, Range) else each for name, each in self.space.items()}

    @property
    def most(self) -> int:
        """How many trials there are, unless time is over before."""
        if self.sampler != "grid":
            return self.trials
        points = 1
        for values in self.grid().values():
            points *= len(values)
        return min(self.trials, points)

    def examples(self, limit: int = 256) -> Iterator[dict[str, Any]]:
        """Yield combinations of ends, middles and choices; each of these is in one at least, whatever the limit."""
        shown = [each.examples() if isinstance(each, Range) else each for each in self.space.values()]
        longest = max(len(values) for values in shown)
        every = [tuple(values[turn % len(values)] for values in shown) for turn in range(longest)]
        room = max(0, limit - longest)
        for combined in dict.fromkeys([*every, *itertools.islice(itertools.product(*shown), room)]):
            yield dict(zip(self.space, combined, strict=True))


def describe_space(tune: TuneConfig) -> dict[str, str]:
    """Say what is searched, for people."""
    return {
        name: str(each) if isinstance(each, Range) else ", ".join("null" if v is None else str(v) for v in each)
        for name, each in tune.space.items()
    }
