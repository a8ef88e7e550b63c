"""What is minimised: the mean of weighted losses + l2/2·‖w‖² + l1·‖w‖₁, the intercept free.

A `Loss` knows rows only: from scores to losses, residuals (the loss's derivative by the score) and curvatures. Where
the scores come from, and where the residuals go, is the business of the passes over the data, so that a loss works for
dense and sparse rows, on any number of ranks. Here are the likelihoods of classes; `margin_losses` holds those of
margins, `value_losses` and `positive_losses` those of numbers.

Legend: z scores, y labels as the target encodes them, w weights of rows, r residuals, d curvatures.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from pipelines.training.gang.context import Array


@dataclass(frozen=True)
class Units:
    """How what is learned reads in the label's own units: value = shift + factor · score, and `unit` times the loss.

    With several labels `shift` and `factor` have shape (outputs, 1), and penalties count in the scale that is learned
    on; with one label they count in its units, where weights are `reach` times as large.
    """

    shift: Array | float = 0.0
    factor: Array | float = 1.0
    unit: float = 1.0
    reach: float = 1.0

    def weights(self, weights: Array) -> Array:
        """Bring weights, shape (outputs, features + 1) with the intercepts last, to the label's units."""
        found: Array = weights * self.factor
        found[:, -1:] += self.shift
        return found

    def penalties(self, l2: float, l1: float) -> tuple[float, float]:
        """Bring l2 and l1 from the label's units to the scale that is learned on."""
        return l2 * self.reach**2 / self.unit, l1 * self.reach / self.unit


OWN_UNITS = Units()


class Loss(Protocol):
    """A loss of one or several scores per row, in the precision of the scores that it is given."""

    @property
    def outputs(self) -> int:
        """Scores per row."""
        ...

    @property
    def link(self) -> str:
        """How scores become predictions: a name that `pipelines.model.linear` knows."""
        ...

    @property
    def units(self) -> Units:
        """The label's units."""
        ...

    @property
    def curved(self) -> bool:
        """Whether each output's residuals hang on its own scores only: so `curvature` is there for Newton's method."""
        ...

    @property
    def steepest(self) -> float:
        """About the largest curvature of a row near the minimum."""
        ...

    @property
    def recedes(self) -> bool:
        """Whether it may fall forever along a direction: without a penalty there may be no minimum then."""
        ...

    def evaluate(self, scores: Array, y: Array, weight: Array | None) -> tuple[float, Array]:
        """Return the weighted sum of losses, and the weighted residuals.

        Parameters
        ----------
        scores : ndarray, shape (outputs, rows)
            May be overwritten.
        y : ndarray, shape (rows,), or (rows, labels) where there are several
        weight : ndarray, shape (rows,), or None

        Returns
        -------
        loss : float
        residuals : ndarray of scores' type, shape (outputs, rows)
        """
        ...

    def curvature(self, scores: Array, y: Array, weight: Array | None) -> Array:
        """Return the weighted second derivatives of each output's loss by its score, shape (outputs, rows)."""
        ...

    def start(self, mean: Array) -> Array:
        """Return good intercepts for zero weights, shape (outputs,), from the weighted mean of the encoded labels.

        `mean` has shape (outputs,): the share of each class, of the positive class of two, or the mean value.
        """
        ...


@runtime_checkable
class Sharpening(Protocol):
    """A loss with a kink that is reached through smooth ones: minimise at each width, from where the last one ended."""

    @property
    def widths(self) -> tuple[float, ...]:
        """Falling widths of smoothing to go through; empty where there is no kink."""
        ...

    @property
    def enough(self) -> float:
        """What smoothing may still add to the mean loss at the end."""
        ...

    def sharpened(self, width: float) -> Loss:
        """Return the same loss at another width; at 0 it is the loss itself, with a subgradient at the kink."""
        ...


