"""How far is a number from its label? Losses of values with the identity link, for one label or for several.

Labels are brought to mean 0 and deviation 1, so that the tolerance of a solver, and Huber's `epsilon`, count in the
label's standard deviations. Legend: z scores, y labels at that scale, r = z - y.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import ndtri

from pipelines.training.gang.context import Array
from pipelines.training.objectives import Loss, Sharpening, Units
from pipelines.training.smoothing import ENOUGH, WIDTHS, bend, magnitude, slope


@dataclass(frozen=True)
class Squared:
    """Half the squared difference: r² / 2.

    The shift and the scale are undone in the reported weights; losses are reported in the label's units.
    """

    shift: float = 0.0
    scale: float = 1.0
    outputs: int = 1
    link: str = "identity"
    curved: bool = True
    steepest: float = 1.0
    recedes: bool = False

    @property
    def units(self) -> Units:
        """See `Loss.units`."""
        return Units(self.shift, self.scale, self.scale**2, self.scale)

    def evaluate(self, scores: Array, y: Array, weight: Array | None) -> tuple[float, Array]:
        """See `Loss.evaluate`."""
        residuals = _differences(scores, y, self.shift, self.scale)
        weighted = residuals if weight is None else residuals * weight
        return 0.5 * float(np.dot(residuals.astype(np.float64), weighted.astype(np.float64))), weighted[None]

    def curvature(self, scores: Array, y: Array, weight: Array | None) -> Array:
        """See `Loss.curvature`: 1."""
        return np.ones_like(scores) if weight is None else weight.astype(scores.dtype)[None]

    def start(self, mean: Array) -> Array:
        """See `Loss.start`."""
        return (mean - self.shift) / self.scale


@dataclass(frozen=True)
class Huber:
    """Huber (1964): r² / 2 up to |r| = ε, and ε·|r| - ε² / 2 beyond, so that outliers pull with a bounded force.

    `width` is the ε that is computed with. A small one leaves few rows that bend the loss, so that Newton's method is
    led there through larger ones.
    """

    shift: float = 0.0
    scale: float = 1.0
    epsilon: float = 1.35
    width: float = 0.0
    outputs: int = 1
    link: str = "identity"
    curved: bool = True
    steepest: float = 1.0
    recedes: bool = False
    enough: float = 0.0

    @property
    def units(self) -> Units:
        """See `Loss.units`."""
        return Units(self.shift, self.scale, self.scale**2, self.scale)

    @property
    def widths(self) -> tuple[float, ...]:
        """See `Sharpening.widths`: the last one is ε itself, with which nothing is smoothed any more."""
        return (*(width for width in WIDTHS if width > 2 * self.epsilon), self.epsilon)

    def sharpened(self, width: float) -> Huber:
        """See `Sharpening.sharpened`."""
        return replace(self, width=width)

    def evaluate(self, scores: Array, y: Array, weight: Array | None) -> tuple[float, Array]:
        """See `Loss.evaluate`: with c = r cut off at ±ε the loss is c·(r - c / 2)."""
        r = _differences(scores, y, self.shift, self.scale)
        cut = np.clip(r, -self._reach, self._reach)
        r -= 0.5 * cut
        return weighted_sum(r * cut, cut, weight)

    def curvature(self, scores: Array, y: Array, weight: Array | None) -> Array:
        """See `Loss.curvature`: 1 up to ε, then 0."""
        r = _differences(scores.copy(), y, self.shift, self.scale)
        d = (np.abs(r) <= self._reach).astype(scores.dtype)[None]
        return d if weight is None else d * weight

    def start(self, mean: Array) -> Array:
        """See `Loss.start`."""
        return (mean - self.shift) / self.scale

    @property
    def _reach(self) -> float:
        return self.width or self.epsilon


@dataclass(frozen=True)
class Quantile:
    """The pinball loss of Koenker & Bassett (1978): q·(y - z) where the label is larger, (1 - q)·(z - y) where not.

    It is |r| / 2 + (1/2 - q)·r, with |r| smoothed as `smoothing` says.
    """

    shift: float = 0.0
    scale: float = 1.0
    quantile: float = 0.5
    width: float = 0.0
    outputs: int = 1
    link: str = "identity"
    curved: bool = True
    steepest: float = 0.5
    recedes: bool = False
    widths: tuple[float, ...] = WIDTHS
    enough: float = ENOUGH

    @property
    def units(self) -> Units:
        """See `Loss.units`."""
        return Units(self.shift, self.scale, self.scale, self.scale)

    def sharpened(self, width: float) -> Quantile:
        """See `Sharpening.sharpened`."""
        return replace(self, width=width)

    def evaluate(self, scores: Array, y: Array, weight: Array | None) -> tuple[float, Array]:
        """See `Loss.evaluate`."""
        r = _differences(scores, y, self.shift, self.scale)
        size, tilt = magnitude(r, self.width), 0.5 - self.quantile
        residuals = 0.5 * slope(r, size) + tilt
        return weighted_sum(0.5 * size + tilt * r, residuals, weight)

    def curvature(self, scores: Array, y: Array, weight: Array | None) -> Array:
        """See `Loss.curvature`."""
        d = 0.5 * bend(magnitude(_differences(scores.copy(), y, self.shift, self.scale), self.width), self.width)[None]
        return d if weight is None else d * weight

    def start(self, mean: Array) -> Array:
        """See `Loss.start`: the quantile of a normal distribution, whose mean is known."""
        return (mean - self.shift) / self.scale + float(ndtri(self.quantile))


@dataclass(frozen=True)
class Several:
    """The sum of several labels' losses, one output each. Each label is learned at its own scale."""

    losses: tuple[Loss, ...]

    @property
    def outputs(self) -> int:
        """See `Loss.outputs`."""
        return len(self.losses)

    @property
    def link(self) -> str:
        """See `Loss.link`: that of all of them."""
        return self.losses[0].link

    @property
    def units(self) -> Units:
        """See `Loss.units`: losses of different units are only added at the scale that is learned on."""
        every = [loss.units for loss in self.losses]
        return Units(_column([units.shift for units in every]), _column([units.factor for units in every]))

    @property
    def curved(self) -> bool:
        """See `Loss.curved`."""
        return all(loss.curved for loss in self.losses)

    @property
    def steepest(self) -> float:
        """See `Loss.steepest`."""
        return max(loss.steepest for loss in self.losses)

    @property
    def recedes(self) -> bool:
        """See `Loss.recedes`."""
        return any(loss.recedes for loss in self.losses)

    @property
    def widths(self) -> tuple[float, ...]:
        """See `Sharpening.widths`."""
        first = self.losses[0]
        return first.widths if isinstance(first, Sharpening) else ()

    @property
    def enough(self) -> float:
        """See `Sharpening.enough`."""
        return max((loss.enough for loss in self.losses if isinstance(loss, Sharpening)), default=0.0)

    def sharpened(self, width: float) -> Several:
        """See `Sharpening.sharpened`."""
        parts = (loss.sharpened(width) if isinstance(loss, Sharpening) else loss for loss in self.losses)
        return Several(tuple(parts))

    def evaluate(self, scores: Array, y: Array, weight: Array | None) -> tuple[float, Array]:
        """See `Loss.evaluate`."""
        total, residuals = 0.0, np.empty_like(scores)
        for k, loss in enumerate(self.losses):
            found, residuals[k : k + 1] = loss.evaluate(scores[k : k + 1], y[:, k], weight)
            total += found
        return total, residuals

    def curvature(self, scores: Array, y: Array, weight: Array | None) -> Array:
        """See `Loss.curvature`."""
        parts = [loss.curvature(scores[k : k + 1], y[:, k], weight) for k, loss in enumerate(self.losses)]
        return np.concatenate(parts)

    def start(self, mean: Array) -> Array:
        """See `Loss.start`."""
        return np.concatenate([loss.start(mean[k : k + 1]) for k, loss in enumerate(self.losses)])


def weighted_sum(losses: Array, residuals: Array, weight: Array | None) -> tuple[float, Array]:
    """Give what `Loss.evaluate` does, from one output's losses and residuals without weights."""
    if weight is None:
        return float(losses.sum(dtype=np.float64)), residuals[None]
    return float(np.dot(losses.astype(np.float64), weight.astype(np.float64))), (residuals * weight)[None]


def _differences(scores: Array, y: Array, shift: float, scale: float) -> Array:
    """Return z - y at the scale of learning; overwrites the scores. The label's shift is taken off in float64."""
    r = scores[0]
    r -= ((y.astype(np.float64) - shift) / scale).astype(r.dtype, copy=False)
    return r


def _column(values: Sequence[Array | float]) -> Array:
    return np.array([float(value) for value in values])[:, None]
