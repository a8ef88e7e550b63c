"""Which estimators there are, and what each must be able to do."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from pipelines.errors import NotFoundError
from pipelines.training.happenings import Happened, ignore

if TYPE_CHECKING:
    from distributed import Client

    from pipelines.training.config import TrainConfig
    from pipelines.training.data import TrainingData
    from pipelines.training.fit import Fit, Progress
    from pipelines.training.gang import Deadlines, Strikes


@dataclass(frozen=True)
class FitRequest:
    """What an estimator's fit is given: see `pipelines.training.fit.fit`."""

    config: TrainConfig
    data: TrainingData
    client: Client | None
    ranks: int
    min_ranks: int
    max_ranks: int
    threads: int
    memory_bytes: int | None
    checkpoint_url: str | None
    report: Callable[[Progress], None]
    deadlines: Deadlines
    stop: threading.Event
    happened: Happened = field(default=ignore)
    resuming: bool = False
    strikes: Strikes | None = None
    trial: bool = False


class Estimator(Protocol):
    """One kind of thing that can be trained."""

    @property
    def categorical(self) -> Literal["one_hot", "native"]:
        """How category columns are encoded unless the spec says it."""
        ...

    @property
    def label_kinds(self) -> tuple[str, ...]:
        """The kinds of label it learns: of ``binary``, ``multiclass``, ``regression``."""
        ...

    def check(self, config: TrainConfig) -> Any:
        """Validate `config` and its `params`; returns the params model. Raises ``pydantic.ValidationError``."""
        ...

    def memory_per_row(self, features: int) -> int:
        """Bytes that a rank needs per row of its share, for the plan's prediction."""
        ...

    def fit(self, request: FitRequest) -> Fit:
        """Train. Blocks until done; see `pipelines.training.fit.fit`."""
        ...


class Series(Protocol):
    """Fits of one estimator on the same data, one after the other, that share what is loaded."""

    def fit(
        self,
        config: TrainConfig,
        *,
        checkpoint_url: str | None,
        report: Callable[[Progress], None],
        give_up: threading.Event,
    ) -> Fit:
        """Train with another `config`; `give_up` ends this fit, without a checkpoint: ``InterruptedRunError``.

        Raises what `pipelines.training.fit.fit` does. The next fit starts the gang again where one has ended it.
        """
        ...

    def close(self) -> None:
        """End the gang. May be called again."""
        ...


@runtime_checkable
class FitsSeries(Protocol):
    """An estimator whose fits can share loaded data."""

    def series(self, request: FitRequest) -> Series | None:
        """Begin a series; None where this request's fits share nothing. Its `stop` ends the series, with a checkpoint.

        Nothing is started before the first fit.
        """
        ...


@runtime_checkable
class ChecksTarget(Protocol):
    """An estimator that can tell from the label's kind alone that its parameters don't fit."""

    def check_target(self, config: TrainConfig, kind: str) -> None:
        """Raise `SpecError` with what does not fit."""
        ...


@runtime_checkable
class LearnsSeveral(Protocol):
    """An estimator that can learn several numbers at once, one output each."""

    @property
    def several_labels(self) -> bool: ...


def learns_several(estimator: Estimator) -> bool:
    """Say whether an estimator takes a label of several columns."""
    return isinstance(estimator, LearnsSeveral) and estimator.several_labels


@runtime_checkable
class SurvivesLosses(Protocol):
    """An estimator whose training goes on when ranks are lost, and grows when workers come."""

    @property
    def survives_losses(self) -> bool: ...


ESTIMATORS = {
    "logistic_regression": "pipelines.training.estimators.linear:LOGISTIC",
    "linear_regression": "pipelines.training.estimators.linear:LINEAR",
    "linear_svm": "pipelines.training.estimators.linear:SVM",
    "xgboost": "pipelines.training.estimators.boosting:XGBOOST",
}
"""Names of the spec and where they are built; an import path goes to `FOREIGN`."""

FOREIGN = "pipelines.training.estimators.foreign:foreign"


def resolve(name: str) -> Estimator:
    """Find the estimator of a spec's `estimator:`: one of `ESTIMATORS`, or ``package.module.Class`` by import path.

    Raises
    ------
    NotFoundError
        A bare word that is not in `ESTIMATORS`.
    """
    if name in ESTIMATORS:
        estimator: Estimator = _load(ESTIMATORS[name])
        return estimator
    if "." not in name and ":" not in name:
        raise NotFoundError.among("estimator", name, list(ESTIMATORS))
    foreign: Estimator = _load(FOREIGN)(name)
    return foreign


def _load(target: str) -> Any:
    module, _, attribute = target.partition(":")
    return getattr(import_module(module), attribute)
