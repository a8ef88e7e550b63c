"""Gradient descent on mini-batches: one update for each, or several of every lane's own before they are averaged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipelines.errors import TrainingError
from pipelines.training.gang.context import Array
from pipelines.training.optimisers.oracle import BatchOracle, LocalOracle, Outcome, State, Step, Watch
from pipelines.training.optimisers.rules import Rule, RuleName
from pipelines.training.optimisers.schedules import Schedule
from pipelines.training.optimisers.space import WHOLE, Space

_EXPLODED = 1e4
_PATIENCE = 3


@dataclass(frozen=True)
class Descent:
    """The settings of a descent.

    `tol`: stop when the mean loss of an epoch has not fallen by this share of itself for three epochs; 0 never.
    `reduce_every`: steps that each lane takes for itself before weights are averaged.
    """

    rule: RuleName = "sgd"
    epochs: int = 20
    learning_rate: float = 0.1
    schedule: Schedule = "cosine"
    power: float = 0.5
    warmup: int = 0
    momentum: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    tol: float = 1e-5
    reduce_every: int = 1

    def made(self, steps_per_epoch: int, l1: Array | None) -> Rule:
        """Build the rule of an update; `l1` is the 1-norm's factor for each weight."""
        return Rule(
            self.rule,
            self.learning_rate,
            self.epochs * steps_per_epoch,
            schedule=self.schedule,
            power=self.power,
            warmup=self.warmup,
            momentum=self.momentum,
            beta2=self.beta2,
            epsilon=self.epsilon,
            l1=l1,
        )


def descend(oracle: BatchOracle, start: State, watch: Watch, settings: Descent, *, space: Space = WHOLE) -> Outcome:
    """Go through the epochs from ``start["weights"]``, or go on from a state of an earlier call, inside its epoch.

    With ``reduce_every`` above 1 this is local SGD (Stich, 2019): every lane goes on from the common weights with its
    own mini-batches for so many steps, then weights and the rule's memory are averaged, by the lanes' rows' weight.
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


def stopped_falling(history: Sequence[float], tol: float) -> bool:
    """Say whether the epochs' mean loss has not fallen by the share `tol` of itself for three epochs; never with 0."""
    if not tol or len(history) <= _PATIENCE:
        return False
    before, recent = min(history[:-_PATIENCE]), min(history[-_PATIENCE:])
    return before - recent <= tol * abs(before)


def refuse_divergence(loss: float, first: float, when: str, remedy: str) -> None:
    """Raise `TrainingError` for a mean loss that is not finite, or ten thousand times the first one."""
    if not (np.isfinite(loss) and loss <= _EXPLODED * max(first, 1e-12)):
        raise TrainingError(
            f"the training diverged at {when}",
            expected=f"a mean loss near the first one, {first:.4g}, or below",
            found=f"{loss:.4g}",
            remedy=remedy,
        )


class _Run:
    """Weights, and the rule's memory of past gradients."""

    def __init__(self, oracle: BatchOracle, start: State, settings: Descent, space: Space) -> None:
        l1 = np.where(oracle.penalised, oracle.l1, 0.0) if oracle.l1 else None
        self._oracle, self._settings, self._space = oracle, settings, space
        self._rule = settings.made(oracle.steps_per_epoch, l1)
        self.weights = np.array(start["weights"], np.float64)
        self._memory = np.array(start.get("memory", np.zeros((self._rule.memories, len(self.weights)))))
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
        """Take one step, or one round of every lane's own steps."""
        count = min(self._settings.reduce_every, self._oracle.steps_per_epoch - self.step)
        if self._settings.reduce_every > 1:
            assert isinstance(self._oracle, LocalOracle)
            loss, weights, self._memory = self._oracle.local(self.weights, self._memory, self.epoch, self.step, count)
            self._check(loss)
            self.residual = self._space.largest(weights - self.weights) / count
            self.weights = weights
        else:
            loss, gradient = self._oracle.batch(self.weights, self.epoch, self.step)
            self._check(loss)
            self.residual = self._space.largest(gradient)
            self._rule.update(self.weights, self._memory, gradient, self.number)
        self.last = loss
        self._losses, self._count = self._losses + count * loss, self._count + count
        self.step += count

    def finish_epoch(self) -> bool:
        """Close the epoch; says whether the loss has stopped falling."""
        self.history.append(self._losses / max(self._count, 1))
        self.epoch, self.step, self._losses, self._count = self.epoch + 1, 0, 0.0, 0
        return stopped_falling(self.history, self._settings.tol)

    def report(self) -> Step:
        """Where it is."""
        return Step(self.number, self._losses / max(self._count, 1), self.residual, {"epoch": float(self.epoch)})

    def state(self) -> State:
        """All that is needed to go on."""
        return {
            "weights": self.weights.copy(),  # updated in place
            "memory": self._memory.copy(),
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
        remedy = f"Use a smaller learning_rate than {self._settings.learning_rate:g}, and scale the features."
        refuse_divergence(loss, self._first, f"step {self.number + 1}", remedy)
