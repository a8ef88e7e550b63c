"""How is a loss with a kink minimised? Rounded off, ever less, until what is left of the rounding does not count.

|t| becomes √(t² + h²), which bends everywhere, so that Newton's method always has a Hessian. The width h goes down a
path (`WIDTHS`), each minimum starting from the one before, as in Chen, "A finite smoothing algorithm for quantile
regression", J. Comput. Graph. Stat. 16 (2007), with a rounding of another shape.

The error. Let w be the minimum of the rounded objective, and u the slopes of √(t² + h²) there; they lie within ±1, so
that u·t ≤ |t|. The mean of u·t / 2, with what is linear in the loss and with the penalty, is a convex function below
the sharp objective, and w is its minimum. So the sharp objective at w is above its own minimum by at most the mean of
(|t| - u·t) / 2, and that is at most the mean of (√(t² + h²) - |t|) / 2: what smoothing adds to the loss at w. The path
ends where that is `ENOUGH`; the error itself is then usually ten times smaller.
"""

from __future__ import annotations

import numpy as np

from pipelines.training.gang.context import Array

WIDTHS = (1.0, 3e-1, 1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5, 3e-6, 1e-6)
"""The widths h that are gone through, in deviations of the label, or margins."""
ENOUGH = 1e-7
"""What smoothing may add to the mean loss at the end, in the same units."""


def magnitude(t: Array, width: float) -> Array:
    """Return √(t² + h²): |t| where h is 0."""
    if not width:
        return np.abs(t)
    found: Array = np.square(t)
    found += width * width
    return np.sqrt(found, out=found)


def slope(t: Array, size: Array) -> Array:
    """Return the derivative of `size` = √(t² + h²); at a sharp kink 0, which is one of its subgradients."""
    return np.divide(t, size, out=np.zeros_like(t), where=size > 0)


def bend(size: Array, width: float) -> Array:
    """Return the second derivative: h² / size³."""
    if not width:
        return np.zeros_like(size)
    ratio: Array = width / size
    return ratio * ratio / size
