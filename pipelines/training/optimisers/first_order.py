"""Gradient descent on mini-batches: plain, with momentum, and Adam.

Momentum as in Sutskever et al. (2013), with Nesterov's look-ahead; Adam as Kingma & Ba (2015). The 1-norm enters as a
proximal (soft-threshold) step after each update.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from pipelines.errors import TrainingError
from pipelines.training.gang.context import Array
from pipelines.training.optimisers.oracle import BatchOracle, Outcome, State, Step, Watch
from pipelines.training.optimisers.schedules import Schedule, rate
from pipelines.training.optimisers.space import WHOLE, Space

Rule: TypeAlias = Literal["sgd", "momentum", "adam"]

_EXPLODED = 1e4
_PATIENCE = 3


@dataclass(frozen=True)
class Descent:
    """The settings of a descent.

    `tol`: stop when the mean loss of an epoch has not fallen by this share of itself for three epochs; 0 never.
    """

    rule: Rule = "sgd"
    epochs: int = 20
    learning_rate: float = 0.1
    schedule: Schedule = "cosine"
    power: float = 0.5
    warmup: int = 0
    momentum: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    tol: float = 1e-5


def descend(oracle: BatchOracle, start: State, watch: Watch, settings: Descent, *, space: Space = WHOLE) -> Outcome:
    """Go through the epochs from ``start["weights"]``, or go on from a state of an earlier call, inside its epoch.

    Vectors may be parts of whole ones, on as many processes as `space` speaks for: all call this together.

    Raises
    ------
    TrainingError
        The loss is not finite any more, or has grown ten-thousandfold.
    """
    run = _Run(oracle, start, settings, space)
    reason = "max_iter"
    while run.epoch < settings.epochs:
        while run.step < oracle.steps_per_epoch:
            run.update()
            watch(run.report(), run.state)
        if run.finish_epoch():
            reason = "tolerance"
            break
    history = tuple(run.history)
    return Outcome(run.weights, run.last, run.residual, run.number, reason, reason == "tolerance", history)


class _Run:
    """Weights, and the rule's memory of past gradients."""

    def __init__(self, oracle: BatchOracle, start: State, settings: Descent, space: Space) -> None:
        self._oracle, self._settings, self._space = oracle, settings, space
        self.weights = np.array(start["weights"], np.float64)
        self._velocity = np.array(start.get("velocity", np.zeros_like(self.weights)))
        self._square = np.array(start.get("square", np.zeros_like(self.weights)))
        self.epoch, self.step = int(start.get("epoch", 0)), int(start.get("step", 0))
        self._losses, self._count = float(start.get("losses", 0.0)), int(start.get("count", 0))
        self._first = float(start.get("first", np.nan))
        self.history = [float(value) for value in start.get("history", [])]
        self.last, self.residual = float(start.get("last", np.nan)), np.inf

    @property
    def number(self) -> int:
        """Updates so far."""
        return self.epoch * self._oracle.steps_per_epoch + self.step

    def update(self) -> None:
        """Take one step."""
        s = self._settings
        total = s.epochs * self._oracle.steps_per_epoch
        eta = rate(s.schedule, self.number, total, first=s.learning_rate, power=s.power, warmup=s.warmup)
        loss, gradient = self._oracle.batch(self.weights, self.epoch, self.step)
        self._check(loss)
        self.last, self.residual = loss, self._space.largest(gradient)
        self._losses, self._count = self._losses + loss, self._count + 1
        eta_of_weights = self._move(gradient, eta)
        if self._oracle.l1:
            reach = np.where(self._oracle.penalised, self._oracle.l1 * eta_of_weights, 0.0)
            self.weights = np.sign(self.weights) * np.maximum(np.abs(self.weights) - reach, 0)
        self.step += 1

    def _move(self, gradient: Array, eta: float) -> Array | float:
        """Update the weights; returns the step size of each weight."""
        s = self._settings
        if s.rule == "sgd":
            self.weights -= eta * gradient
            return eta
        self._velocity = s.momentum * self._velocity + (
            gradient if s.rule == "momentum" else (1 - s.momentum) * gradient
        )
        if s.rule == "momentum":
            self.weights -= eta * (gradient + s.momentum * self._velocity)
            return eta
        self._square = s.beta2 * self._square + (1 - s.beta2) * gradient**2
        count = self.number + 1
        mean = self._velocity / (1 - s.momentum**count)
        scale: Array = eta / (np.sqrt(self._square / (1 - s.beta2**count)) + s.epsilon)
        self.weights -= scale * mean
        return scale

    def finish_epoch(self) -> bool:
        """Close the epoch; says whether the loss has stopped falling."""
        self.history.append(self._losses / max(self._count, 1))
        self.epoch, self.step, self._losses, self._count = self.epoch + 1, 0, 0.0, 0
        if not self._settings.tol or len(self.history) <= _PATIENCE:
            return False
        before, recent = min(self.history[:-_PATIENCE]), min(self.history[-_PATIENCE:])
        return before - recent <= self._settings.tol * abs(before)

    def report(self) -> Step:
        """Where it is."""
        return Step(self.number, self._losses / max(self._count, 1), self.residual, {"epoch": float(self.epoch)})

    def state(self) -> State:
        """All that is needed to go on."""
        return {
            "weights": self.weights.copy(),  # updated in place
            "velocity": self._velocity,
            "square": self._square,
            "epoch": self.epoch,
            "step": self.step,
            "losses": self._losses,
            "count": self._count,
            "first": self._first,
            "history": list(self.history),
            "last": self.last,
        }

    def _check(self, loss: float) -> None:
        if np.isnan(self._first):
            self._first = loss
        if np.isfinite(loss) and loss <= _EXPLODED * max(self._first, 1e-12):
            return
        raise TrainingError(
            f"the training diverged at step {self.number + 1}",
            expected=f"a mean loss near the first one, {self._first:.4g}, or below",
            found=f"{loss:.4g}",
            remedy=f"Use a smaller learning_rate than {self._settings.learning_rate:g}, and scale the features.",
        )