@dataclass(frozen=True)
class Logistic:
    """Binary cross-entropy: log(1 + e^z) - y·z with y in {0, 1}."""

    outputs: int = 1
    link: str = "logistic"
    units: Units = OWN_UNITS
    curved: bool = True
    steepest: float = 0.25
    recedes: bool = True

    def evaluate(self, scores: Array, y: Array, weight: Array | None) -> tuple[float, Array]:
        """See `Loss.evaluate`.

        From e = exp(-|z|) nothing overflows: loss = max(z, 0) + log(1 + e) - y·z, and 1 / (1 + e) is the larger of
        sigmoid(z) and 1 - sigmoid(z). Written in whole-array operations that SIMD knows; selecting by sign is slow.
        """
        z = scores[0]
        size = np.abs(z)
        if weight is None:
            loss = 0.5 * float(z.sum(dtype=np.float64) + size.sum(dtype=np.float64))
            loss -= float(np.dot(y.astype(z.dtype, copy=False), z))
        else:
            losses = np.maximum(z, 0) - y * z
        one = np.negative(size, out=size)
        np.exp(one, out=one)
        one += 1
        if weight is None:
            loss += _sum_of_logs(one)
        else:
            losses += np.log(one)
            loss = float(np.dot(losses.astype(np.float64), weight.astype(np.float64)))
        residuals = np.divide(1, one, out=one)
        residuals -= 0.5
        np.copysign(residuals, z, out=residuals)
        residuals += 0.5
        residuals -= y
        if weight is not None:
            residuals *= weight
        return loss, residuals[None]

    def curvature(self, scores: Array, y: Array, weight: Array | None) -> Array:
        """See `Loss.curvature`: p·(1 - p)."""
        e = np.exp(-np.abs(scores[0]))
        d: Array = (e / np.square(1 + e))[None]
        return d if weight is None else d * weight

    def start(self, mean: Array) -> Array:
        """See `Loss.start`: the log-odds."""
        share = np.clip(mean, 1e-6, 1 - 1e-6)
        odds: Array = np.log(share / (1 - share))
        return odds


@dataclass(frozen=True)
class Multinomial:
    """Cross-entropy of a softmax over all classes: log Σ e^z - z_y."""

    outputs: int
    link: str = "softmax"
    units: Units = OWN_UNITS
    curved: bool = False
    steepest: float = 0.25
    recedes: bool = True

    def evaluate(self, scores: Array, y: Array, weight: Array | None) -> tuple[float, Array]:
        """See `Loss.evaluate`."""
        rows, codes = np.arange(scores.shape[1]), y.astype(np.intp)
        scores -= scores.max(axis=0)
        chosen = scores[codes, rows].astype(np.float64)
        p = np.exp(scores, out=scores)
        total = p.sum(axis=0)
        losses = np.log(total.astype(np.float64)) - chosen
        p /= total
        p[codes, rows] -= 1
        if weight is None:
            return float(losses.sum()), p
        p *= weight
        return float(np.dot(losses, weight.astype(np.float64))), p

    def curvature(self, scores: Array, y: Array, weight: Array | None) -> Array:
        """Not there: the curvature of a softmax is a matrix for each row."""
        raise NotImplementedError("the curvature of a softmax is a matrix for each row: ask `curved` first")

    def start(self, mean: Array) -> Array:
        """See `Loss.start`: logarithms of the shares, centred."""
        logs = np.log(np.maximum(mean, 1e-6))
        centred: Array = logs - logs.mean()
        return centred


def _sum_of_logs(values: Array) -> float:
    """Sum the logarithms of values in [1, 2]: of products of at most a hundred, which stay below 2^100."""
    width = -(-len(values) // 100)
    whole = len(values) // width * width if width else 0
    products = np.multiply.reduce(values[:whole].reshape(-1, max(width, 1)), axis=0)
    return float(np.log(products).sum(dtype=np.float64) + np.log(values[whole:]).sum(dtype=np.float64))
