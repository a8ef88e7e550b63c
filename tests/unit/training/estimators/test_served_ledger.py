"""Whatever ranks come and go, every batch is entered once, and epochs close when all lanes have come through."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.training.estimators.served_ledger import Ledger, Note


def note(lane: int, batch: int, batches: int, loss: float = 1.0) -> bytes:
    return Note(lane, batch, batches, loss, 2.0, 10).pack()


@given(
    counts=st.lists(st.integers(0, 4), min_size=1, max_size=4).filter(any),
    epochs=st.integers(1, 3),
    choices=st.lists(st.integers(0, 10**6), max_size=60),
)
def test_what_is_dealt_out_is_what_was_not_entered(counts: list[int], epochs: int, choices: list[int]) -> None:
    ledger = Ledger(len(counts), epochs, tol=0.0)
    for lane, count in enumerate(counts):
        ledger.measured(lane, count)
    everything = {(lane, batch) for lane, count in enumerate(counts) for batch in range(count * epochs)}
    entered: set[tuple[int, int]] = set()
    restored = ledger
    for choice in [*choices, *range(len(everything))]:
        dealt = {
            (lane, batch)
            for lane, (first, ahead) in restored.positions(range(len(counts))).items()
            for batch in range(first, counts[lane] * epochs)
            if batch not in ahead
        }
        assert dealt == everything - entered
        if not dealt:
            break
        # A commit may overtake others of its lane: servers answer when they can.
        chosen = sorted(dealt)[choice % len(dealt)]
        restored.take(note(*chosen, counts[chosen[0]]))
        entered.add(chosen)
        again = Ledger(len(counts), epochs, tol=0.0)
        again.restore(json.loads(json.dumps(restored.to_plain())))
        restored = again
    complete = [
        all((lane, epoch * count + step) in entered for lane, count in enumerate(counts) for step in range(count))
        for epoch in range(epochs)
    ]
    until = complete.index(False) if False in complete else epochs
    assert restored.history == [0.5] * until
    assert restored.over == (until == epochs)
    assert (restored.rows, restored.updates) == (10 * len(entered), len(entered))


def test_an_epochs_loss_is_the_mean_over_all_lanes() -> None:
    ledger = Ledger(2, 2, tol=0.0)
    ledger.measured(0, 1)
    ledger.take(note(0, 0, 1, loss=3.0))
    assert ledger.history == []  # the other lane has not said how long it is
    assert ledger.running_loss == 1.5
    ledger.measured(1, 0)
    assert ledger.history == [1.5]
    assert ledger.running_loss == 1.5
    assert not ledger.over


def test_before_the_first_batch_there_is_no_loss() -> None:
    ledger = Ledger(1, 1, tol=0.0)
    assert math.isnan(ledger.running_loss)
    assert (ledger.begun, ledger.rows_per_s) == (False, 0.0)


@pytest.mark.parametrize(("tol", "epochs", "reason"), [(1e-3, 5, "tolerance"), (0.0, 20, "epochs")])
def test_it_ends_when_the_loss_has_stopped_falling(tol: float, epochs: int, reason: str) -> None:
    # 4, 2, and then 1 for ever: three epochs after the one that still fell it is over.
    ledger = Ledger(1, 20, tol=tol)
    ledger.measured(0, 1)
    for epoch in range(20):
        if not ledger.over:
            ledger.take(note(0, epoch, 1, loss=(8.0, 4.0)[epoch] if epoch < 2 else 2.0))
    assert (ledger.reason, len(ledger.history)) == (reason, epochs + (tol > 0))
