"""Lanes hold every shard once, and are dealt to ranks once each, under any history of joins and leaves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from pipelines.data.shards import ShardPlan
from pipelines.training.batches import LaneStream
from pipelines.training.lanes import deal_lanes, make_lanes


@dataclass(frozen=True)
class Sized:
    bytes: int


@dataclass(frozen=True)
class Plan:
    """A shard plan of which only the sizes matter."""

    shards: tuple[Sized, ...]


def plan_of(sizes: list[int]) -> ShardPlan:
    return cast(ShardPlan, Plan(tuple(map(Sized, sizes))))


SIZES = st.lists(st.integers(0, 1000), min_size=1, max_size=40)
HISTORY = st.lists(st.sampled_from(["lose", "join", "partly loaded"]), max_size=12)


@given(SIZES, st.integers(1, 16))
def test_every_shard_is_in_one_lane_in_order(sizes: list[int], lanes: int) -> None:
    made = make_lanes(plan_of(sizes), lanes)
    assert [place for lane in made for place in lane] == list(range(len(sizes)))
    assert 1 <= len(made) <= lanes
    assert all(made)


@given(SIZES, st.integers(1, 12), HISTORY, st.randoms(use_true_random=False))
def test_every_lane_is_on_one_rank_after_any_history(
    sizes: list[int], ranks: int, history: list[str], rng: Any
) -> None:
    plan = plan_of(sizes)
    lanes = make_lanes(plan, 16)
    weights = [sum(sizes[place] for place in lane) for lane in lanes]
    holds: list[tuple[int, ...]] = [()] * ranks
    for event in ["start", *history]:
        match event:
            case "lose" if len(holds) > 1:
                holds.pop(rng.randrange(len(holds)))
            case "join":
                holds.append(())
            case "partly loaded":
                holds = [tuple(own[: rng.randint(0, len(own))]) for own in holds]
        dealt = deal_lanes(plan, lanes, holds)
        assert sorted(lane for own in dealt for lane in own) == list(range(len(lanes)))
        assert len(dealt) == len(holds)
        limit = sum(weights) / len(dealt) + max(weights)
        assert all(sum(weights[lane] for lane in own) <= limit for own in dealt)
        if len(dealt) <= len(lanes):
            assert all(dealt), "nobody is idle"
        holds = list(dealt)


@given(SIZES, st.integers(2, 6), st.data())
def test_survivors_keep_all_that_they_hold(sizes: list[int], ranks: int, data: st.DataObject) -> None:
    plan = plan_of(sizes)
    lanes = make_lanes(plan, 16)
    before = deal_lanes(plan, lanes, [()] * ranks)
    lost = data.draw(st.integers(0, ranks - 1))
    survivors = [own for rank, own in enumerate(before) if rank != lost]
    weights = [sum(sizes[place] for place in lane) for lane in lanes]
    share = sum(weights) / len(survivors)
    after = deal_lanes(plan, lanes, survivors)
    for own, now in zip(survivors, after, strict=True):
        if sum(weights[lane] for lane in own) <= share and len(survivors) <= len(lanes):
            assert set(own) <= set(now) or len(own) > 1  # one may go to a rank that would have none


class Rows:
    """A stored block of which only the number of rows matters."""

    def __init__(self, rows: int) -> None:
        self.rows = rows


@given(st.lists(st.integers(0, 50), min_size=1, max_size=5), st.integers(1, 30), st.integers(0, 3))
def test_the_steps_of_an_epoch_take_every_row_once(blocks: list[int], steps: int, epoch: int) -> None:
    stream = LaneStream(3, cast(Any, [Rows(rows) for rows in blocks]), 7)
    ends = [stream.rows * step // steps for step in range(steps + 1)]
    assert ends[0] == 0
    assert ends[-1] == sum(blocks)
