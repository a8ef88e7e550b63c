"""A search whose driver is killed goes on with the trial that was at work, and repeats none that had ended."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipelines.registry import Registry
from pipelines.run import Event, Pipeline, RunHandle

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

LIMIT_S = 180.0
FLIGHTS = Path(__file__).parents[2] / "data_samples" / "flights"
TRIALS = 5


def spec_in(folder: Path) -> dict[str, Any]:
    return {
        "name": "searched",
        "data": {"source": str(FLIGHTS), "filter": "month == 1", "derive": {"late": "arr_delay > 15"}},
        "label": {"column": "late", "on_null": "drop"},
        "split": {"kind": "grouped", "by": "day", "validation": 0.2},
        "features": [{"columns": ["distance", "carrier", "origin"]}],
        "train": {
            "estimator": "logistic_regression",
            "params": {"solver": "adam", "epochs": 80, "batch_rows": 2_000, "tol": 0.0},
            "checkpoint": {"every": "1 s"},
            "tune": {"trials": TRIALS, "space": {"l2": {"low": 1e-6, "high": 1.0, "log": True}}},
        },
        "publish": {"model": "searched"},
        "cluster": {"workers": 2, "worker": {"memory": "1 GiB"}},
        "runs": str(folder / "runs"),
        "registry": str(folder / "registry"),
    }


def until(handle: RunHandle, complete: int) -> None:
    """Wait until so many trials are complete, and another one is at work."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        record = handle.record()
        assert not record.ended_run, record.error
        states = [trial.state for trial in record.trials]
        if states.count("complete") >= complete and "running" in states:
            return
        time.sleep(0.1)
    raise AssertionError("the trials were not made in time")


def kill_driver(handle: RunHandle) -> None:
    drivers = [p for p in psutil.process_iter() if {handle.run_id, "pipelines.run.driver"} <= set(words(p))]
    assert drivers
    for process in drivers:
        process.kill()


def words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def begun_in(events: list[Event], attempt: int) -> list[int]:
    """The trials that began in an attempt."""
    at = next(i for i, e in enumerate(events) if e.kind == "attempt" and e.data["number"] == attempt)
    told = [trial for e in events[at:] if e.kind == "trials" for trial in e.data["trials"]]
    return [trial["number"] for trial in told if trial["state"] == "running"]


def test_a_killed_search_goes_on_and_publishes_the_best_of_all_trials(tmp_path: Path) -> None:
    whole = Pipeline(spec_in(tmp_path / "whole")).run(timeout_s=LIMIT_S)
    assert [trial.state for trial in whole.trials] == ["complete"] * TRIALS
    handle = Pipeline(spec_in(tmp_path / "killed")).start()
    until(handle, complete=2)
    kill_driver(handle)
    assert handle.wait(LIMIT_S).status == "failed"
    before = {trial.number: trial for trial in handle.record().trials if trial.state == "complete"}
    assert len(before) >= 2
    handle.resume()
    events = list(handle.events(timeout_s=LIMIT_S))
    record = handle.record()
    assert record.status == "succeeded", record.error
    assert not set(begun_in(events, attempt=2)) & set(before)
    assert {trial.number: trial for trial in record.trials if trial.number in before} == before
    assert [(t.params, t.value) for t in record.trials] == [(t.params, t.value) for t in whole.trials]
    assert record.metrics == whole.metrics

    train = record.stage("train")
    assert train is not None
    found = train.summary["search"]
    best = max(record.trials, key=lambda trial: (trial.value or 0.0, -trial.number))
    assert (found["trial"], found["value"], found["params"]) == (best.number, best.value, best.params)
    assert record.metrics["validation"]["auc"] == best.value
    assert (found["complete"], found["pruned"], found["failed"]) == (TRIALS, 0, 0)

    registry = Registry.open(str(tmp_path / "killed" / "registry"))
    spec = spec_in(tmp_path / "plain")
    spec["train"]["params"] |= best.params
    del spec["train"]["tune"]
    plain = Pipeline(spec).run(timeout_s=LIMIT_S)
    plainly = Registry.open(str(tmp_path / "plain" / "registry"))
    assert registry.load("searched/1").digest == plainly.load("searched/1").digest
    assert plain.trials == ()
    lineages = [each.lineage(each.get("searched/1")) for each in (registry, plainly)]
    assert lineages[0].spec["train"] == lineages[1].spec["train"]

    again = Pipeline(spec_in(tmp_path / "killed")).run(timeout_s=LIMIT_S)
    assert [stage.status for stage in again.stages] == ["cached"] * 4 + ["done"]
    assert again.trials == record.trials
