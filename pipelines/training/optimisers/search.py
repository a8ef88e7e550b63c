"""How far to go along a direction."""

from __future__ import annotations

from collections.abc import Callable

SUFFICIENT = 1e-4
CURVATURE = 0.9
_MOST = 25


def wolfe(
    evaluate: Callable[[float], tuple[float, float]], value: float, slope: float, *, noise: float, first: float = 1.0
) -> float | None:
    """Find a step that meets the weak Wolfe conditions by bracketing and interpolation; None when there is none.

    After too many attempts a step that at least decreases the value will do.

    Near the minimum differences of values drown in rounding errors while slopes are still good: a step is also taken
    when the value has not grown by more than `noise` and the slopes alone show a decrease (the approximate Wolfe
    condition of Hager & Zhang, SIAM J. Optim. 16 (2005), eq. 4.3).

    Parameters
    ----------
    evaluate : callable
        From a step to value and slope there.
    value, slope : float
        At step 0; the slope is negative.
    noise : float
        Absolute rounding error of values.
    first : float
        The step that is tried first.
    """
    low, low_value, low_slope, high = 0.0, value, slope, float("inf")
    step = first
    for _ in range(_MOST):
        found, found_slope = evaluate(step)
        decreased = found <= value + SUFFICIENT * step * slope
        flat = found <= value + noise and found_slope <= (2 * SUFFICIENT - 1) * slope
        if not (decreased or flat):
            high = step
            step = low + _vertex(high - low, low_value, low_slope, found)
        elif found_slope < CURVATURE * slope:
            low, low_value, low_slope = step, found, found_slope
            step = 4 * step if high == float("inf") else (low + high) / 2
        else:
            return step
        if high - low < 1e-12 * max(first, low):
            break
    return low or None


def _vertex(width: float, value: float, slope: float, far: float) -> float:
    """Return where the parabola through a value, its slope and a far value has its minimum, kept inside the bracket."""
    rise = far - value - slope * width
    inside = -slope * width * width / (2 * rise) if rise > 0 and far < float("inf") else width / 2
    return min(max(inside, 0.1 * width), 0.5 * width)
