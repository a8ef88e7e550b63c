"""Accumulation, local steps and compression: what they compute, what they send, and the same bits for any ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.training.config import TrainConfig
from pipelines.training.data import TrainingData
from pipelines.training.estimators.linear import LOGISTIC
from pipelines.training.strategies.compression import Compression, Half, TopK
from tests.unit.training.conftest import Maker, Mesh, Trainer, weights_of

BATCHES = {"solver": "momentum", "batch_rows": 200, "epochs": 5, "learning_rate": 0.2, "l2": 0.01}
OPTIONS: dict[str, dict[str, Any]] = {
    "accumulate": {"accumulate": 3},
    "local": {"reduce_every": 4},
    "top_k": {"compression": "top_k", "top_k": 0.3},
    "float16": {"compression": "float16"},
    "local top_k": {"reduce_every": 3, "compression": "top_k", "top_k": 0.2},
    "local float16": {"reduce_every": 3, "compression": "float16"},
}


@pytest.fixture
def data(maker: Maker, make_classification: Callable[..., pa.Table]) -> TrainingData:
    return maker.prepare(make_classification(), weight="importance")


def strategy(name: str) -> dict[str, Any]:
    return {"name": "synchronous", **OPTIONS[name]}


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("name", OPTIONS)
def test_the_bits_are_the_same_for_any_ranks(trainer: Trainer, data: TrainingData, name: str, solver: str) -> None:
    params = {**BATCHES, "solver": solver, "learning_rate": 0.05}
    one, two, three = (
        weights_of(trainer.fit(data, params, ranks=ranks, threads=ranks, lanes=6, strategy=strategy(name)))
        for ranks in (1, 2, 3)
    )
    for other in (two, three):
        assert other[0].tobytes() == one[0].tobytes()
        assert other[1].tobytes() == one[1].tobytes()


def test_accumulated_batches_are_one_large_batch(trainer: Trainer, data: TrainingData) -> None:
    some = trainer.fit(data, BATCHES, lanes=6, strategy=strategy("accumulate"))
    large = trainer.fit(data, {**BATCHES, "batch_rows": 600}, lanes=6)
    assert weights_of(some)[0].tobytes() == weights_of(large)[0].tobytes()


def test_local_steps_of_one_lane_are_plain_steps(trainer: Trainer, data: TrainingData) -> None:
    local = trainer.fit(data, BATCHES, ranks=1, lanes=1, strategy=strategy("local"))
    plain = trainer.fit(data, BATCHES, ranks=1, lanes=1)
    # The average over one lane multiplies with its weight, and divides by it again.
    np.testing.assert_allclose(weights_of(local)[0], weights_of(plain)[0], rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIONS)
def test_the_loss_ends_near_the_one_without(trainer: Trainer, data: TrainingData, name: str) -> None:
    params = {**BATCHES, "epochs": 30}
    plain, other = trainer.fit(data, params, lanes=6), trainer.fit(data, params, lanes=6, strategy=strategy(name))
    # At the end of a cosine schedule both are near the minimum; what is left hangs on the last, small steps.
    assert other.summary["loss"] == pytest.approx(plain.summary["loss"], rel=2e-3)


def test_what_was_sent_and_saved_is_told(trainer: Trainer, data: TrainingData) -> None:
    found = trainer.fit(data, BATCHES, lanes=6, strategy=strategy("top_k"))
    [_, follower] = found.summary["ranks"]
    assert follower["plain_bytes"] == 8 * 10 * found.summary["n_iter"]  # 4 numbers, 5 colours, intercept
    assert follower["sent_bytes"] == 3 * (8 + 3 * 8) * found.summary["n_iter"]  # 3 lanes, 3 components of 10


@pytest.mark.parametrize("bad", [
    {"top_k": 0.1}, {"accumulate": 2, "reduce_every": 2}, {"compression": "gzip"}, {"accumulate": 0}, {"staleness": 1},
    {"compression": "top_k", "top_k": 0.0}, {"name": "synchronos"}, {"accumulate": 2, "name": None},
])  # fmt: skip
def test_settings_that_mean_nothing_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(pydantic.ValidationError):
        TrainConfig(estimator="logistic_regression", strategy={"name": "synchronous", **bad})


def test_what_needs_batches_is_refused_for_others() -> None:
    config = TrainConfig(estimator="logistic_regression", strategy={"name": "synchronous", "reduce_every": 2})
    with pytest.raises(ValueError, match=r"reduce_every is for mini-batches; set params.solver"):
        LOGISTIC.check(config)


VECTORS = st.lists(
    st.lists(st.floats(-1e6, 1e6, allow_subnormal=False), min_size=12, max_size=12), min_size=1, max_size=6
)


@pytest.mark.parametrize("form", [TopK(0.25), Half()], ids=["top_k", "float16"])
@given(VECTORS)
def test_what_is_sent_and_what_is_kept_is_all_there_was(form: Any, vectors: list[list[float]]) -> None:
    class Alone:
        rank, size = 0, 1

        def allreduce(self, array: np.ndarray, op: str) -> np.ndarray:
            return array

    rows = np.array(vectors)
    kept = rows.copy()
    payload = form.cut(Alone(), range(len(rows)), kept)
    total = form.add([payload], 12)
    scale = np.abs(rows).sum() + 1e-300
    np.testing.assert_allclose(total + kept.sum(axis=0), rows.sum(axis=0), atol=1e-12 * scale)
    assert np.abs(kept).max() <= np.abs(rows).max()


@pytest.mark.parametrize("kind", ["top_k", "float16"])
def test_sums_do_not_hang_on_who_hosts_which_lane(mesh: Mesh, kind: Any) -> None:
    rng = np.random.default_rng(0)
    rounds = rng.normal(size=(4, 7, 50)) * np.exp(rng.normal(size=50) * 4)
    found = []
    for hosts in ([range(7)], [range(4), range(4, 7)], [(6, 0, 3), (1,), (5, 2, 4)], [range(7), ()]):

        def live(lanes: Any) -> Callable[[Any], list[bytes]]:
            def program(collective: Any) -> list[bytes]:
                compression = Compression.of(kind, 0.1, collective)
                sums = [compression.sum(list(lanes), each[list(lanes)]) for each in rounds]
                errors = compression.collect()
                assert (errors is None) == (collective.rank > 0)
                if errors is None:
                    return []
                return [each.tobytes() for each in sums if each is not None] + [
                    errors[lane].tobytes() for lane in range(7)
                ]

            return program

        found.append(mesh.run([live(lanes) for lanes in hosts])[0])
    assert all(each == found[0] for each in found)
    assert len(found[0]) == 4 + 7
