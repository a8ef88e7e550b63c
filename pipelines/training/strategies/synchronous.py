"""Synchronous gradient descent: one rank leads, all compute, nobody goes on before all have answered.

Rank 0 runs the optimiser and takes every decision. For each evaluation it broadcasts an order (what to compute, at
which weights); every rank computes it on its lanes; the lanes' results are added by a `Reducer`.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from pipelines.training.batches import LaneStream
from pipelines.training.gang import Collective, Regroup, StopRequested
from pipelines.training.gang.context import Array
from pipelines.training.holding import Holding
from pipelines.training.passes import HEAD, Passes, lower_triangle
from pipelines.training.reducers import ReproducibleSum
from pipelines.training.strategies.compression import Compression
from pipelines.training.strategies.local_steps import LocalSteps, Run
from pipelines.training.strategies.penalty import Penalty

_ORDER = struct.Struct("<BBIQQQQdB")
PACE_S = 1.0
"""Between two words of the ranks about their pace."""
_GRADIENT, _HESSIAN, _BATCH, _LOCAL, _KEEP, _COLLECT, _END, _STOP, _REGROUP = range(9)


class _Order(NamedTuple):
    """What all do next. `number` is the optimiser's step; `epoch`, `step` and `steps` say which mini-batch, `stride` of
    how many (local steps); `width` is that of a loss's smoothing. With `tell` each tells its pace afterwards.
    """

    what: int
    fine: bool = False
    stride: int = 1
    epoch: int = 0
    step: int = 0
    steps: int = 0
    number: int = 0
    width: float = 0.0
    tell: bool = False


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
    penalty : Penalty
    compression : Compression, optional
        How vectors of mini-batches are sent.
    l1 : float
    """

    def __init__(
        self,
        collective: Collective,
        passes: Passes,
        streams: Mapping[int, LaneStream],
        features: int,
        held: Holding,
        penalty: Penalty,
        compression: Compression | None = None,
        l1: float = 0.0,
    ) -> None:
        self._collective, self._passes, self._streams, self.held = collective, passes, streams, held
        self.penalty, self._compression = penalty, compression
        self.l1 = np.where(penalty.penalised, l1, 0.0) if l1 else None
        self.local_steps: LocalSteps | None = None
        self._shape = (passes.loss.outputs, features + 1)
        self._reducer = ReproducibleSum(collective)
        self.number = 0
        """The step that rank 0's optimiser is at work on."""
        self.width = 0.0
        """Of a loss's smoothing: rank 0 sets it, and every order carries it."""
        self.compute_s = 0.0
        self.pace: Callable[[int, float], None] = _untold
        """Told now and then, by all ranks after the same order, how many there were and how long this one computed."""
        self._orders, self._told_at = 0, time.monotonic()

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

    def local(self, weights: Array, memory: Array, epoch: int, step: int, count: int, steps: int) -> Array:
        """Let all lanes take `count` steps of their own; returns sums of what `LocalSteps.take` gives."""
        order = _Order(_LOCAL, stride=count, epoch=epoch, step=step, steps=steps, number=self.number)
        return self._do(order, np.concatenate([weights[None], memory]))

    def lane_state(self) -> dict[str, Any]:
        """Bring what ranks keep for their lanes to rank 0, as a part of the training's state."""
        if self._compression is None:
            return {}
        self._collective.broadcast(_ORDER.pack(*_Order(_COLLECT)))
        errors = self._compression.collect()
        assert errors is not None
        numbers = sorted(errors)
        return {"lanes": numbers, "lane_errors": np.array([errors[number] for number in numbers])} if errors else {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what a state has for this rank's lanes."""
        if self._compression is not None and "lanes" in state:
            errors = dict(zip(state["lanes"], state["lane_errors"], strict=True))
            self._compression.restore(errors, list(self._passes.lanes))

    @property
    def keeps_lanes(self) -> bool:
        """Whether ranks keep a state for their lanes, which is lost with them."""
        return self._compression is not None

    @property
    def traffic(self) -> dict[str, int]:
        """Bytes that this rank has sent of compressed vectors, and what plain ones would have been."""
        if self._compression is None:
            return {}
        return {"sent_bytes": self._compression.sent_bytes, "plain_bytes": self._compression.plain_bytes}

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
            elif order.what == _COLLECT:
                assert self._compression is not None
                self._compression.collect()
            else:
                self._answer(order, np.frombuffer(message, np.float64, offset=_ORDER.size))

    def _do(self, order: _Order, weights: Array) -> Array:
        now = time.monotonic()
        tell = now - self._told_at >= PACE_S
        self._told_at = now if tell else self._told_at
        order = order._replace(width=self.width, tell=tell)
        self._collective.broadcast(_ORDER.pack(*order) + weights.tobytes())
        total = self._answer(order, weights)
        assert total is not None
        return total

    def _answer(self, order: _Order, weights: Array) -> Array | None:
        self.held.hear(order.number)
        self._passes.sharpen(order.width)
        began = time.perf_counter()
        if order.what == _LOCAL:
            assert self.local_steps is not None
            run = Run(order.epoch, order.step, order.steps, order.stride, order.number)
            partials = self.local_steps.take(weights.reshape(-1, self.penalty.penalised.size), run)
        elif order.what == _GRADIENT:
            partials = self._passes.gradient(
                weights.reshape(self._shape), fine=bool(order.fine), stride=order.stride
            )  # fmt: skip
        elif order.what == _HESSIAN:
            partials = self._passes.hessian(weights.reshape(self._shape), fine=bool(order.fine), stride=order.stride)
        else:
            partials = self._passes.batch(
                weights.reshape(self._shape), self._streams, order.epoch, order.step, order.steps
            )  # fmt: skip
        self.compute_s += time.perf_counter() - began
        self._orders += 1
        if order.tell:
            self.pace(self._orders, self.compute_s)
        if self._compression is None or order.what not in (_BATCH, _LOCAL):
            return self._reducer.sum(partials)
        head = self._reducer.sum(partials[:, :HEAD])
        rest = self._compression.sum(list(self._passes.lanes), np.ascontiguousarray(partials[:, HEAD:]))
        return None if head is None or rest is None else np.concatenate([head, rest])


class MeanObjective:
    """Rank 0's `Oracle`: the mean of weighted losses + l2/2·‖w‖², the intercept free or absent.

    Parameters
    ----------
    team : Team
    penalty : Penalty
    l1 : float
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
        penalty: Penalty,
        *,
        l1: float,
        diagonal: Array,
        coarse_pays: bool,
        sample_stride: int,
        steps_per_epoch: int,
        on_rows: Callable[[float], None],
    ) -> None:
        self._team, self._penalty, self.l1 = team, penalty, l1
        self.penalised = penalty.penalised
        self.size = len(self.penalised)
        self.diagonal = diagonal + np.where(self.penalised, penalty.l2, 0.0)
        self.coarse_pays, self.sample_stride, self.steps_per_epoch = coarse_pays, sample_stride, steps_per_epoch
        self._on_rows = on_rows

    def gradient(self, weights: Array, *, fine: bool = True, stride: int = 1) -> tuple[float, Array]:
        """See `Oracle.gradient`."""
        found = self._penalty.mean(weights, self._team.gradient(weights, fine=fine, stride=stride))
        self._on_rows(1.0 / stride)
        return found

    def batch(self, weights: Array, epoch: int, step: int) -> tuple[float, Array]:
        """See `BatchOracle.batch`."""
        found = self._penalty.mean(weights, self._team.batch(weights, epoch, step, self.steps_per_epoch))
        self._on_rows(1.0 / self.steps_per_epoch)
        return found

    def local(self, weights: Array, memory: Array, epoch: int, step: int, count: int) -> tuple[float, Array, Array]:
        """See `LocalOracle.local`."""
        vector = self._team.local(weights, memory, epoch, step, count, self.steps_per_epoch)
        self._on_rows(count / self.steps_per_epoch)
        total = max(float(vector[1]), 1e-300)
        moved = np.concatenate([weights[None], memory]) + vector[HEAD:].reshape(-1, self.size) / total
        return float(vector[0]) / total, moved[0], moved[1:]

    def hessian(self, weights: Array, *, fine: bool = True, stride: int = 1) -> Array:
        """See `CurvedOracle.hessian`."""
        vector = self._team.hessian(weights, fine=fine, stride=stride)
        outputs = self._penalty.outputs
        width = self.size // outputs
        matrix = np.zeros((self.size, self.size))
        for k, triangle in enumerate(vector[HEAD:].reshape(outputs, -1) / vector[1]):
            one = np.zeros((width, width))
            one.reshape(-1)[lower_triangle(width)] = triangle
            matrix[k * width : (k + 1) * width, k * width : (k + 1) * width] = one + np.tril(one, -1).T
        matrix[np.diag_indices(self.size)] += np.where(self.penalised, self._penalty.l2, 0.0)
        fixed = self._penalty.fixed
        matrix[fixed] = 0.0
        matrix[:, fixed] = 0.0
        matrix[fixed, fixed] = 1.0
        return matrix


def _untold(orders: int, seconds: float) -> None:
    """Nobody wants to know."""
