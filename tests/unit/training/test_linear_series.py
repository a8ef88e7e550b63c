"""Fits in a series have the bits of fits alone, whatever the series goes through."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest

from pipelines.errors import InterruptedRunError, TrainingError, UsageError
from pipelines.training.config import TrainConfig
from pipelines.training.data import TrainingData
from pipelines.training.estimators.registry import FitRequest, FitsSeries, Series, resolve
from pipelines.training.fit import Fit, Progress
from pipelines.training.gang import Deadlines
from pipelines.training.happenings import Happened, Happening, ignore

pytestmark = pytest.mark.slow

Params = dict[str, Any]
ADAM: Params = {"solver": "adam", "epochs": 10, "batch_rows": 300, "tol": 0.0, "l2": 1e-3}
COMPRESSED: Params = {"strategy": {"name": "synchronous", "compression": "top_k", "top_k": 0.5}}
LONG: Params = {**ADAM, "epochs": 20_000}


@pytest.fixture
def data(maker: Any, make_classification: Callable[..., pa.Table]) -> TrainingData:
    prepared: TrainingData = maker.prepare(make_classification(), weight="importance")
    return prepared


def config_of(params: Params, **config: Any) -> TrainConfig:
    usual = {"estimator": "logistic_regression", "checkpoint": {"every": "100 steps"}}
    return TrainConfig(params=params, **usual | config)


@contextmanager
def series_of(
    data: TrainingData, stop: threading.Event | None = None, happened: Happened = ignore, **config: Any
) -> Iterator[Series]:
    request = FitRequest(
        config=config_of({}, **config),
        data=data,
        client=None,
        ranks=2,
        min_ranks=1,
        max_ranks=2,
        threads=1,
        memory_bytes=None,
        checkpoint_url=None,
        report=lambda progress: None,
        deadlines=Deadlines(),
        stop=stop or threading.Event(),
        happened=happened,
        trial=True,
    )
    estimator = resolve(request.config.estimator)
    assert isinstance(estimator, FitsSeries)
    series = estimator.series(request)
    assert series is not None
    try:
        yield series
    finally:
        series.close()
        assert not ranks()


def ranks() -> list[psutil.Process]:
    """Rank processes that this test has started, and that still live."""
    found = psutil.Process().children(recursive=True)
    return [p for p in found if p.status() != psutil.STATUS_ZOMBIE and "gang.rank" in " ".join(p.cmdline())]


def fit_in(
    series: Series,
    params: Params,
    *,
    report: Callable[[Progress], None] = lambda progress: None,
    give_up: threading.Event | None = None,
    checkpoints: Path | None = None,
) -> Fit:
    url = None if checkpoints is None else str(checkpoints)
    return series.fit(config_of(params), checkpoint_url=url, report=report, give_up=give_up or threading.Event())


def test_each_has_the_bits_of_a_fit_alone(trainer: Any, data: TrainingData) -> None:
    asked = [{"l2": 0.1}, ADAM, {"C": 1.0, "l1_ratio": 0.5}, {"l2": 0.1}, {"l2": 1e-3, "solver": "lbfgs"}]
    with series_of(data) as series:
        pids = set()
        for params in asked:
            fit = fit_in(series, params)
            assert fit.files == trainer.fit(data, params).files
            pids |= {process.pid for process in ranks()}
        assert len(pids) == 2, "one gang made them all"


def test_every_step_and_every_epoch_is_told(data: TrainingData) -> None:
    with series_of(data) as series:
        told: list[Progress] = []
        fit = fit_in(series, {"l2": 0.1, "solver": "lbfgs"}, report=told.append)
        steps = [(p.done, p.metrics["loss"]) for p in told if p.unit == "step"]
        assert [done for done, _ in steps] == list(range(1, fit.summary["n_iter"] + 1))
        told.clear()
        fit = fit_in(series, ADAM, report=told.append)
        epochs = [p for p in told if p.unit == "epoch"]
        assert [p.done for p in epochs] == list(range(1, 10))
        assert [p.metrics["loss"] for p in epochs] == pytest.approx(fit.summary["history"][:9], rel=1e-12)


def test_one_that_is_given_up_or_fails_leaves_the_gang_to_the_next(trainer: Any, data: TrainingData) -> None:
    with series_of(data) as series:
        fit_in(series, ADAM)
        before = {process.pid for process in ranks()}
        give_up = threading.Event()
        with pytest.raises(InterruptedRunError, match="given up"):
            fit_in(series, LONG, give_up=give_up, report=lambda progress: give_up.set())
        with pytest.raises(TrainingError, match="diverged"):
            fit_in(series, {**ADAM, "solver": "sgd", "learning_rate": 1e9, "schedule": "constant"})
        with pytest.raises(ValueError, match="belong to mini-batches"):
            fit_in(series, {"batch_rows": 3})
        assert fit_in(series, ADAM).files == trainer.fit(data, ADAM).files
        assert {process.pid for process in ranks()} == before


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_killed_costs_no_bits(trainer: Any, data: TrainingData, rank: int) -> None:
    params = {**ADAM, "epochs": 60}
    told: list[Happening] = []
    with series_of(data, happened=told.append) as series:
        fit_in(series, {"l2": 0.1})
        killed: list[int] = []

        def kill(progress: Progress) -> None:
            if progress.unit == "epoch" and progress.done >= 3 and not killed:
                victim = sorted(ranks(), key=lambda process: process.create_time())[rank]
                killed.append(victim.pid)
                os.kill(victim.pid, signal.SIGKILL)

        fit = fit_in(series, params, report=kill)
        assert killed
        assert fit.files == trainer.fit(data, params).files
        assert fit.summary["gang"]["resumptions"] or fit.summary["resumed_from"] is None
        assert fit_in(series, {"l2": 0.1}).files == trainer.fit(data, {"l2": 0.1}).files
    assert [each.data["ranks"] for each in told if each.what == "formation"] == [2, 2]
    assert [each.data["cause"] for each in told if each.what == "loss"] == ["killed"]


def test_a_series_that_is_stopped_saves_the_state_of_its_fit(trainer: Any, data: TrainingData, tmp_path: Path) -> None:
    params, stop = {**ADAM, "epochs": 200}, threading.Event()
    with series_of(data, stop) as series, pytest.raises(InterruptedRunError):
        fit_in(series, params, report=lambda p: stop.set() if p.unit == "epoch" else None, checkpoints=tmp_path)
    with series_of(data) as series:
        fit = fit_in(series, params, checkpoints=tmp_path)
    assert fit.summary["resumed_from"] > 0
    assert fit.files == trainer.fit(data, params).files


def test_each_saves_checkpoints_of_its_own(data: TrainingData, tmp_path: Path) -> None:
    saved = []
    with series_of(data) as series:
        for l2 in (1e-3, 1e-2):
            folder = tmp_path / str(l2)
            fit = fit_in(series, {**ADAM, "l2": l2, "epochs": 200}, checkpoints=folder)
            assert fit.summary["checkpoints"] > 0
            (own,) = folder.iterdir()  # what it hangs on names it, and nothing of the other fit is there
            assert list((own / "commits").iterdir())
            saved.append(own.name)
    assert len(set(saved)) == 2


def test_compressed_vectors_and_other_losses_have_the_bits_of_fits_alone(trainer: Any, data: TrainingData) -> None:
    asked: list[Params] = [{**ADAM, "epochs": 3}, {**ADAM, "epochs": 5}]
    with series_of(data, **COMPRESSED) as series:
        for params in asked:
            fit = series.fit(
                config_of(params, **COMPRESSED),
                checkpoint_url=None,
                report=lambda progress: None,
                give_up=threading.Event(),
            )
            assert fit.files == trainer.fit(data, params, **COMPRESSED).files
    svm = {"estimator": "linear_svm"}
    with series_of(data, **svm) as series:
        fit = series.fit(
            config_of({"l2": 0.1}, **svm), checkpoint_url=None, report=lambda progress: None, give_up=threading.Event()
        )
        assert fit.files == trainer.fit(data, {"l2": 0.1}, **svm).files


def test_a_series_without_a_fit_starts_nothing(data: TrainingData) -> None:
    with series_of(data):
        assert not ranks()


def test_labels_that_are_not_learned_are_refused_before_anything_starts(maker: Any) -> None:
    table = pa.table({"x": [float(i) for i in range(100)], "label": [i / 7 for i in range(100)]})
    with series_of(maker.prepare(table, kind="regression")) as series, pytest.raises(UsageError, match="regression"):
        fit_in(series, {})
    assert not ranks()
