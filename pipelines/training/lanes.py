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


def deal_lanes(
    plan: ShardPlan,
    lanes: Sequence[Sequence[int]],
    holds: Sequence[Sequence[int]],
    speeds: Sequence[float] | None = None,
) -> tuple[tuple[int, ...], ...]:
    """Deal lanes to ranks, balanced by bytes; a rank keeps what it holds as long as that is not more than its share.

    No rank has more bytes than its share and the largest lane together. With as many lanes as ranks, or more, every
    rank has one.

    Parameters
    ----------
    plan : ShardPlan
    lanes : sequence of sequence of int
        The places of each lane's shards.
    holds : sequence of sequence of int
        For each rank the lanes that it has loaded; empty for one that has just come.
    speeds : sequence of float, optional
        How fast each rank is; shares are in proportion. Default: all the same.

    Returns
    -------
    tuple of tuple of int
        For each rank its lanes, ascending.
    """
    return deal_weights([sum(plan.shards[place].bytes for place in lane) for lane in lanes], holds, speeds)


def deal_weights(
    weights: Sequence[int], holds: Sequence[Sequence[int]], speeds: Sequence[float] | None = None
) -> tuple[tuple[int, ...], ...]:
    """Deal things of these weights, as `deal_lanes` does lanes; returns their places, for each rank."""
    ranks = len(holds)
    rates = [1.0] * ranks if speeds is None else list(speeds)
    if not any(holds) and len(set(rates)) == 1:
        cuts = cut_evenly(weights, ranks)
        dealt = [list(range(first, last)) for first, last in pairwise(cuts)]
    else:
        dealt = _kept(weights, holds, rates)
        _deal_rest(weights, dealt, rates)
    _spare_nobody(weights, dealt)
    return tuple(tuple(sorted(own)) for own in dealt)


def _kept(weights: Sequence[int], holds: Sequence[Sequence[int]], rates: Sequence[float]) -> list[list[int]]:
    """Leave to each rank of what it holds as much as its share is; each lane to one rank."""
    taken: set[int] = set()
    dealt: list[list[int]] = []
    for held, rate in zip(holds, rates, strict=True):
        share = sum(weights) * rate / sum(rates)
        own, size = [], 0
        for lane in held:
            if 0 <= lane < len(weights) and lane not in taken and size + weights[lane] <= share:
                own.append(lane)
                taken.add(lane)
                size += weights[lane]
        dealt.append(own)
    return dealt


def _deal_rest(weights: Sequence[int], dealt: list[list[int]], rates: Sequence[float]) -> None:
    """Give what nobody has to whoever has least of its share, the largest lanes first."""
    sizes = [sum(weights[lane] for lane in own) for own in dealt]
    rest = set(range(len(weights))) - {lane for own in dealt for lane in own}
    for lane in sorted(rest, key=lambda each: (-weights[each], each)):
        rank = min(range(len(dealt)), key=lambda each: (sizes[each] / rates[each], each))
        dealt[rank].append(lane)
        sizes[rank] += weights[lane]


def _spare_nobody(weights: Sequence[int], dealt: list[list[int]]) -> None:
    """Give a lane to whoever has none, from whoever has most of them."""
    for own in dealt:
        richest = max(dealt, key=len)
        if not own and len(richest) > 1:
            lightest = min(richest, key=lambda lane: (weights[lane], lane))
            richest.remove(lightest)
            own.append(lightest)
