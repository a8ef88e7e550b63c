"""Asynchronous training: the bound holds, nobody waits for a slow rank, and without staleness it is synchronous."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pipelines.errors import TrainingError
from pipelines.training.batches import LaneStream
from pipelines.training.config import TrainConfig
from pipelines.training.data import TrainingData
from pipelines.training.estimators.linear import LOGISTIC
from pipelines.training.gang import StopRequested
from tests.unit.training.conftest import Maker, Trainer, weights_of

BATCHES = {"solver": "momentum", "batch_rows": 100, "epochs": 6, "learning_rate": 0.05, "l2": 0.01, "tol": 0.0}


@pytest.fixture
def data(maker: Maker, make_classification: Callable[..., pa.Table]) -> TrainingData:
    return maker.prepare(make_classification(), weight="importance")


def asynchronous(staleness: int) -> dict[str, Any]:
    return {"name": "asynchronous", "staleness": staleness}


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["sgd", "adam"])
@pytest.mark.parametrize(("ranks", "threads"), [(1, 1), (2, 1), (3, 2)])
def test_without_staleness_it_is_synchronous_training_to_the_bit(
    trainer: Trainer, data: TrainingData, solver: str, ranks: int, threads: int
) -> None:
    params = {**BATCHES, "solver": solver, "l1": 0.001}
    plain = trainer.fit(data, params, ranks=1, lanes=6)
    ticking = trainer.fit(data, params, ranks=ranks, threads=threads, lanes=6, strategy=asynchronous(0))
    assert weights_of(ticking)[0].tobytes() == weights_of(plain)[0].tobytes()
    assert weights_of(ticking)[1].tobytes() == weights_of(plain)[1].tobytes()
    assert ticking.summary["history"] == plain.summary["history"]
    assert ticking.summary["staleness"] == {"0": plain.summary["n_iter"]}


@pytest.mark.slow
@pytest.mark.parametrize("staleness", [1, 2, 8])
@pytest.mark.parametrize(("ranks", "threads"), [(1, 1), (2, 2), (3, 1)])
def test_the_bound_holds_and_every_part_is_learned_from(
    trainer: Trainer, data: TrainingData, ranks: int, threads: int, staleness: int
) -> None:
    found = trainer.fit(data, BATCHES, ranks=ranks, threads=threads, lanes=6, strategy=asynchronous(staleness))
    histogram = {int(each): count for each, count in found.summary["staleness"].items()}
    assert max(histogram) <= (staleness if ranks * threads > 1 else 0)
    assert sum(histogram.values()) == found.summary["updates"] == found.summary["n_iter"]
    assert sum(found.summary["units_by_rank"]) == found.summary["updates"]
    plain = trainer.fit(data, BATCHES, ranks=1, lanes=6)
    assert len(found.summary["history"]) == 6
    # Both end near the minimum at the end of a cosine schedule; the order of mini-batches differs.
    assert found.summary["loss"] == pytest.approx(plain.summary["loss"], rel=5e-3)


class Slow:
    """Makes one rank's parts take longer, as a slow machine does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, lanes: set[int], seconds: float) -> None:
        parts = LaneStream.parts
        self.lanes = lanes

        def slowly(stream: LaneStream, *args: Any) -> Iterator[Any]:
            time.sleep(seconds if stream in self.streams else 0.0)
            return parts(stream, *args)

        make = LaneStream.__init__
        self.streams: set[LaneStream] = set()

        def made(stream: LaneStream, lane: int, *args: Any) -> None:
            make(stream, lane, *args)
            if lane in self.lanes:
                self.streams.add(stream)
                self.lanes.discard(lane)  # taken over by another rank, it is no longer slow

        monkeypatch.setattr(LaneStream, "parts", slowly)
        monkeypatch.setattr(LaneStream, "__init__", made)


@pytest.mark.slow
def test_a_slow_rank_gets_fewer(trainer: Trainer, data: TrainingData, monkeypatch: pytest.MonkeyPatch) -> None:
    Slow(monkeypatch, {3, 4, 5}, 0.02)
    found = trainer.fit(data, BATCHES, ranks=2, lanes=6, strategy=asynchronous(4))
    quick, slow = found.summary["units_by_rank"]
    assert quick > 2 * slow > 0
    assert quick + slow == found.summary["updates"]


@pytest.mark.slow
def test_a_stopped_training_goes_on_inside_its_epoch(trainer: Trainer, data: TrainingData, tmp_path: Any) -> None:
    url = str(tmp_path / "checkpoints")
    trainer.messages.clear()
    with pytest.raises(StopRequested):
        trainer.fit(
            data,
            {**BATCHES, "epochs": 200},
            lanes=6,
            strategy=asynchronous(4),
            checkpoint_url=url,
            stop=trainer.has_stepped,
        )
    again = trainer.fit(
        data, {**BATCHES, "epochs": 200}, ranks=3, lanes=6, strategy=asynchronous(4), checkpoint_url=url
    )  # fmt: skip
    assert again.summary["resumed_from"] > 0
    assert again.summary["updates"] == 200 * sum(max(1, round(rows / 100)) for rows in (500,) * 6)


def test_divergence_is_told(trainer: Trainer, data: TrainingData) -> None:
    params = {**BATCHES, "solver": "sgd", "learning_rate": 1e9, "schedule": "constant"}
    with pytest.raises(TrainingError, match="diverged at update"):
        trainer.fit(data, params, lanes=6, strategy=asynchronous(4))


def test_it_is_refused_for_solvers_without_batches() -> None:
    config = TrainConfig(estimator="logistic_regression", strategy="asynchronous")
    with pytest.raises(ValueError, match="goes by mini-batches; set params"):
        LOGISTIC.check(config)


def test_the_schedule_and_the_rule_go_on_with_a_state(trainer: Trainer, data: TrainingData) -> None:
    alone = trainer.fit(data, BATCHES, ranks=1, lanes=6, strategy=asynchronous(1))
    again = trainer.fit(data, BATCHES, ranks=1, lanes=6, strategy=asynchronous(7))
    # One worker is never stale: the bound does not matter, and the order of parts is its own.
    np.testing.assert_array_equal(weights_of(alone)[0], weights_of(again)[0])
