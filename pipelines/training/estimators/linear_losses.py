"""Which loss do the parameters ask for, and can it take these labels?"""

from __future__ import annotations

from collections.abc import Sequence

from pipelines.errors import DataError
from pipelines.features.target import Target
from pipelines.training.estimators.linear_params import LinearParams, RegressionParams, SvmParams
from pipelines.training.margin_losses import Hinge, SquaredHinge
from pipelines.training.objectives import Logistic, Loss, Multinomial
from pipelines.training.positive_losses import Gamma, Poisson, Tweedie
from pipelines.training.value_losses import Huber, Quantile, Several, Squared

_TAKES_ZERO = {"poisson": True, "tweedie": True, "gamma": False}
"""Whether a loss with a log link takes labels of 0; all of them take what is above."""


def class_loss(params: LinearParams, classes: int) -> Loss:
    """Choose the loss of a label of classes."""
    if isinstance(params, SvmParams):
        outputs = 1 if classes == 2 else classes
        return Hinge(outputs=outputs) if params.loss == "hinge" else SquaredHinge(outputs)
    return Logistic() if classes == 2 else Multinomial(classes)


def value_loss(params: RegressionParams, means: Sequence[float], scales: Sequence[float]) -> Loss:
    """Choose the loss of one label or several.

    Parameters
    ----------
    means, scales : sequence of float
        Weighted mean, and standard deviation, of each label over the training rows.
    """
    losses = [_one(params, mean, scale) for mean, scale in zip(means, scales, strict=True)]
    return losses[0] if len(losses) == 1 else Several(tuple(losses))


def _one(params: RegressionParams, mean: float, scale: float) -> Loss:
    shift, level = (mean, mean) if params.fit_intercept else (0.0, 1.0)  # without an intercept none takes them up
    match params.loss:
        case "squared":
            return Squared(shift, scale)
        case "huber":
            return Huber(shift, scale, params.epsilon)
        case "quantile":
            return Quantile(shift, scale, params.quantile)
        case "poisson":
            return Poisson(level)
        case "gamma":
            return Gamma(level)
        case "tweedie":
            return Tweedie(level, params.tweedie_power)


def refuse_labels(params: LinearParams, target: Target) -> None:
    """Refuse labels that the loss can't take, as they were seen in the training split.

    Raises
    ------
    DataError
    """
    if not isinstance(params, RegressionParams) or params.loss not in _TAKES_ZERO:
        return
    zero = _TAKES_ZERO[params.loss]
    for each in target.every:
        if each.low is None or each.low > 0 or (zero and each.low == 0):
            continue
        raise DataError(
            f"loss: {params.loss} can't take these labels",
            on=f"column {each.column}",
            expected=f"values {'of at least' if zero else 'above'} 0",
            found=f"{each.low:g} in the training split",
            remedy="Leave such rows out with filter, or use another loss"
            + ("; loss: tweedie takes zeros." if params.loss == "gamma" and each.low == 0 else "."),
        )
