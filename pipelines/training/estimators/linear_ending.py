"""How does a minimisation end: sharpened where a loss has a kink, and is there a minimum at all?"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeAlias

import numpy as np

from pipelines.training.estimators.linear_params import LinearParams
from pipelines.training.estimators.linear_setting import NEWTON_WEIGHTS, Setting
from pipelines.training.objectives import Loss, Sharpening
from pipelines.training.optimisers import Outcome, Step, Watch
from pipelines.training.optimisers.newton import newton_step
from pipelines.training.optimisers.oracle import State
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
_RISES = 1e-4
"""A loss that is so much larger has not fallen, however coarse the one that it is compared with."""
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


def ending(objective: MeanObjective, setting: Setting, outcome: Outcome, names: Sequence[str]) -> dict[str, Any]:
    """Tell in the summary that there is no minimum, where the weights would grow for ever without a penalty.

    So it is where classes can be told apart without an error, or where all rows of a category have the same class or a
    count of 0. Then the loss falls exponentially on the way to infinity, gradient and curvature together, however small
    they are; so a step of Newton's method goes on by about 1 in the scores, and ten of them at once still go down,
    where near a minimum they go up. Where curvatures are not there, or too many, twice the weights are looked at: that
    finds classes that can be told apart, though not a single category.
    """
    if not setting.loss.recedes or setting.l2 or setting.l1:
        return {}
    curved = setting.loss.curved and objective.size <= 2 * NEWTON_WEIGHTS
    if not curved and objective.gradient(2 * outcome.weights)[0] > (1 + _RISES) * outcome.loss:
        return {}
    value, gradient = objective.gradient(outcome.weights)
    step = _FAR * newton_step(objective, outcome.weights, gradient) if curved else outcome.weights
    promised = -gradient * step
    fall = value - objective.gradient(outcome.weights + step)[0]
    if fall <= max(0.5 * promised.sum() / _FAR if curved else 0.0, 1e-12 * abs(value)):
        return {}
    parts = np.abs(promised.reshape(setting.loss.outputs, -1)[:, :-1]).sum(axis=0)
    shares = parts / max(float(parts.sum()), 1e-300)
    growing = [names[place] for place in np.argsort(-shares, kind="stable") if shares[place] > SHARE]
    return {"stop_reason": "unbounded", "converged": False, "unbounded": growing}
