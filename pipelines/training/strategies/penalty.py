"""From sums over rows to the objective: the mean of weighted losses + l2/2·‖w‖², the intercept free or absent."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipelines.training.gang.context import Array
from pipelines.training.passes import HEAD


@dataclass(frozen=True, eq=False)
class Penalty:
    """What is added to the losses, for flat weights of `outputs` rows of `features` and an intercept.

    Parameters
    ----------
    penalised : ndarray of bool, shape (weights,)
    fixed : ndarray of bool, shape (weights,)
        Weights that stay zero: intercepts, where none is fitted.
    l2 : float
    outputs : int
    """

    penalised: Array
    fixed: Array
    l2: float
    outputs: int = 1

    @classmethod
    def of(cls, outputs: int, features: int, *, l2: float, fit_intercept: bool) -> Penalty:
        """Build it for a linear model."""
        inner = np.ones((outputs, features + 1), bool)
        inner[:, -1] = False
        penalised = inner.reshape(-1)
        return cls(penalised, ~penalised if not fit_intercept else np.zeros(inner.size, bool), l2, outputs)

    def mean(self, weights: Array, vector: Array) -> tuple[float, Array]:
        """Turn a gradient pass's sums (`passes`) into the smooth part of the objective, and its gradient."""
        total = max(float(vector[1]), 1e-300)
        inner = np.where(self.penalised, weights, 0.0)
        gradient = vector[HEAD:] / total + self.l2 * inner
        gradient[self.fixed] = 0.0
        return float(vector[0]) / total + 0.5 * self.l2 * float(inner @ inner), gradient

    def of_weights(self, weights: Array) -> float:
        """Return l2/2·‖w‖²."""
        inner = weights[self.penalised]
        return 0.5 * self.l2 * float(inner @ inner) if self.l2 else 0.0
