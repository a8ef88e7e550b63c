"""How does a minimisation end: sharpened where a loss has a kink, and is there a minimum at all?"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeAlias

import numpy as np

from pipelines.training.estimators.linear_params import LinearParams
from pipelines.training.estimators.linear_setting import NEWTON_WEIGHTS, Setting
from pipelines.training.gang.context import Array
from pipelines.training.objectives import Loss, Sharpening
from pipelines.training.optimisers import Outcome, Step, Watch
from pipelines.training.optimisers.newton import newton, newton_step
from pipelines.training.optimisers.oracle import State, largest
from pipelines.training.optimisers.space import WHOLE, Space
from pipelines.training.strategies.model_parallel import ColumnObjective
from pipelines.training.strategies.synchronous import MeanObjective

logger = logging.getLogger(__name__)

Objective: TypeAlias = MeanObjective | ColumnObjective
Minimise: TypeAlias = Callable[[str, Objective, State, Watch, LinearParams], Outcome]

_ON_THE_WAY = 1e-3
"""Of a width: the tolerance before the last one. With 1e-1 Newton's method lost its way (250 passes rather than 70)."""
_FAR = 10.0
"""Steps of Newton's method at once: from a quadratic's neighbourhood they go up by 40 times what one goes down."""
BEYOND = 1e6
"""Times the weights of a training that was ended early: one row on the wrong side then weighs more than all others."""
_LONGER = 30
"""Steps of Newton's method: each goes down an exponential by about 1 in the scores, and none starts above e³⁰."""
_STRIDE = 32
"""Of blocks: any rows at all can show that a loss rises."""
_FLAT, _BENT = 1e-10, 1e-6
"""Curvatures along a way, as shares of the largest that there could be: none, as scores beyond 20 have, and some."""
_FULL_RANK = 1e-8
"""Of the least eigenvalue of a sample's curvatures, as a share of the largest that there could be."""
_TO_SAMPLE, _THERE = 2, 1e-2
"""Newton's steps from the data's minimum to the sample's, and what they leave of the gradient at most."""
SHARE = 0.1
"""A feature is named that has so large a part in the fall, among the features."""


class Smoothed(Protocol):
    """Whoever computes with a loss whose kink is smoothed so far."""

    width: float


def sharpening(minimise: Minimise, loss: Loss, smoothed: Smoothed, space: Space = WHOLE) -> Minimise:
    """Minimise at each width of a loss's smoothing in turn, until smoothing adds little; then say what it is without.

    Mini-batches take the loss as it is. A state of a checkpoint says at which width it was saved.
    """
    if not (isinstance(loss, Sharpening) and loss.widths):
        return minimise

    def through(solver: str, objective: Objective, start: State, watch: Watch, params: LinearParams) -> Outcome:
        if solver not in ("newton", "lbfgs", "owlqn"):
            return minimise(solver, objective, start, watch, params)
        stage = int(start.get("stage", 0))
        while True:
            smoothed.width = width = loss.widths[stage]
            # A minimum on the way must be near enough for the next one to be near it.
            tol = max(params.tol, _ON_THE_WAY * width)
            here = params.model_copy(update={"tol": params.tol if start.get("last") else tol})
            outcome = minimise(solver, objective, start, _staged(watch, stage, start), here)
            smoothed.width = 0.0
            value = objective.gradient(outcome.weights)[0]
            if objective.l1:
                value += objective.l1 * space.one_norm(outcome.weights, objective.penalised)
            added, steps = outcome.loss - value, outcome.steps
            logger.info("width %g, step %d: loss %.9g, and smoothing adds %.2g", width, steps, value, added)
            last = added <= loss.enough or stage == len(loss.widths) - 1
            if outcome.reason == "max_iter" or (last and (start.get("last") or tol <= params.tol)):
                return replace(outcome, loss=value)
            # A first residual that is small already does not tell how far coarse arithmetic would reach: none of it.
            start = {"weights": outcome.weights, "steps": steps, "history": list(outcome.history), "fine": True}
            start["last"] = last
            stage += not last

    return through


def _staged(watch: Watch, stage: int, start: State) -> Watch:
    place = {"stage": stage, "last": bool(start.get("last"))}

    def with_stage(step: Step, state: Callable[[], State]) -> None:
        watch(step, lambda: {**state(), **place})

    return with_stage


