"""What optimisers ask for, and what they answer.

An objective is F(w) = f(w) + l1·‖w‖₁ over the penalised weights, with f smooth. Weights are flat vectors of float64.
An optimiser's state is a dict of arrays and numbers, from which it goes on as if it had never stopped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

from pipelines.training.gang.context import Array

State: TypeAlias = dict[str, Any]


class Oracle(Protocol):
    """Answers for the whole dataset, wherever its rows are."""

    @property
    def size(self) -> int:
        """Number of weights, intercepts included."""
        ...

    @property
    def penalised(self) -> Array:
        """Which weights are penalised: bool, shape (size,)."""
        ...

    @property
    def l1(self) -> float:
        """Factor of the 1-norm."""
        ...

    @property
    def diagonal(self) -> Array:
        """A rough upper bound of the second derivatives' diagonal, positive, shape (size,)."""
        ...

    @property
    def coarse_pays(self) -> bool:
        """Whether the data are large enough for coarse arithmetic to save time worth its error."""
        ...

    @property
    def sample_stride(self) -> int:
        """Every how many blocks still make a sample worth starting from; 1: none."""
        ...

    def gradient(self, weights: Array, *, fine: bool = True, stride: int = 1) -> tuple[float, Array]:
        """Return f and its gradient; over every `stride`-th block only, and with coarse arithmetic unless `fine`."""
        ...


class CurvedOracle(Oracle, Protocol):
    """An oracle that knows second derivatives, too."""

    def hessian(self, weights: Array, *, fine: bool = True, stride: int = 1) -> Array:
        """Return the second derivatives of f, shape (size, size)."""
        ...


class BatchOracle(Protocol):
    """Answers for mini-batches: a pure function of weights, epoch and step."""

    @property
    def size(self) -> int: ...

    @property
    def penalised(self) -> Array: ...

    @property
    def l1(self) -> float: ...

    @property
    def steps_per_epoch(self) -> int:
        """Mini-batches in one epoch."""
        ...

    def batch(self, weights: Array, epoch: int, step: int) -> tuple[float, Array]:
        """Return the mini-batch's mean loss (with the l2 penalty) and its gradient."""
        ...


@runtime_checkable
class LocalOracle(BatchOracle, Protocol):
    """One whose lanes can go on for themselves."""

    def local(self, weights: Array, memory: Array, epoch: int, step: int, count: int) -> tuple[float, Array, Array]:
        """Let each lane take `count` steps of its own, and average; returns mean loss, weights and memory."""
        ...


@dataclass(frozen=True)
class Step:
    """Where an optimiser is: `number` counts steps (updates), `loss` is F, `residual` how far from a stationary point.

    The residual is the largest component of the gradient, with l1 of the smallest subgradient (the KKT residual).
    """

    number: int
    loss: float
    residual: float
    extra: dict[str, float] = field(default_factory=dict)


Watch: TypeAlias = Callable[[Step, Callable[[], State]], None]
"""Called after each step, with the step and a function that gives the state; may raise to leave."""


@dataclass(frozen=True)
class Outcome:
    """What an optimiser has found, and why it stopped.

    `history` holds F after each step. `converged` says whether `reason` is that the tolerance was met.
    """

    weights: Array
    loss: float
    residual: float
    steps: int
    reason: str
    converged: bool
    history: tuple[float, ...]


def steepest(weights: Array, gradient: Array, oracle: Oracle) -> Array:
    """Return the subgradient of F of the smallest norm (the pseudo-gradient of Andrew & Gao, 2007)."""
    if not oracle.l1:
        return gradient
    threshold = np.where(oracle.penalised, oracle.l1, 0.0)
    shrunk = np.sign(gradient) * np.maximum(np.abs(gradient) - threshold, 0)
    return np.where(weights == 0, shrunk, gradient + threshold * np.sign(weights))


def one_norm(weights: Array, oracle: Oracle) -> float:
    """Return l1·‖w‖₁ over the penalised weights."""
    return oracle.l1 * float(np.abs(weights[oracle.penalised]).sum()) if oracle.l1 else 0.0


def largest(vector: Array) -> float:
    """Return the largest absolute component, 0 for none."""
    return float(np.abs(vector).max(initial=0.0))
