"""Preemption notices, gang holds and wishes for capacity: through plain values, and over a real scheduler."""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import Any

import pytest
from distributed import Client, LocalCluster, get_worker
from hypothesis import given
from hypothesis import strategies as st

from cluster.signals import (
    CapacityWanted,
    GangHold,
    PreemptionNotice,
    from_message,
    history,
    publish,
    subscribe,
    to_message,
)

TIMES = st.floats(0, 2e9)
WORKERS = st.lists(st.text(max_size=20), max_size=4).map(tuple)
SIGNALS = st.one_of(
    st.builds(PreemptionNotice, WORKERS, TIMES, st.text()),
    st.builds(GangHold, st.text(), WORKERS, TIMES),
    st.builds(CapacityWanted, st.text(), st.integers(), st.integers(), st.integers(), st.integers(), TIMES),
)


@given(SIGNALS)
def test_signals_survive_the_wire(signal: Any) -> None:
    message = {name: list(value) if isinstance(value, tuple) else value for name, value in to_message(signal).items()}
    assert from_message(type(signal), {**message, "added_later": 1}) == signal


@pytest.mark.parametrize("message", [None, {}, {"schema": "1"}, {"schema": 1, "gang": "g"}, [1]])
def test_what_is_no_signal_is_refused(message: object) -> None:
    with pytest.raises(ValueError):
        from_message(GangHold, message)


def notice_from_a_task() -> Callable[[], None]:
    """Give a task that travels by value: workers can't import this file."""

    def task() -> None:
        publish(get_worker(), PreemptionNotice((get_worker().address,), 5.0, "spot"))

    return task


@pytest.mark.slow
def test_signals_from_clients_and_tasks_reach_subscribers_and_stay_in_the_history() -> None:
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, processes=True, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        received: queue.Queue[PreemptionNotice] = queue.Queue()
        with subscribe(client, PreemptionNotice, received.put):
            client.log_event(PreemptionNotice.TOPIC, {"schema": 1, "words": "of somebody else"})
            first = PreemptionNotice(("tcp://a",), 1.0, "told")
            publish(client, first)
            assert received.get(timeout=60) == first
            client.submit(notice_from_a_task()).result()
            assert received.get(timeout=60).reason == "spot"
        publish(client, GangHold("g", ("tcp://a",), 9.0))
        assert [signal for _, signal in history(client, GangHold)] == [GangHold("g", ("tcp://a",), 9.0)]
        assert [signal.reason for _, signal in history(client, PreemptionNotice)] == ["told", "spot"]
