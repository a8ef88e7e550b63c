"""Synchronous gradient descent: one rank leads, all compute, nobody goes on before all have answered.

Rank 0 runs the optimiser and takes every decision. For each evaluation it broadcasts an order (what to compute, at
which weights); every rank computes it on its lanes; the lanes' results are added by a `Reducer`.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from pipelines.training.batches import LaneStream
from pipelines.training.gang import Collective, StopRequested
from pipelines.training.gang.context import Array
from pipelines.training.passes import HEAD, Passes, lower_triangle
from pipelines.training.reducers import LaneOrder

_ORDER = struct.Struct("<BBIQQQd")  # what, fine, stride, epoch, step, steps, width
_GRADIENT, _HESSIAN, _BATCH, _END, _LEAVE = range(5)


class Team:
    """All ranks, as each of them sees them. Rank 0 calls `gradient`, `hessian`, `batch`, `end` and `leave`; the others
    call `follow`.

    Parameters
    ----------
    collective : Collective
    passes : Passes
        Over this rank's lanes.
    streams : mapping of int to LaneStream
        The same lanes, for mini-batches.
    lanes : int
        Lanes of all ranks.
    """

    def __init__(
        self, collective: Collective, passes: Passes, streams: Mapping[int, LaneStream], lanes: int, features: int
    ) -> None:
        self._collective, self._passes, self._streams = collective, passes, streams
        self._shape = (passes.loss.outputs, features + 1)
        self._reducer = LaneOrder(collective, lanes)
        self.width = 0.0  # of a loss's smoothing: rank 0 sets it, and every order carries it
        self.compute_s = 0.0

    def gradient(self, weights: Array, *, fine: bool, stride: int) -> Array:
        """Sum what `Passes.gradient` does, over all lanes."""
        return self._do((_GRADIENT, fine, stride, 0, 0, 0), weights)

    def hessian(self, weights: Array, *, fine: bool, stride: int) -> Array:
        """Sum what `Passes.hessian` does, over all lanes."""
        return self._do((_HESSIAN, fine, stride, 0, 0, 0), weights)

    def batch(self, weights: Array, epoch: int, step: int, steps: int) -> Array:
        """Sum what `Passes.batch` does, over all lanes."""
        return self._do((_BATCH, False, 1, epoch, step, steps), weights)

    def end(self) -> None:
        """Tell all that the work is done."""
        self._collective.broadcast(_ORDER.pack(_END, 0, 0, 0, 0, 0, 0.0))

    def leave(self) -> None:
        """Make all leave, as somebody has asked; raises ``StopRequested``."""
        self._collective.broadcast(_ORDER.pack(_LEAVE, 0, 0, 0, 0, 0, 0.0))
        raise StopRequested

    def follow(self) -> None:
        """Compute what rank 0 orders until it says that the work is done.

        Raises
        ------
        StopRequested
            When all leave.
        """
        while True:
            order = self._collective.broadcast(None)
            fields = _ORDER.unpack_from(order)
            if fields[0] == _END:
                return
            if fields[0] == _LEAVE:
                raise StopRequested
            self._answer(fields, np.frombuffer(order, np.float64, offset=_ORDER.size))

    def _do(self, what: tuple[int, ...], weights: Array) -> Array:
        fields = (*what, self.width)
        self._collective.broadcast(_ORDER.pack(*fields) + weights.tobytes())
        total = self._answer(fields, weights)
        assert total is not None
        return total

    def _answer(self, fields: tuple[Any, ...], weights: Array) -> Array | None:
        what, fine, stride, epoch, step, steps, width = fields
        self._passes.sharpen(width)
        weights = weights.reshape(self._shape)
        began = time.perf_counter()
        if what == _GRADIENT:
            partials = self._passes.gradient(weights, fine=bool(fine), stride=stride)
        elif what == _HESSIAN:
            partials = self._passes.hessian(weights, fine=bool(fine), stride=stride)
        else:
            partials = self._passes.batch(weights, self._streams, epoch, step, steps)
        self.compute_s += time.perf_counter() - began
        return self._reducer.sum(partials, rare=what == _HESSIAN)


class MeanObjective:
    """Rank 0's `Oracle`: the mean of weighted losses + l2/2·‖w‖², the intercept free or absent.

    Parameters
    ----------
    team : Team
    outputs, features : int
    l2, l1 : float
    fit_intercept : bool
    diagonal : ndarray, shape (outputs · (features + 1),)
        A rough upper bound of the second derivatives of the mean loss.
    coarse_pays, sample_stride, steps_per_epoch
        See `Oracle` and `BatchOracle`.
    on_rows : callable
        Called after every evaluation with the share of the training rows that it went over.
    """

    def __init__(
        self,
        team: Team,
        outputs: int,
        features: int,
        *,
        l2: float,
        l1: float,
        fit_intercept: bool,
        diagonal: Array,
        coarse_pays: bool,
        sample_stride: int,
        steps_per_epoch: int,
        on_rows: Callable[[float], None],
    ) -> None:
        self._team, self._l2, self.l1 = team, l2, l1
        self._outputs, self.size = outputs, outputs * (features + 1)
        inner = np.ones((outputs, features + 1), bool)
        inner[:, -1] = False
        self.penalised = inner.reshape(-1)
        self._fixed = ~self.penalised if not fit_intercept else np.zeros(self.size, bool)
        self.diagonal = diagonal + np.where(self.penalised, l2, 0.0)
        self.coarse_pays, self.sample_stride, self.steps_per_epoch = coarse_pays, sample_stride, steps_per_epoch
        self._on_rows = on_rows

    def gradient(self, weights: Array, *, fine: bool = True, stride: int = 1) -> tuple[float, Array]:
        """See `Oracle.gradient`."""
        found = self._mean(weights, self._team.gradient(weights, fine=fine, stride=stride))
        self._on_rows(1.0 / stride)
        return found

    def batch(self, weights: Array, epoch: int, step: int) -> tuple[float, Array]:
        """See `BatchOracle.batch`."""
        found = self._mean(weights, self._team.batch(weights, epoch, step, self.steps_per_epoch))
        self._on_rows(1.0 / self.steps_per_epoch)
        return found

    def hessian(self, weights: Array, *, fine: bool = True, stride: int = 1) -> Array:
        """See `Oracle.hessian`."""
        vector = self._team.hessian(weights, fine=fine, stride=stride)
        width = self.size // self._outputs
        matrix = np.zeros((self.size, self.size))
        for k, triangle in enumerate(vector[HEAD:].reshape(self._outputs, -1) / vector[1]):
            one = np.zeros((width, width))
            one.reshape(-1)[lower_triangle(width)] = triangle
            matrix[k * width : (k + 1) * width, k * width : (k + 1) * width] = one + np.tril(one, -1).T
        matrix[np.diag_indices(self.size)] += np.where(self.penalised, self._l2, 0.0)
        matrix[self._fixed] = 0.0
        matrix[:, self._fixed] = 0.0
        matrix[self._fixed, self._fixed] = 1.0
        return matrix

    def _mean(self, weights: Array, vector: Array) -> tuple[float, Array]:
        total = max(float(vector[1]), 1e-300)
        inner = np.where(self.penalised, weights, 0.0)
        gradient = vector[HEAD:] / total + self._l2 * inner
        gradient[self._fixed] = 0.0
        return float(vector[0]) / total + 0.5 * self._l2 * float(inner @ inner), gradient
