"""What exactly is minimised, and how? The objective of a linear model in the scale that is learned on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipelines.errors import TrainingError
from pipelines.training.config import TrainConfig
from pipelines.training.data import TrainingData
from pipelines.training.estimators.class_weights import class_factors
from pipelines.training.estimators.linear_losses import class_loss, value_loss
from pipelines.training.estimators.linear_params import LinearParams, RegressionParams, params_of
from pipelines.training.gang.context import Array
from pipelines.training.loading import Moments
from pipelines.training.objectives import Loss

NEWTON_WEIGHTS = 500
"""Up to so many weights a Hessian costs less than the gradients it saves."""
COARSE_VALUES = 1 << 22
"""A pass over fewer values takes a few milliseconds at most."""
_SAMPLE_ROWS = 1 << 16
_SAMPLE_ROWS_PER_WEIGHT = 64


@dataclass(frozen=True)
class Job:
    """A rank's arguments."""

    data: TrainingData
    config: TrainConfig
    lanes: dict[int, list[int]]
    lanes_total: int
    checkpoint_url: str | None
    identity: str

    @property
    def params(self) -> LinearParams:
        """The estimator's own words."""
        return params_of(self.config)


@dataclass(frozen=True, eq=False)
class Setting:
    """The objective, in the scale that is learned on.

    `weight` is the sum of all rows' weights, class weights included; `start` are the first intercepts; `asked` are l2
    and l1 as they were asked for.
    """

    loss: Loss
    class_weight: Array | None
    weight: float
    l2: float
    l1: float
    start: Array
    asked: tuple[float, float]

    @property
    def unit(self) -> float:
        """What turns losses into the label's units."""
        return self.loss.units.unit


def make_setting(job: Job, moments: Moments) -> Setting:
    """Build the objective from what is asked for and what was seen of the rows.

    Raises
    ------
    TrainingError
        No rows of a positive weight, in all or of a class; nothing but zeros where a logarithm is to be taken.
    """
    target, params = job.data.target, job.params
    if not moments.weight > 0:
        raise TrainingError(
            "there is nothing to learn from",
            expected="training rows with a label and a positive weight",
            found=f"{moments.rows} rows of weight {moments.weight:g}",
            remedy="Look at the filter, the split and the weights.",
        )
    if target.kind == "regression":
        return _of_values(job, moments)
    class_weight = _class_weight(job, moments)
    shares = moments.classes if class_weight is None else moments.classes * class_weight
    total = float(shares.sum())
    loss = class_loss(params, len(target.classes))
    asked = _strengths(params, total, default_C=1.0)
    start = loss.start(shares[1:] / total if target.kind == "binary" else shares / total)
    return Setting(loss, class_weight, total, *loss.units.penalties(*asked), start, asked)


def _of_values(job: Job, moments: Moments) -> Setting:
    target, params = job.data.target, job.params
    assert isinstance(params, RegressionParams)
    means = moments.y / moments.weight
    seen = np.sqrt(np.maximum(moments.y2 / moments.weight - means**2, 0.0))
    # The target's own statistics do not suffer from a mean that is large against the deviation.
    scales = [each.std or float(std) or 1.0 for each, std in zip(target.every, seen, strict=True)]
    loss_is_logarithmic = params.loss in ("poisson", "gamma", "tweedie")
    for each, mean in zip(target.every, means, strict=True):
        if loss_is_logarithmic and not mean > 0:
            raise TrainingError(
                f"loss: {params.loss} learns the logarithm of the mean, which is not there",
                on=f"column {each.column}",
                expected="a positive label in some training row of a positive weight",
                found=f"a weighted mean of {mean:g}",
                remedy="Look at the filter, the split and the weights.",
            )
    loss = value_loss(params, [float(mean) for mean in means], scales)
    asked = _strengths(params, moments.weight, default_C=None)
    l2, l1 = loss.units.penalties(*asked)
    return Setting(loss, None, moments.weight, l2, l1, loss.start(means), asked)


def _strengths(params: LinearParams, weight: float, default_C: float | None) -> tuple[float, float]:
    """Return l2 and l1 of the mean objective."""
    silent = params.C is None and params.l2 is None and params.l1 is None
    C = default_C if silent else params.C
    if C is None:
        return params.l2 or 0.0, params.l1 or 0.0
    total = 1.0 / (C * weight)
    return total * (1 - params.l1_ratio), total * params.l1_ratio


def _class_weight(job: Job, moments: Moments) -> Array | None:
    pairs = zip(job.data.target.classes, moments.classes, strict=True)
    empty = [str(label) for label, weight in pairs if not weight > 0]
    if empty:
        raise TrainingError(
            "classes have no training rows",
            on=f"column {job.data.target.column}",
            found=f"nothing for {', '.join(empty[:5])}",
            remedy="Split with kind: stratified, or leave such rows out with filter.",
        )
    return class_factors(job.config.class_weight, job.data.target)


def choose_solver(params: LinearParams, setting: Setting, features: int) -> str:
    """Say which solver ``auto`` is, and refuse Newton's method where it can't be."""
    if params.solver == "newton" and not setting.loss.curved:
        raise TrainingError(
            "Newton's method is not for softmax", found="more than two classes", remedy="Use solver: auto or lbfgs."
        )
    if params.solver == "lbfgs" and setting.l1:
        raise TrainingError("lbfgs needs a smooth objective", found=f"l1 = {setting.l1:g}", remedy="Use solver: auto.")
    if params.solver != "auto":
        return params.solver
    if setting.loss.curved and setting.loss.outputs * features <= NEWTON_WEIGHTS:
        return "newton"
    return "owlqn" if setting.l1 else "lbfgs"


def bound_diagonal(setting: Setting, moments: Moments) -> Array:
    """Bound the second derivatives: those of the losses by their largest, times the features' mean squares."""
    squares = moments.x2 / moments.weight
    floor = 1e-6 * float(squares.max(initial=1.0))
    row = np.append(np.maximum(squares, floor), 1.0)
    return np.tile(setting.loss.steepest * row, setting.loss.outputs)


def sample_stride(rows: int, weights: int) -> int:
    """Every how many blocks make a sample that is large for so many weights, and small against the whole."""
    stride = min(rows // max(_SAMPLE_ROWS, _SAMPLE_ROWS_PER_WEIGHT * weights), 32)
    return stride if stride >= 4 else 1
