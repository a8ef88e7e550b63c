"""Is there a minimum at all, where no rank has all weights? What `linear_ending.ending` asks, without curvatures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from pipelines.training.columns import ColumnBlock
from pipelines.training.estimators.linear_ending import BEYOND, SHARE
from pipelines.training.estimators.linear_setting import Setting
from pipelines.training.gang import Collective
from pipelines.training.optimisers import Outcome
from pipelines.training.strategies.model_parallel import ColumnObjective, Layout
from pipelines.training.strategies.model_parallel_space import BlockSpace


def column_ending(
    objective: ColumnObjective,
    space: BlockSpace,
    setting: Setting,
    outcome: Outcome,
    tol: float,
    layout: Layout,
    blocks: Sequence[ColumnBlock],
    collective: Collective,
) -> dict[str, Any]:
    """Tell in the summary that there is no minimum: twice the weights are better still. Called by all ranks.

    After a training that was ended before its residual met `tol`, weights of any size have to be.
    """
    if not setting.loss.recedes or setting.l2 or setting.l1:
        return {}
    value, gradient = objective.gradient(outcome.weights)
    further = 1 + (BEYOND if outcome.residual > tol else 1.0)
    fall = value - objective.gradient(further * outcome.weights)[0]
    if not fall > 1e-12 * abs(value):
        return {}
    promised = np.abs(gradient * outcome.weights)
    total = max(space.one_norm(promised, objective.penalised), 1e-300)
    own = [
        (float(share), block.first + at, block.names[at])
        for block in blocks
        for at, share in enumerate(layout.matrix(promised, block.number)[:, :-1].sum(axis=0) / total)
        if share > SHARE
    ]
    told = [tuple(each) for payload in collective.allgather(json.dumps(own).encode()) for each in json.loads(payload)]
    growing = [name for _, _, name in sorted(told, key=lambda each: (-each[0], each[1]))]
    return {"stop_reason": "unbounded", "converged": False, "unbounded": growing}
