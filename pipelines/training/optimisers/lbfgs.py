"""Quasi-Newton methods with limited memory: L-BFGS, and OWL-QN for the 1-norm.

Nocedal & Wright, Numerical Optimization (2006), algorithm 7.4 and 7.5; Andrew & Gao, "Scalable training of
L1-regularized log-linear models" (2007). Departures: the first Hessian is the oracle's diagonal, scaled; steps are
accepted by the approximate Wolfe condition too; and where it pays the first steps use the oracle's coarse arithmetic,
until the gradient has fallen to `COARSE` of its first size or no step is found.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipelines.training.gang.context import Array
from pipelines.training.optimisers.oracle import Oracle, Outcome, State, Step, Watch, steepest
from pipelines.training.optimisers.search import SUFFICIENT, wolfe
from pipelines.training.optimisers.space import WHOLE, Space

MEMORY = 10
COARSE = 1e-4
_NOISE = {False: 1e-6, True: 1e-13}
_PATIENCE = 20
"""After so many steps that lower neither value nor residual, rounding errors are all that is left."""


@dataclass
class _Point:
    weights: Array
    smooth: float
    value: float
    gradient: Array
    direction_of_descent: Array
    residual: float


def lbfgs(oracle: Oracle, start: State, watch: Watch, *, tol: float, max_iter: int, space: Space = WHOLE) -> Outcome:
    """Minimise F from ``start["weights"]``, or go on from a state of an earlier call.

    Stops when the residual is at most `tol`, after `max_iter` steps, or where rounding errors leave no descent.
    Vectors may be parts of whole ones, on as many processes as `space` speaks for: all call this together.
    """
    return _Run(oracle, start, watch, space).minimise(tol, max_iter)


class _Run:
    """One minimisation: the point it is at, and the pairs that stand for the Hessian."""

    def __init__(self, oracle: Oracle, start: State, watch: Watch, space: Space) -> None:
        self._oracle, self._watch, self._space = oracle, watch, space
        self._fine = bool(start.get("fine", not oracle.coarse_pays))
        self._steps = int(start.get("steps", 0))
        self._history = [float(value) for value in start.get("history", [])]
        self._first = float(start.get("first", 0.0))
        self._s = list(np.asarray(start["s"])) if "s" in start else []
        self._y = list(np.asarray(start["y"])) if "y" in start else []
        self._at = self._look(np.asarray(start["weights"], np.float64))
        self._first = self._first or self._at.residual
        self._best_value = float(start.get("best_value", self._at.value))
        self._best_residual = float(start.get("best_residual", self._at.residual))
        self._idle = int(start.get("idle", 0))

    def minimise(self, tol: float, max_iter: int) -> Outcome:
        while True:
            if self._at.residual <= max(tol, 0 if self._fine else COARSE * self._first) and not self._refine(tol):
                return self._outcome("tolerance", converged=True)
            if self._steps >= max_iter:
                return self._outcome("max_iter", converged=False)
            if (self._idle >= _PATIENCE or not self._advance()) and not self._refine(tol, force=True):
                return self._outcome("precision", converged=self._at.residual <= tol)

    def _refine(self, tol: float, *, force: bool = False) -> bool:
        """Go on with fine arithmetic, if there is more to do; without it, once forget the pairs."""
        if not self._fine:
            self._fine = True
            self._at = self._look(self._at.weights)
            self._best_value, self._best_residual, self._idle = self._at.value, self._at.residual, 0
            return force or self._at.residual > tol
        if force and self._s:
            self._s, self._y = [], []
            return self._idle < _PATIENCE
        return False

    def _advance(self) -> bool:
        at = self._at
        direction = self._direction(at)
        slope = self._dot(direction, at.direction_of_descent)
        if slope >= 0:
            self._s, self._y = [], []
            direction = -at.direction_of_descent / self._oracle.diagonal
            slope = self._dot(direction, at.direction_of_descent)
        if slope == 0:
            return False
        following = self._search_orthant(at, direction) if self._oracle.l1 else self._search(at, direction, slope)
        if following is None:
            return False
        self._remember(following.weights - at.weights, following.gradient - at.gradient)
        self._at = following
        self._note_progress(following)
        self._steps += 1
        self._history.append(following.value)
        self._watch(Step(self._steps, following.value, following.residual), self._state)
        return True

    def _note_progress(self, at: _Point) -> None:
        noise = _NOISE[self._fine] * abs(self._best_value)
        if at.value < self._best_value - noise or at.residual < 0.9 * self._best_residual:
            self._best_value, self._best_residual, self._idle = at.value, at.residual, 0
        else:
            self._idle += 1

    def _search(self, at: _Point, direction: Array, slope: float) -> _Point | None:
        tried: dict[float, _Point] = {}

        def evaluate(step: float) -> tuple[float, float]:
            tried[step] = point = self._look(at.weights + step * direction)
            return point.value, self._dot(point.gradient, direction)

        noise = _NOISE[self._fine] * max(abs(at.value), 1e-300)
        step = wolfe(evaluate, at.value, slope, noise=noise)
        return None if step is None else tried[step]

    def _search_orthant(self, at: _Point, direction: Array) -> _Point | None:
        """Go back along the direction, projected onto the orthant that the descent points into."""
        descent = at.direction_of_descent
        # A direction may not leave the orthant of steepest descent (Andrew & Gao, eq. 5).
        direction = np.where(self._oracle.penalised & (direction * descent >= 0), 0.0, direction)
        orthant = np.where(at.weights == 0, -np.sign(descent), np.sign(at.weights))
        noise = _NOISE[self._fine] * max(abs(at.value), 1e-300)
        step = 1.0
        for _ in range(30):
            weights = at.weights + step * direction
            weights = np.where(self._oracle.penalised & (np.sign(weights) != orthant), 0.0, weights)
            promised = self._dot(descent, weights - at.weights)
            point = self._look(weights)
            if point.value <= at.value + SUFFICIENT * promised and promised < 0:
                return point
            if self._fine and abs(point.value - at.value) <= noise and point.residual < 0.9 * at.residual:
                return point
            step /= 2
        return None

    def _direction(self, at: _Point) -> Array:
        """Multiply the steepest descent with the inverse Hessian's approximation."""
        pairs = list(zip(self._s, self._y, strict=True))
        return self._space.direction(at.direction_of_descent, pairs, self._oracle.diagonal)

    def _remember(self, s: Array, y: Array) -> None:
        both, of_s, of_y = self._space.dots([(s, y), (s, s), (y, y)])
        if both > 1e-12 * float(np.sqrt(of_s * of_y)):
            self._s = [*self._s, s][-MEMORY:]
            self._y = [*self._y, y][-MEMORY:]

    def _look(self, weights: Array) -> _Point:
        smooth, gradient = self._oracle.gradient(weights, fine=self._fine)
        value = smooth
        if self._oracle.l1:
            value += self._oracle.l1 * self._space.one_norm(weights, self._oracle.penalised)
        descent = steepest(weights, gradient, self._oracle)
        return _Point(weights, smooth, value, gradient, descent, self._space.largest(descent))

    def _dot(self, one: Array, other: Array) -> float:
        return self._space.dots([(one, other)])[0]

    def _state(self) -> State:
        pairs = {"s": np.array(self._s), "y": np.array(self._y)} if self._s else {}
        best = {"best_value": self._best_value, "best_residual": self._best_residual, "idle": self._idle}
        numbers = {"fine": self._fine, "steps": self._steps, "first": self._first, **best}
        return {"weights": self._at.weights, "history": list(self._history), **pairs, **numbers}

    def _outcome(self, reason: str, *, converged: bool) -> Outcome:
        at = self._at
        return Outcome(at.weights, at.value, at.residual, self._steps, reason, converged, tuple(self._history))
