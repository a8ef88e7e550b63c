"""How far is a positive number from its label? Half the deviance of Poisson, gamma and Tweedie, with the log link.

Predictions are e^z in the label's units. Labels are divided by their mean m (with an intercept, which takes log m up),
so that scores start at 0. Half a deviance is 0 for a perfect prediction, and equal to the likelihood scikit-learn
minimises up to a constant.

Exponentials. Beyond `FARTHEST` e^x goes on as its tangent, so that a step too long gives a large and finite loss with a
slope that leads back, in float32 too. No row of a minimum lies there: it alone would cost more than all at the start.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import xlogy

from pipelines.training.gang.context import Array
from pipelines.training.objectives import Units
from pipelines.training.value_losses import weighted_sum

FARTHEST = 60.0
"""e^60 is 1e26."""


@dataclass(frozen=True)
class Poisson:
    """For counts: e^z - y·z + y·log y - y, with labels of at least 0."""

    mean: float = 1.0
    outputs: int = 1
    link: str = "log"
    curved: bool = True
    steepest: float = 1.0
    recedes: bool = True

    @property
    def units(self) -> Units:
        """See `Loss.units`."""
        return Units(shift=float(np.log(self.mean)), unit=self.mean)

    def evaluate(self, scores: Array, y: Array, weight: Array | None) -> tuple[float, Array]:
        """See `Loss.evaluate`."""
        z, y = scores[0], _divided(y, self.mean, scores)
        value, growth = _exponential(z)
        return weighted_sum(value - y * z + (xlogy(y, y) - y), growth - y, weight)

    def curvature(self, scores: Array, y: Array, weight: Array | None) -> Array:
        """See `Loss.curvature`: e^z."""
        d = _exponential(scores)[1]
        return d if weight is None else d * weight

    def start(self, mean: Array) -> Array:
        """See `Loss.start`."""
        return np.log(mean / self.mean)


@dataclass(frozen=True)
class Gamma:
    """For positive amounts: e^-d + d - 1 with d = z - log y, a relative error."""

    mean: float = 1.0
    outputs: int = 1
    link: str = "log"
    curved: bool = True
    steepest: float = 1.0
    recedes: bool = False

    @property
    def units(self) -> Units:
        """See `Loss.units`."""
        return Units(shift=float(np.log(self.mean)))

    def evaluate(self, scores: Array, y: Array, weight: Array | None) -> tuple[float, Array]:
        """See `Loss.evaluate`."""
        d = scores[0] - np.log(_divided(y, self.mean, scores))
        value, growth = _exponential(-d)
        return weighted_sum(value + d - 1, 1 - growth, weight)

    def curvature(self, scores: Array, y: Array, weight: Array | None) -> Array:
        """See `Loss.curvature`: e^-d."""
        d = _exponential(np.log(_divided(y, self.mean, scores)) - scores)[1]
        return d if weight is None else d * weight

    def start(self, mean: Array) -> Array:
        """See `Loss.start`."""
        return np.log(mean / self.mean)


@dataclass(frozen=True)
class Tweedie:
    """For amounts that are often 0, of a variance that grows as the mean to the power p, 1 < p < 2 (Tweedie, 1984).

    e^((2-p)z) / (2-p) + y·e^(-(p-1)z) / (p-1) - y^(2-p) / ((p-1)(2-p)), with labels of at least 0.
    """

    mean: float = 1.0
    power: float = 1.5
    outputs: int = 1
    link: str = "log"
    curved: bool = True
    steepest: float = 1.0
    recedes: bool = True

    @property
    def units(self) -> Units:
        """See `Loss.units`."""
        return Units(shift=float(np.log(self.mean)), unit=float(self.mean ** (2 - self.power)))

    def evaluate(self, scores: Array, y: Array, weight: Array | None) -> tuple[float, Array]:
        """See `Loss.evaluate`."""
        up, down = 2 - self.power, self.power - 1
        z, y = scores[0], _divided(y, self.mean, scores)
        rising, growth = _exponential(up * z)
        falling, decay = _exponential(-down * z)
        losses = rising / up + y * falling / down - np.power(y, up) / (up * down)
        return weighted_sum(losses, growth - y * decay, weight)

    def curvature(self, scores: Array, y: Array, weight: Array | None) -> Array:
        """See `Loss.curvature`."""
        up, down = 2 - self.power, self.power - 1
        y = _divided(y, self.mean, scores)
        d: Array = up * _exponential(up * scores)[1] + down * y * _exponential(-down * scores)[1]
        return d if weight is None else d * weight

    def start(self, mean: Array) -> Array:
        """See `Loss.start`."""
        return np.log(mean / self.mean)


def _exponential(x: Array) -> tuple[Array, Array]:
    """Return e^x and its derivative; beyond `FARTHEST` the tangent and its slope."""
    cut = np.minimum(x, FARTHEST)
    slope: Array = np.exp(cut)
    return slope * (1 + (x - cut)), slope


def _divided(y: Array, mean: float, scores: Array) -> Array:
    return (y.astype(np.float64) / mean).astype(scores.dtype, copy=False)
