"""Which rows make a lane, and which rank hosts it?

A lane is an ordered run of shards. Its number and contents hang on dataset and spec only; ranks host whole lanes, so
that what is computed per lane, and added reproducibly, does not depend on how many ranks there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from pipelines.data.balance import cut_evenly
from pipelines.data.shards import ShardPlan, deal

_LEAST = 32
_PER_WORKER = 4


def default_lanes(max_workers: int) -> int:
    """How many lanes serve clusters of up to `max_workers`: one number for all of up to eight workers."""
    return max(_LEAST, 1 << (_PER_WORKER * max_workers - 1).bit_length())


def make_lanes(plan: ShardPlan, lanes: int) -> tuple[tuple[int, ...], ...]:
    """Cut a plan's shards into at most `lanes` contiguous runs of about equal bytes; returns places in the plan."""
    runs = deal(plan.shards, max(1, min(lanes, len(plan.shards))))
    return tuple(run for run in runs if run)


def host_lanes(plan: ShardPlan, lanes: Sequence[Sequence[int]], ranks: int) -> tuple[range, ...]:
    """Deal lanes to ranks: for each a contiguous run of lane numbers, balanced by bytes; empty for ranks too many."""
    weights = [sum(plan.shards[place].bytes for place in lane) for lane in lanes]
    cuts = cut_evenly(weights, ranks)
    return tuple(range(first, last) for first, last in pairwise(cuts))
