"""Newton's method for few weights, and its proximal form for the 1-norm.

The first steps are taken on a sample of the blocks. Their last Hessian serves the full data for as long as it makes the
residual shrink fast (a chord method): after a start within the sample's error of the optimum, two or three gradients of
the full data end the work. The stopping test is on the full data always. Where it pays, gradients far above the noise
of coarse arithmetic are computed in it.

Proximal Newton: Lee, Sun & Saunders, SIAM J. Optim. 24 (2014). The quadratic subproblem is solved by coordinate
descent, and exactly once the signs have settled.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from pipelines.training.gang.context import Array
from pipelines.training.optimisers.oracle import CurvedOracle, Outcome, State, Step, Watch, largest, one_norm, steepest

SUFFICIENT = 1e-4
SHRINK = 0.25
"""A Hessian is kept for the next step when the residual shrank at least to this share."""
COARSE = 1e-4
"""Residuals above this share of the first one are far above the noise of coarse arithmetic."""
STALLS, NEAR = 0.5, 1e-2
"""Coarse arithmetic is left where the residual is below this share of the first one and hardly shrinks any more: large
weights that cancel, as those of collinear features do, make its noise much larger than usual."""
_SAMPLE_STEPS = 12
_SAMPLE_SHRINK = 0.02
"""What the sample's Hessian is expected to leave of the full data's residual."""
_NOISE = {False: 1e-6, True: 1e-12}


@dataclass(frozen=True, eq=False)
class _Point:
    weights: Array
    value: float
    gradient: Array
    residual: float
    fine: bool


def newton(oracle: CurvedOracle, start: State, watch: Watch, *, tol: float, max_iter: int) -> Outcome:
    """Minimise F from ``start["weights"]``, or go on from a state of an earlier call.

    Stops when the residual is at most `tol`, after `max_iter` steps on the full data, or where rounding errors leave
    no descent.
    """
    return _Run(oracle, start, watch).minimise(tol, max_iter)


class _Run:
    """One minimisation; `_hessian` may be older than the point, `_fresh` says that it is not."""

    def __init__(self, oracle: CurvedOracle, start: State, watch: Watch) -> None:
        self._oracle, self._watch = oracle, watch
        self._steps = int(start.get("steps", 0))
        self._history = [float(value) for value in start.get("history", [])]
        self._hessian: Array | None = None
        self._hessian_at: tuple[Array, int] | None = None  # weights and stride that it is of: enough to have it again
        self._fresh = False
        self._weights = np.asarray(start["weights"], np.float64)
        self._first = float(start.get("first", 0.0))
        self._fine = bool(start.get("fine", not oracle.coarse_pays))
        self._at_fine = bool(start["at_fine"]) if "at_fine" in start else None
        self._shrink = float(start.get("shrink", SHRINK))  # what the last step left of the residual
        if "hessian_at" in start:
            self._compute_hessian(np.asarray(start["hessian_at"], np.float64), int(start["hessian_stride"]))

    def minimise(self, tol: float, max_iter: int) -> Outcome:
        if self._oracle.sample_stride > 1 and not self._steps:
            self._warm_up()
        fine = self._is_fine(self._first, tol) if self._at_fine is None else self._at_fine
        at = self._look(self._weights, fine=fine)
        self._first = self._first or at.residual
        while at.residual > tol:
            if self._steps >= max_iter:
                return self._outcome(at, "max_iter", converged=False)
            following = self._step(at, stride=1, fine=self._is_fine(self._shrink * at.residual, tol))
            if following is None and not at.fine:
                self._fine = True
                at = self._look(at.weights, fine=True)
                continue
            if following is None:
                return self._outcome(at, "precision", converged=False)
            self._shrink = following.residual / at.residual
            if self._shrink > SHRINK:
                self._hessian = self._hessian_at = None
            if self._shrink > STALLS and at.residual < NEAR * self._first and not at.fine:
                self._fine = True
            at = following
            self._fresh = False
            self._weights, self._at_fine = at.weights, at.fine
            self._steps += 1
            self._history.append(at.value)
            self._watch(Step(self._steps, at.value, at.residual), self._state)
        return self._outcome(at, "tolerance", converged=True)

    def _warm_up(self) -> None:
        """Minimise over a sample, coarsely; leaves its Hessian near its optimum."""
        stride = self._oracle.sample_stride
        at = self._look(self._weights, fine=False, stride=stride)
        self._first = at.residual
        for _ in range(_SAMPLE_STEPS):
            if at.residual <= 1e-4 * self._first:
                break
            self._hessian = None
            following = self._step(at, stride=stride, fine=False)
            if following is None:
                break
            at, self._fresh = following, False
        self._weights = at.weights
        self._shrink = _SAMPLE_SHRINK

    def _is_fine(self, residual: float, tol: float) -> bool:
        """Whether a point takes fine arithmetic that is expected to have this residual, or `tol` if that is larger."""
        return self._fine or max(residual, tol) <= COARSE * self._first

    def _step(self, at: _Point, *, stride: int, fine: bool) -> _Point | None:
        """Take one step that decreases F; None when rounding errors leave none, or may be what leaves none."""
        while True:
            if self._hessian is None:
                self._compute_hessian(at.weights, stride)
                self._fresh = True
            assert self._hessian is not None
            direction = self._solve(at, self._hessian)
            following = self._search(at, direction, stride, fine, tries=40 if self._fresh else 1)
            if following is not None or self._fresh or not at.fine:
                return following
            self._hessian = None

    def _compute_hessian(self, weights: Array, stride: int) -> None:
        self._hessian = self._oracle.hessian(weights, fine=stride == 1, stride=stride)
        self._hessian_at = weights, stride

    def _search(self, at: _Point, direction: Array, stride: int, fine: bool, tries: int) -> _Point | None:
        promised = self._promised(at, direction)
        if not promised < 0:
            return None
        step, noise = 1.0, _NOISE[at.fine and fine] * abs(at.value)
        for _ in range(tries):
            found = self._look(at.weights + step * direction, fine=fine, stride=stride)
            if found.value <= at.value + SUFFICIENT * step * promised:
                return found
            # Differences of values drown in rounding errors before gradients do.
            if found.value <= at.value + noise and found.residual < 0.5 * at.residual:
                return found
            step /= 2
        return None

    def _promised(self, at: _Point, direction: Array) -> float:
        """Return gᵀd + l1·(‖w + d‖₁ - ‖w‖₁), term by term: near the optimum the two sums cancel."""
        whole = at.weights + direction
        threshold = np.where(self._oracle.penalised, self._oracle.l1, 0.0)
        kept = np.sign(whole) == np.sign(at.weights)
        slope = at.gradient + np.where(kept, threshold * np.sign(at.weights), 0.0)
        changed = np.where(kept, 0.0, threshold * (np.abs(whole) - np.abs(at.weights)))
        return float(np.sum(slope * direction + changed))

    def _solve(self, at: _Point, hessian: Array) -> Array:
        if self._oracle.l1:
            return proximal_step(
                hessian, at.gradient, at.weights, np.where(self._oracle.penalised, self._oracle.l1, 0.0)
            )
        return _solved(hessian, -at.gradient)

    def _look(self, weights: Array, *, fine: bool, stride: int = 1) -> _Point:
        smooth, gradient = self._oracle.gradient(weights, fine=fine, stride=stride)
        residual = largest(steepest(weights, gradient, self._oracle))
        return _Point(weights, smooth + one_norm(weights, self._oracle), gradient, residual, fine)

    def _state(self) -> State:
        """All that is needed to go on as if nothing had happened; the Hessian by where it was taken."""
        numbers = {"steps": self._steps, "first": self._first, "fine": self._fine, "at_fine": self._at_fine}
        state = {"weights": self._weights, "history": list(self._history), "shrink": self._shrink, **numbers}
        if self._hessian_at is not None:
            weights, stride = self._hessian_at
            state |= {"hessian_at": weights, "hessian_stride": stride}
        return state

    def _outcome(self, at: _Point, reason: str, *, converged: bool) -> Outcome:
        return Outcome(at.weights, at.value, at.residual, self._steps, reason, converged, tuple(self._history))


def newton_step(hessian: Array, gradient: Array) -> Array:
    """Return the step that Newton's method takes without a 1-norm."""
    return _solved(hessian, -gradient)


