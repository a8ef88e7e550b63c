"""How far is a row from the right side of its margin? The hinge losses of support vector machines.

Two classes have one score; more have one each, every class against the rest. Legend: t = ±1 says on which side a row
belongs, s = 1 - t·z how much of the margin it lacks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from pipelines.training.gang.context import Array
from pipelines.training.objectives import OWN_UNITS, Units
from pipelines.training.smoothing import ENOUGH, WIDTHS, bend, magnitude, slope


@dataclass(frozen=True)
class SquaredHinge:
    """max(0, s)²: smooth, with a curvature of 2 inside the margin (Keerthi & DeCoste, 2005, for Newton's method)."""

    outputs: int = 1
    link: str = "margin"
    units: Units = OWN_UNITS
    curved: bool = True
    steepest: float = 2.0
    recedes: bool = False

    def evaluate(self, scores: Array, y: Array, weight: Array | None) -> tuple[float, Array]:
        """See `Loss.evaluate`."""
        sides = _sides(scores, y)
        lacking = np.maximum(1 - sides * scores, 0)
        return _weighted(np.square(lacking), -2 * sides * lacking, weight)

    def curvature(self, scores: Array, y: Array, weight: Array | None) -> Array:
        """See `Loss.curvature`."""
        d = 2 * (_sides(scores, y) * scores < 1).astype(scores.dtype)
        return d if weight is None else d * weight

    def start(self, mean: Array) -> Array:
        """See `Loss.start`: what is best where every row lies inside the margin."""
        return 2 * mean - 1


@dataclass(frozen=True)
class Hinge:
    """max(0, s) = (s + |s|) / 2, with |s| smoothed as `smoothing` says."""

    width: float = 0.0
    outputs: int = 1
    link: str = "margin"
    units: Units = OWN_UNITS
    curved: bool = True
    steepest: float = 0.5
    recedes: bool = False
    widths: tuple[float, ...] = WIDTHS
    enough: float = ENOUGH

    def sharpened(self, width: float) -> Hinge:
        """See `Sharpening.sharpened`."""
        return replace(self, width=width)

    def evaluate(self, scores: Array, y: Array, weight: Array | None) -> tuple[float, Array]:
        """See `Loss.evaluate`."""
        sides = _sides(scores, y)
        lacking = 1 - sides * scores
        size = magnitude(lacking, self.width)
        return _weighted(0.5 * (lacking + size), -0.5 * sides * (1 + slope(lacking, size)), weight)

    def curvature(self, scores: Array, y: Array, weight: Array | None) -> Array:
        """See `Loss.curvature`."""
        d: Array = 0.5 * bend(magnitude(1 - _sides(scores, y) * scores, self.width), self.width)
        return d if weight is None else d * weight

    def start(self, mean: Array) -> Array:
        """See `Loss.start`: the side of the larger class."""
        return np.sign(2 * mean - 1)


def _sides(scores: Array, y: Array) -> Array:
    """Say for each output on which side rows belong: ±1, shape (outputs, rows)."""
    if len(scores) == 1:
        return (2 * y - 1).astype(scores.dtype, copy=False)[None]
    sides = np.full_like(scores, -1)
    sides[y.astype(np.intp), np.arange(len(y))] = 1
    return sides


def _weighted(losses: Array, residuals: Array, weight: Array | None) -> tuple[float, Array]:
    if weight is None:
        return float(losses.sum(dtype=np.float64)), residuals
    return float((losses.astype(np.float64) @ weight.astype(np.float64)).sum()), residuals * weight
