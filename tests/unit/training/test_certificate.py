"""The certificate of a training's bits: the same for any ranks, goes on after a resumption, says what broke it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.training.certificate import MOST, Certificate, this_machine, weights_digest
from pipelines.training.data import TrainingData
from pipelines.training.gang import StopRequested

HERE = {"processor": "A", "flags": "f", "blas": "openblas 1 Haswell", "numpy": "2", "scipy": "1"}


def weights_at(step: int) -> np.ndarray:
    return np.array([step, 1 / step])


def certified(steps: int, every: int, *, cut: int = 0) -> dict[str, Any]:
    """Certify a training of so many steps, which is gone on with from its state after step `cut`."""
    certificate = Certificate("epoch", every)
    for step in range(1, steps + 1):
        certificate.note(step, weights_at(step))
        if step == cut:
            plain = json.loads(json.dumps(certificate.to_plain()))
            certificate = Certificate("epoch", every)
            certificate.go_on(plain)
    return certificate.seal(weights_at(steps), "spec")


@given(st.integers(1, 1500), st.integers(1, 7), st.data())
def test_digests_are_few_and_hang_on_the_steps_only(steps: int, every: int, data: st.DataObject) -> None:
    whole = certified(steps, every)
    assert certified(steps, every, cut=data.draw(st.integers(1, steps))) == whole
    numbers = [number for number, _ in whole["digests"]]
    assert len(numbers) <= MOST
    assert len(numbers) >= min(steps // every, MOST // 2)
    assert all(digest == weights_digest(weights_at(number * every)) for number, digest in whole["digests"])


def test_the_digest_is_that_of_little_endian_doubles() -> None:
    assert weights_digest(np.array([1.0, -2.0])) == hashlib.sha256(np.array([1, -2], "<f8").tobytes()).hexdigest()


def test_other_machines_break_it_and_are_named() -> None:
    certificate = Certificate("step")
    certificate.note_machines(1, [HERE, HERE])
    assert certificate.seal(np.ones(1), "spec")["broken_by"] == []
    later = Certificate("step")
    later.note_machines(2, [HERE, HERE | {"blas": "mkl 2024 avx512"}])
    later.go_on(certificate.to_plain())
    [broken] = later.seal(np.ones(1), "spec")["broken_by"]
    assert "rank 1 of formation 2" in broken
    assert "blas openblas 1 Haswell / mkl 2024 avx512" in broken


def test_this_machine_is_described() -> None:
    machine = this_machine()
    assert machine["numpy"] == np.__version__
    assert machine["processor"]
    assert "unknown" not in machine["blas"]


@pytest.fixture
def data(maker: Any, make_classification: Callable[..., pa.Table]) -> TrainingData:
    prepared: TrainingData = maker.prepare(make_classification(2500).drop(["importance"]), shards=8)
    return prepared


PARAMS: list[dict[str, Any]] = [
    {"solver": "newton", "C": 1.0, "tol": 1e-9},
    {"solver": "owlqn", "l1": 0.01, "tol": 1e-9},
    {"solver": "adam", "C": 1.0, "batch_rows": 200, "epochs": 5, "tol": 0.0},
]


@pytest.mark.parametrize("params", PARAMS, ids=[each["solver"] for each in PARAMS])
def test_one_two_and_three_ranks_have_one_certificate(trainer: Any, data: TrainingData, params: dict[str, Any]) -> None:
    found = [trainer.fit(data, params, ranks=ranks, lanes=6).summary for ranks in (1, 2, 3)]
    certificates = [summary["certificate"] for summary in found]
    assert certificates[0] == certificates[1] == certificates[2]
    assert certificates[0]["broken_by"] == []
    number, last = certificates[0]["digests"][-1]
    assert last == certificates[0]["final"]
    assert number == (5 if params["solver"] == "adam" else found[0]["n_iter"])
    assert [each for each, _ in certificates[0]["digests"]] == list(range(1, number + 1))


def test_a_stopped_training_goes_on_with_its_certificate(trainer: Any, data: TrainingData, tmp_path: Path) -> None:
    whole = trainer.fit(data, PARAMS[2], lanes=6).summary["certificate"]
    url = str(tmp_path / "checkpoints")
    trainer.messages.clear()
    with pytest.raises(StopRequested):
        trainer.fit(data, PARAMS[2], ranks=3, lanes=6, checkpoint_url=url, stop=trainer.has_stepped)
    resumed = trainer.fit(data, PARAMS[2], ranks=2, lanes=6, checkpoint_url=url).summary
    assert resumed["resumed_from"] >= 1
    assert resumed["certificate"] == whole
