"""How far is a prediction from a positive label? The unit deviances of Poisson, gamma and Tweedie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.special import xlogy

from pipelines.evaluation.catalogue import metric
from pipelines.evaluation.sums import Floats


def powers_of(names: Sequence[str]) -> tuple[float, ...]:
    """Give the powers of the deviances among some metrics."""
    powers = (metric(name).power for name in names)
    return tuple(sorted({power for power in powers if power is not None}))


def term_names(power: float) -> tuple[str, str, str]:
    """Name what is summed for a power: the deviance, that of a constant, and the rows that have none."""
    return f"deviance({power:g})", f"constant_deviance({power:g})", f"outside({power:g})"


def unit_deviance(y: Floats, predicted: Floats, power: float) -> tuple[Floats, Any]:
    """Return each row's deviance, 0 where it has none, and which rows have none.

    Parameters
    ----------
    y, predicted : ndarray of float64, shape (rows,)
        Labels of at least 0 (above 0 for a power of 2), predictions above 0.
    power : float
        From 1 (Poisson) to 2 (gamma).

    Returns
    -------
    deviance : ndarray of float64, shape (rows,)
    outside : ndarray of bool, shape (rows,)
    """
    outside = (y < 0) | (predicted <= 0) | ((y == 0) & (power == 2))
    y, mean = np.where(outside, 1.0, y), np.where(outside, 1.0, predicted)
    if power == 1:
        deviance = xlogy(y, y / mean) - y + mean
    elif power == 2:
        deviance = np.log(mean / y) + y / mean - 1
    else:
        up, down = 2 - power, power - 1
        deviance = mean**up / up + y * mean**-down / down - y**up / (up * down)
    # The parts cancel near y = mean; a deviance is never negative.
    return np.maximum(2 * deviance, 0.0), outside
