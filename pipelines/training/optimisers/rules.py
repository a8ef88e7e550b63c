"""How do weights move along a gradient? One update of plain descent, momentum or Adam, wherever it is taken.

Momentum as in Sutskever et al. (2013), with Nesterov's look-ahead; Adam as Kingma & Ba (2015). The 1-norm enters as a
proximal (soft-threshold) step after each update.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from pipelines.training.gang.context import Array
from pipelines.training.optimisers.schedules import Schedule, rate

RuleName: TypeAlias = Literal["sgd", "momentum", "adam"]


@dataclass(frozen=True)
class Rule:
    """How an update is made: the rule, its step sizes, and the 1-norm.

    Parameters
    ----------
    total : int
        Updates of the whole training, which schedules run to.
    l1 : ndarray of float64, shape (weights,), optional
        The 1-norm's factor for each weight.
    """

    name: RuleName
    learning_rate: float
    total: int
    schedule: Schedule = "cosine"
    power: float = 0.5
    warmup: int = 0
    momentum: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    l1: Array | None = None

    @property
    def memories(self) -> int:
        """How many vectors a rule remembers: none, the velocity, or the velocity and the mean square."""
        return {"sgd": 0, "momentum": 1, "adam": 2}[self.name]

    def update(self, weights: Array, memory: Array, gradient: Array, number: int) -> None:
        """Make update `number` (from 0) in place.

        Parameters
        ----------
        weights, gradient : ndarray of float64, shape (weights,)
        memory : ndarray of float64, shape (memories, weights)
        """
        self.shrink(weights, self._move(weights, memory, gradient, number, self.rate(number)))

    def rate(self, number: int) -> float:
        """Return the step size of update `number`."""
        return rate(self.schedule, number, self.total, first=self.learning_rate, power=self.power, warmup=self.warmup)

    def shrink(self, weights: Array, scale: Array | float) -> None:
        """Take the 1-norm's proximal step in place, of the size `scale`."""
        if self.l1 is not None:
            weights[:] = np.sign(weights) * np.maximum(np.abs(weights) - self.l1 * scale, 0)

    def _move(self, weights: Array, memory: Array, gradient: Array, number: int, eta: float) -> Array | float:
        """Update the weights; returns the step size of each weight."""
        if self.name == "sgd":
            weights -= eta * gradient
            return eta
        velocity = memory[0]
        velocity *= self.momentum
        if self.name == "momentum":
            velocity += gradient
            weights -= eta * (gradient + self.momentum * velocity)
            return eta
        velocity += (1 - self.momentum) * gradient
        square, count = memory[1], number + 1
        square *= self.beta2
        square += (1 - self.beta2) * gradient**2
        mean = velocity / (1 - self.momentum**count)
        scale: Array = eta / (np.sqrt(square / (1 - self.beta2**count)) + self.epsilon)
        weights -= scale * mean
        return scale