def proximal_step(hessian: Array, gradient: Array, weights: Array, thresholds: Array) -> Array:
    """Minimise gᵀd + dᵀHd/2 + Σ thresholds·|w + d| over d.

    Parameters
    ----------
    hessian : ndarray, shape (n, n)
    gradient, weights, thresholds : ndarray, shape (n,)

    Returns
    -------
    ndarray, shape (n,)
    """
    d = np.zeros_like(weights)
    slope = gradient.copy()  # of the quadratic, at d
    diagonal = np.maximum(hessian.diagonal(), 1e-12 * max(hessian.diagonal().max(), 1e-300))
    scale = largest(gradient) or 1.0
    for sweep in range(200):
        moved = 0.0
        for j in range(len(d)):
            old = weights[j] + d[j]
            target = old - slope[j] / diagonal[j]
            new = np.sign(target) * max(abs(target) - thresholds[j] / diagonal[j], 0.0)
            if new != old:
                slope += (new - old) * hessian[:, j]
                d[j] += new - old
                moved = max(moved, abs(new - old) * diagonal[j])
        if moved <= 1e-12 * scale:
            break
        if sweep % 5 == 4:
            exact = _settled(hessian, gradient, weights, thresholds, d)
            if exact is not None:
                return exact
    return d


def _settled(hessian: Array, gradient: Array, weights: Array, thresholds: Array, d: Array) -> Array | None:
    """Solve for the weights that are not zero, with their signs as they are; None if they do not hold."""
    whole = weights + d
    free = (whole != 0) | (thresholds == 0)
    signs = np.sign(whole)
    exact = -weights.copy()
    right = -(gradient + thresholds * signs + hessian[:, ~free] @ exact[~free])
    exact[free] = _solved(hessian[np.ix_(free, free)], right[free])
    if (np.sign(weights + exact)[free & (thresholds > 0)] != signs[free & (thresholds > 0)]).any():
        return None
    slope = gradient + hessian @ exact
    excess = np.abs(slope[~free]) - thresholds[~free]
    return exact if excess.max(initial=-1.0) <= 1e-12 * max(largest(gradient), 1e-300) else None


def _solved(matrix: Array, right: Array) -> Array:
    """Solve a symmetric system; one that is not positive definite is made so by the least of a few shifts."""
    if not len(right):
        return right
    size = float(np.trace(matrix)) / len(right)
    if not size > 1e-300:  # nothing bends: the way down is all that is known
        return right
    for shift in (0.0, 1e-12, 1e-10, 1e-8, 1e-6, 1e-4, 1e-2, 1.0):
        try:
            factor = cho_factor(matrix + shift * size * np.eye(len(right)), lower=True)
        except LinAlgError:
            continue
        found: Array = cho_solve(factor, right)
        if np.isfinite(found).all():
            return found
    return right / size
