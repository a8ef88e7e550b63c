"""A training's state in parts outlives the loss of a rank, at any moment, as the step of the last sharing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pipelines.training.strategies.model_parallel_state import (
    Beginning,
    Parts,
    agree,
    cut_state,
    join_state,
    pack,
    unpack,
)

HOSTS = ((0, 3), (1,), (2,))


def part(number: int, step: int) -> bytes:
    return f"block {number} after {step}".encode()


def own(rank: int, step: int) -> dict[int, bytes]:
    return {number: part(number, step) for number in HOSTS[rank]}


def run(mesh: Any, program: Any, held: list[Parts]) -> list[Any]:
    outcomes = mesh.run([lambda collective, each=each: program(collective, each) for each in held])
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
    return outcomes


def trained(mesh: Any, steps: int, share_at: int) -> list[Parts]:
    """Ranks that have shared their parts after one step, and have their own after the last."""
    held = [Parts() for _ in HOSTS]
    run(mesh, lambda collective, each: each.share(collective, share_at, own(collective.rank, share_at)), held)
    for rank, each in enumerate(held):
        each.hear(steps)
        each.keep(steps, own(rank, steps))
    return held


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_losing_any_one_rank_loses_what_came_after_the_last_sharing(mesh: Any, lost: int) -> None:
    held = trained(mesh, steps=9, share_at=6)
    left = [each for rank, each in enumerate(held) if rank != lost]
    dealt = ((1, 2), (0, 3))
    found = run(mesh, lambda collective, each: agree(collective, each, dealt, -1), left)
    for rank, beginning in enumerate(found):
        assert (beginning.step, beginning.lost_steps) == (6, 3)
        assert beginning.parts == {number: part(number, 6) for number in dealt[rank]}


def test_without_a_loss_nothing_is_lost_when_more_ranks_come(mesh: Any) -> None:
    held = [*trained(mesh, steps=9, share_at=6), Parts()]
    dealt = ((3,), (1,), (2,), (0,))
    found = run(mesh, lambda collective, each: agree(collective, each, dealt, -1), held)
    assert [each.parts for each in found] == [{number: part(number, 9)} for [number] in dealt]
    assert {each.lost_steps for each in found} == {0}


@pytest.mark.parametrize("received", [(), (1,), (2,), (1, 2), (0, 1, 2)])
@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_sharing_that_was_broken_off_costs_no_more_than_the_one_before(
    mesh: Any, lost: int, received: tuple[int, ...]
) -> None:
    held = trained(mesh, steps=9, share_at=6)
    for rank in received:
        held[rank].keep(9, own((rank - 1) % 3, 9))
    left = [each for rank, each in enumerate(held) if rank != lost]
    found = run(mesh, lambda collective, each: agree(collective, each, ((0, 1), (2, 3)), -1), left)
    assert {each.step for each in found} == {9 if (lost + 1) % 3 in received else 6}


def test_losing_neighbours_at_once_goes_back_to_the_checkpoint_or_the_beginning(mesh: Any) -> None:
    [_, _, last] = trained(mesh, steps=9, share_at=6)
    everything = ((0, 1, 2, 3),)
    [beginning] = run(mesh, lambda collective, each: agree(collective, each, everything, -1), [last])
    assert beginning == Beginning(-1, None, 9, 0.0)
    assert run(mesh, lambda collective, each: agree(collective, each, everything, 4), [last]) == [5]


def test_a_newer_checkpoint_goes_before_what_ranks_hold(mesh: Any) -> None:
    held = trained(mesh, steps=9, share_at=6)[:2]
    assert run(mesh, lambda collective, each: agree(collective, each, ((0, 1), (2, 3)), 7), held) == [2, 2]
    found = run(mesh, lambda collective, each: agree(collective, each, ((0, 1), (2, 3)), 5), held)
    assert {each.step for each in found} == {6}


def test_a_state_is_cut_into_parts_and_joined_again_in_another_deal() -> None:
    rng = np.random.default_rng(0)
    state = {
        "weights": rng.normal(size=9),
        "s": rng.normal(size=(4, 9)),
        "steps": 7,
        "history": [1.0, 0.5],
        "fine": True,
    }
    parts = cut_state(state, {0: slice(0, 4), 2: slice(4, 9)}, 9)
    parts = unpack(pack(parts))
    assert sorted(parts) == [0, 2]
    again = join_state(parts, {0: slice(0, 4), 2: slice(4, 9)})
    assert again.keys() == state.keys()
    for name, value in state.items():
        np.testing.assert_array_equal(again[name], value)
    alone = join_state(parts, {2: slice(0, 5)})
    np.testing.assert_array_equal(alone["s"], state["s"][:, 4:])
    assert alone["steps"] == 7


def test_no_parts_are_no_bytes() -> None:
    assert unpack(pack({})) == {}
