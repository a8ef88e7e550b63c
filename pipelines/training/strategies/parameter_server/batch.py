"""From a mini-batch's rows to its own weights, and back to a gradient: sparse linear algebra in the batch's few keys.

Keys are made unique with one sort of 64-bit integers, place above and position below: for 100,000 of them 1.7 ms, where
``np.unique`` with its inverse takes 7.5, a table over all weights 2.8 (and its memory), pandas' hash table 1.1 without
the order that servers want. Sums are in float64, as in the other passes over rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipelines.errors import UsageError
from pipelines.training.blocks import SparseBlock
from pipelines.training.compressed import Compressed
from pipelines.training.gang.context import Array
from pipelines.training.objectives import Loss
from pipelines.training.strategies.parameter_server.layout import Layout


@dataclass(frozen=True)
class Objective:
    """The mean of weighted losses + l2/2·‖w‖², the intercept free.

    Of the penalty a batch sees the weights of its own keys: a weight is drawn to zero as often as its key occurs.

    Parameters
    ----------
    loss : Loss
        Of one output.
    features : int
        The intercept is the key behind them.
    l2 : float
    fit_intercept : bool

    Raises
    ------
    UsageError
        The loss has several outputs.
    """

    loss: Loss
    features: int
    l2: float = 0.0
    fit_intercept: bool = True

    def __post_init__(self) -> None:
        if self.loss.outputs != 1:
            raise UsageError(
                "the parameter server holds one weight for each key",
                expected="a loss of one output",
                found=f"{self.loss.outputs} outputs",
                remedy="Train one model per class, or use the synchronous strategy.",
            )

    @property
    def size(self) -> int:
        """Weights, for the layout."""
        return self.features + 1


@dataclass(frozen=True, eq=False)
class Batch:
    """Rows whose columns are numbered by the batch's own places.

    places : ndarray of int64, ascending: where the batch's weights lie
    columns : ndarray of int32: of every value, the number of its place
    intercept : int or None: number of the intercept's place
    """

    block: SparseBlock
    places: Array
    columns: Array
    intercept: int | None


def prepare(block: SparseBlock, layout: Layout, objective: Objective) -> Batch:
    """Find a block's unique places."""
    keys = block.X.indices
    if objective.fit_intercept:
        keys = np.append(keys, np.int32(objective.features))
    places, columns = unique(layout.place(keys))
    if not objective.fit_intercept:
        return Batch(block, places, columns, None)
    return Batch(block, places, columns[:-1], int(columns[-1]))


def unique(places: Array) -> tuple[Array, Array]:
    """Return the unique places, ascending, and of each place its number among them (int32).

    Parameters
    ----------
    places : ndarray of int64, values in [0, 2^31), fewer than 2^32
    """
    if not len(places):
        return places, np.empty(0, np.int32)
    packed = places << 32
    packed |= np.arange(len(places), dtype=np.int64)
    packed.sort()
    ordered = packed >> 32
    first = np.empty(len(packed), bool)
    first[0] = True
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    numbers = np.cumsum(first, dtype=np.int32)
    numbers -= 1
    packed &= 0xFFFFFFFF
    columns = np.empty(len(packed), np.int32)
    columns[packed] = numbers
    return ordered[first], columns


def evaluate(batch: Batch, weights: Array, objective: Objective) -> tuple[float, float, Array]:
    """Compute the losses' sum, the rows' weights' sum, and the gradient of the batch's mean.

    Parameters
    ----------
    weights : ndarray of float32, by the batch's places

    Returns
    -------
    loss : float
    total : float
    gradient : ndarray of float32, by the batch's places
    """
    y, weight, rows, count = batch.block.y, batch.block.weight, batch.block.rows, len(batch.places)
    X, w = Compressed(batch.block.X, columns=batch.columns, features=count), weights.astype(np.float64)
    scores = np.full((1, rows), 0.0 if batch.intercept is None else w[batch.intercept])
    X.add_product(w, scores[0])
    loss, residuals = objective.loss.evaluate(scores, y, weight)
    total = float(rows) if weight is None else float(weight.sum(dtype=np.float64))
    gradient = np.zeros(count)
    X.add_transposed(residuals[0], gradient)
    gradient /= max(total, 1e-300)
    if objective.l2:
        gradient += objective.l2 * w
    if batch.intercept is not None:
        gradient[batch.intercept] = residuals.sum(dtype=np.float64) / max(total, 1e-300)
    return loss, total, gradient.astype(np.float32)
