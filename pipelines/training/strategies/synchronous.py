"""Synchronous gradient descent: one rank leads, all compute, nobody goes on before all have answered.

Rank 0 runs the optimiser and takes every decision. For each evaluation it broadcasts an order (what to compute, at
which weights); every rank computes it on its lanes; the lanes' results are added by a `Reducer`.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from pipelines.training.batches import LaneStream
from pipelines.training.gang import Collective, Regroup, StopRequested
from pipelines.training.gang.context import Array
from pipelines.training.holding import Holding
from pipelines.training.passes import HEAD, Passes, lower_triangle
from pipelines.training.reducers import ReproducibleSum

_ORDER = struct.Struct("<BBIQQQQ")
_GRADIENT, _HESSIAN, _BATCH, _KEEP, _END, _STOP, _REGROUP = range(7)


class _Order(NamedTuple):
    """What all do next. `number` is the optimiser's step; `epoch`, `step` and `steps` say which mini-batch."""

    what: int
    fine: bool = False
    stride: int = 1
    epoch: int = 0
    step: int = 0
    steps: int = 0
    number: int = 0


class Team:
    """All ranks, as each of them sees them: rank 0 gives orders, the others `follow`.

    Parameters
    ----------
    collective : Collective
    passes : Passes
        Over this rank's lanes.
    streams : mapping of int to LaneStream
        The same lanes, for mini-batches.
    features : int
    held : Holding
        Where each rank keeps the newest state that it is told of.
    """

    def __init__(
        self,
        collective: Collective,
        passes: Passes,
        streams: Mapping[int, LaneStream],
        features: int,
        held: Holding,
    ) -> None:
        self._collective, self._passes, self._streams, self.held = collective, passes, streams, held
        self._shape = (passes.loss.outputs, features + 1)
        self._reducer = ReproducibleSum(collective)
        self.number = 0
        """The step that rank 0's optimiser is at work on."""
        self.compute_s = 0.0

    @property
    def alone(self) -> bool:
        """Whether there is nobody else."""
        return self._collective.size == 1

    def gradient(self, weights: Array, *, fine: bool, stride: int) -> Array:
        """Sum what `Passes.gradient` does, over all lanes."""
        return self._do(_Order(_GRADIENT, fine, stride, number=self.number), weights)

    def hessian(self, weights: Array, *, fine: bool, stride: int) -> Array:
        """Sum what `Passes.hessian` does, over all lanes."""
        return self._do(_Order(_HESSIAN, fine, stride, number=self.number), weights)

    def batch(self, weights: Array, epoch: int, step: int, steps: int) -> Array:
        """Sum what `Passes.batch` does, over all lanes."""
        return self._do(_Order(_BATCH, False, 1, epoch, step, steps, self.number), weights)

    def keep(self, step: int, state: bytes) -> None:
        """Give everybody the training's state after `step`, so that any of them can go on from it."""
        self._collective.broadcast(_ORDER.pack(*_Order(_KEEP, number=step)) + state)
        self.held.keep(step, state)

    def end(self) -> None:
        """Tell all that the work is done."""
        self._collective.broadcast(_ORDER.pack(*_Order(_END)))

    def stop(self) -> None:
        """Make all leave for good, as somebody has asked; raises ``StopRequested``."""
        self._collective.broadcast(_ORDER.pack(*_Order(_STOP)))
        raise StopRequested

    def regroup(self) -> None:
        """Make all leave for a new formation; raises ``Regroup``."""
        self._collective.broadcast(_ORDER.pack(*_Order(_REGROUP)))
        raise Regroup

    def follow(self) -> None:
        """Compute what rank 0 orders until it says that the work is done.

        Raises
        ------
        StopRequested, Regroup
            When all leave.
        """
        while True:
            message = self._collective.broadcast(None)
            order = _Order(*_ORDER.unpack_from(message))
            if order.what == _END:
                return
            if order.what == _STOP:
                raise StopRequested
            if order.what == _REGROUP:
                raise Regroup
            if order.what == _KEEP:
                self.held.keep(order.number, message[_ORDER.size :])
            else:
                self._answer(order, np.frombuffer(message, np.float64, offset=_ORDER.size))

    def _do(self, order: _Order, weights: Array) -> Array:
        self._collective.broadcast(_ORDER.pack(*order) + weights.tobytes())
        total = self._answer(order, weights)
        assert total is not None
        return total

    def _answer(self, order: _Order, weights: Array) -> Array | None:
        weights = weights.reshape(self._shape)
        self.held.hear(order.number)
        began = time.perf_counter()
        if order.what == _GRADIENT:
            partials = self._passes.gradient(weights, fine=bool(order.fine), stride=order.stride)
        elif order.what == _HESSIAN:
            partials = self._passes.hessian(weights, fine=bool(order.fine), stride=order.stride)
        else:
            partials = self._passes.batch(weights, self._streams, order.epoch, order.step, order.steps)
        self.compute_s += time.perf_counter() - began
        return self._reducer.sum(partials)


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
        self.size = outputs * (features + 1)
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
        width = self.size
        matrix = np.zeros((width, width))
        matrix.reshape(-1)[lower_triangle(width)] = vector[HEAD:] / vector[1]
        matrix += np.tril(matrix, -1).T
        matrix[np.diag_indices(width)] += np.where(self.penalised, self._l2, 0.0)
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