def ending(
    objective: MeanObjective, setting: Setting, outcome: Outcome, tol: float, names: Sequence[str]
) -> dict[str, Any]:
    """Tell in the summary that there is no minimum, where the weights would grow for ever without a penalty.

    So it is where classes can be told apart without an error, or where all rows of a category have the same class or a
    count of 0. Then the loss falls exponentially on the way to infinity, gradient and curvature together, however small
    they are; so a step of Newton's method goes on by about 1 in the scores, and ten of them at once still go down,
    where near a minimum they go up. Where curvatures are not there, or too many, twice the weights are looked at: that
    finds classes that can be told apart, though not a single category.

    A way down for ever is one for each row, and so for a sample's: where the sample has none, and bends in every
    direction, the data have none either, and most trainings go no further. Weights that have gone so far that nothing
    can be seen to fall any more are known by what the curvature was at the start (`_saturated`).

    A training that was ended before its residual met `tol` may be far from a minimum, where an exponential falls just
    as it does where there is none: it is gone on with before anything is said. Where curvatures are not there, weights
    of any size have to go down.
    """
    if not setting.loss.recedes or setting.l2 or setting.l1:
        return {}
    weights, early = outcome.weights, outcome.residual > tol
    curved = setting.loss.curved and objective.size <= 2 * NEWTON_WEIGHTS
    if _sample_has_minimum(objective, weights) if curved else _rises(objective, weights):
        return {}
    hessian = objective.hessian(weights) if curved else None
    promised, falls = _ahead(objective, weights, hessian, far=BEYOND if early else 1.0)
    if falls and early and hessian is not None:
        weights = newton(objective, {"weights": weights}, _unwatched, tol=tol, max_iter=_LONGER).weights
        hessian = objective.hessian(weights)
        promised, falls = _ahead(objective, weights, hessian)
    if not falls:
        gone = None if hessian is None else _saturated(objective, weights, hessian)
        if gone is None:
            return {}
        promised = gone
    parts = np.abs(promised.reshape(setting.loss.outputs, -1)[:, :-1]).sum(axis=0)
    shares = parts / max(float(parts.sum()), 1e-300)
    growing = [names[place] for place in np.argsort(-shares, kind="stable") if shares[place] > SHARE]
    return {"stop_reason": "unbounded", "converged": False, "unbounded": growing}


def _unwatched(_: Step, __: Callable[[], State]) -> None:
    """Let steps pass that are no part of the training."""


def _rises(objective: MeanObjective, weights: Array) -> bool:
    """Whether twice the weights are worse for some of the rows."""
    value, _ = objective.gradient(weights, stride=_STRIDE)
    return objective.gradient(2 * weights, stride=_STRIDE)[0] > value


def _sample_has_minimum(objective: MeanObjective, weights: Array) -> bool:
    """Whether a sample alone shows that there is a minimum.

    It is looked for from the sample's own: elsewhere what rises on one way hides what falls on another.
    """
    stride = objective.sample_stride
    if stride == 1:
        return False
    scale, gradients = np.sqrt(objective.diagonal), list[float]()
    for _ in range(_TO_SAMPLE):
        hessian = objective.hessian(weights, stride=stride)
        if not np.isfinite(hessian).all():  # an exponential of a step that went too far
            return False
        if np.linalg.eigvalsh(hessian / np.outer(scale, scale))[0] < _FULL_RANK:
            return False
        gradient = objective.gradient(weights, stride=stride)[1]
        gradients.append(largest(gradient))
        weights = weights + newton_step(hessian, gradient)
    if not largest(objective.gradient(weights, stride=stride)[1]) < _THERE * gradients[0]:
        return False
    return not _ahead(objective, weights, objective.hessian(weights, stride=stride), stride)[1]


def _saturated(objective: MeanObjective, weights: Array, hessian: Array) -> Array | None:
    """Look for a way that the weights have gone so far that the loss can't be seen to fall on it any more.

    It is one that nothing bends any more, though it did at the start: so it is none of columns that repeat each other.
    Returns its size for each weight, in the scale of the features, shape (weights,); None if there is none.
    """
    scale = np.sqrt(objective.diagonal)
    values, ways = np.linalg.eigh(hessian / np.outer(scale, scale))
    flat = ways[:, values < _FLAT]
    if not flat.size:
        return None
    before = objective.hessian(np.zeros_like(weights)) / np.outer(scale, scale)
    bent = flat.T @ before @ flat
    found: Array = np.sqrt(np.maximum(np.einsum("ij,jk,ik->i", flat, bent, flat), 0.0))
    return found if np.linalg.eigvalsh(bent)[-1] > _BENT else None


def _ahead(
    objective: MeanObjective, weights: Array, hessian: Array | None, stride: int = 1, far: float = 1.0
) -> tuple[Array, bool]:
    """Go far ahead: ten of Newton's steps, or, without curvatures, as far again as the weights are, `far` times.

    Returns
    -------
    promised : ndarray, shape (weights,)
        What each weight's part of the way would bring if the loss went on as it begins.
    falls : bool
        Whether the loss falls on it, as it does where there is no minimum.
    """
    value, gradient = objective.gradient(weights, stride=stride)
    if hessian is None:
        step = far * weights
    else:
        # One step nearer first: what is left of a tolerance may rise by more than falls where the loss is small. A
        # training that was ended early may be too far away for it.
        nearer = weights + newton_step(hessian, gradient)
        found, slope = objective.gradient(nearer, stride=stride)
        if found <= value:
            weights, value, gradient = nearer, found, slope
        step = _FAR * newton_step(hessian, gradient)
    promised = -gradient * step
    fall = value - objective.gradient(weights + step, stride=stride)[0]
    least = 0.0 if hessian is None else 0.5 * float(promised.sum()) / _FAR
    return promised, fall > max(least, 1e-12 * abs(value))
