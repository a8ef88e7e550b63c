"""Faults on purpose: what may be asked for, when each strikes, and whom."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.errors import UsageError
from pipelines.training.gang.chaos import GAP_WORDS, HARMS, ChaosSpec, parse_chaos, plan_faults, told
from pipelines.training.gang.events import Arrived, Beat, Committed, Spoke, Strike
from pipelines.training.gang.strikes import SPARED, Strikes, Struck

SPECS = st.builds(
    ChaosSpec,
    kill=st.integers(0, 5),
    stop=st.integers(0, 3),
    slow=st.integers(0, 3),
    factor=st.sampled_from([2.0, 3.0, 1.5]),
    worker=st.integers(0, 2),
    driver=st.integers(0, 1),
    seed=st.integers(0, 1000),
)


def total(spec: ChaosSpec) -> int:
    return sum(getattr(spec, harm) for harm in HARMS)


@given(SPECS)
def test_the_plan_is_a_function_of_what_was_asked_for(spec: ChaosSpec) -> None:
    plan = plan_faults(spec)
    assert plan == plan_faults(spec)
    assert [fault.number for fault in plan] == list(range(1, len(plan) + 1))
    for harm in HARMS:
        assert sum(fault.harm == harm for fault in plan) == getattr(spec, harm)
    assert all(1 <= fault.gap <= GAP_WORDS and 0 <= fault.draw < 1 for fault in plan)
    assert len(list(told(plan))) == len(plan)


@given(SPECS.filter(total))
def test_a_spec_is_read_back_from_its_text(spec: ChaosSpec) -> None:
    read = parse_chaos(str(spec))
    assert plan_faults(read) == plan_faults(spec)


def test_the_words_of_the_command_line_are_read() -> None:
    spec = parse_chaos(" kill=2,stop = 1, slow=1:3x , worker=1, driver=1, seed=7 ")
    assert spec == ChaosSpec(kill=2, stop=1, slow=1, factor=3.0, worker=1, driver=1, seed=7)
    assert parse_chaos("slow=2").factor == 2.0


def test_seeds_differ() -> None:
    assert len({plan_faults(ChaosSpec(kill=3, stop=1, seed=seed)) for seed in range(20)}) == 20


BAD = [
    ("", "0 faults"), ("seed=7", "0 faults"), ("kill=0", "0 faults"), ("kil=1", "Did you mean 'kill'"),
    ("kill", "kill=COUNT"), ("kill=", "kill=COUNT"), ("kill=-1", "kill=COUNT"), ("kill=two", "kill=COUNT"),
    ("kill=1.5", "kill=COUNT"), ("kill=1,kill=2", "said twice"), ("kill=1:3x", "kill=COUNT"),
    ("slow=1:3", "slow=COUNT:FACTORx"), ("slow=1:x", "slow=COUNT:FACTORx"), ("slow=1:1x", "above 1x"),
    ("slow=1:1000x", "at most 100x"), ("driver=2", "once at most"), ("kill=101", "between 1 and 100"),
    ("kill=99999999999", "kill=COUNT"), ("=1", "one of kill"), ("kill=1;stop=1", "kill=COUNT"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "words"), BAD)
def test_what_can_not_be_read_is_refused_with_an_example(text: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_chaos(text)
    assert words in str(caught.value)
    assert "seed=7" in caught.value.remedy


THREE = [(10, "a"), (11, "b"), (12, "c")]


def dealt(spec: str, rounds: int = 400) -> tuple[list[Strike], list[Struck]]:
    """Let a plan strike three ranks that say a word each round."""
    struck: list[Struck] = []
    strikes = Strikes(plan_faults(parse_chaos(spec)), struck.append)
    orders: list[Strike] = []
    for _ in range(rounds):
        strikes.hear(Spoke(10))
        for order in strikes.due(THREE, 0):
            assert isinstance(order, Strike)
            orders.append(order)
    return orders, struck


def test_each_fault_strikes_in_its_turn_and_spares_whom_another_is_ending() -> None:
    orders, struck = dealt("kill=1, stop=1, worker=1, seed=3")
    assert sorted(order.harm for order in orders) == ["kill", "stop", "worker"]
    assert {order.member for order in orders} == {10, 11, 12}
    assert [each.fault.number for each in struck] == [1, 2, 3]
    assert dealt("kill=1, stop=1, worker=1, seed=3") == (orders, struck)


def test_a_slowed_rank_may_be_hit_again_and_a_driver_is_nobodys_rank() -> None:
    orders, struck = dealt("slow=9:4x, driver=1, seed=1")
    assert [order.harm for order in orders] == ["slow"] * 9
    assert {order.factor for order in orders} == {4.0}
    assert [each.rank for each in struck if each.fault.harm == "driver"] == [-1]


def test_the_words_of_ranks_are_counted_and_those_of_watchers_are_not() -> None:
    plan = plan_faults(ChaosSpec(kill=1, seed=5))
    strikes = Strikes(plan, lambda struck: None)
    words = [Arrived(1, ("", 0)), Spoke(1), Committed(1, 4)]
    for number in range(plan[0].gap):
        assert strikes.due(THREE, 0) == []
        strikes.hear(Beat(1, "running", 1.0, 1))
        assert strikes.due(THREE, 0) == []
        strikes.hear(words[number % 3])
    assert len(strikes.due(THREE, 0)) == 1


def test_nobody_is_hit_between_formations_or_when_too_many_broke_in_a_row() -> None:
    strikes = Strikes(plan_faults(ChaosSpec(kill=1, seed=5)), lambda struck: None)
    for _ in range(GAP_WORDS):
        strikes.hear(Spoke(1))
    assert strikes.due([], 0) == []
    assert strikes.due(THREE, SPARED) == []
    assert len(strikes.due(THREE, SPARED - 1)) == 1
