"""A run whose ranks, workers and driver are harmed on purpose ends as the undisturbed one, and says what it cost."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipelines.run import Pipeline, RunRecord, attach

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

LIMIT_S = 280.0
FLIGHTS = Path(__file__).parents[2] / "data_samples" / "flights"


def spec(folder: Path, **changes: Any) -> dict[str, Any]:
    """A training of some hundred steps on the flights of January."""
    return {
        "name": "harmed",
        "data": {"source": str(FLIGHTS), "filter": "month == 1", "derive": {"late": "arr_delay > 15"}},
        "label": {"column": "late", "on_null": "drop"},
        "split": {"kind": "grouped", "by": "day"},
        "features": [{"columns": ["distance", "weather_temp", "carrier"]}],
        "train": {
            "estimator": "logistic_regression",
            "params": {"solver": "adam", "epochs": 60, "batch_rows": 2_000, "tol": 0.0, "l2": 0.001},
            "checkpoint": {"every": "1 s"},
        },
        "evaluate": {"metrics": ["auc"]},
        "cluster": {"workers": 2, "worker": {"memory": "1 GiB"}},
        "runs": str(folder / "runs"),
        "registry": str(folder / "registry"),
    } | changes


def certificate(record: RunRecord) -> dict[str, Any]:
    stage = record.stage("train")
    assert stage is not None
    found: dict[str, Any] = stage.summary["certificate"]
    return found


def command(*words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "pipelines.cli", *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT_S, check=False)


def test_a_run_under_chaos_has_the_bits_of_the_undisturbed_one(tmp_path: Path) -> None:
    calm = Pipeline(spec(tmp_path / "calm")).run(timeout_s=LIMIT_S)
    record = Pipeline(spec(tmp_path / "harmed")).run(timeout_s=LIMIT_S, chaos="kill=2, stop=1, slow=1:3x, seed=4")
    assert record.status == "succeeded"
    assert record.exit_code == 0
    assert certificate(record)["final"] == certificate(calm)["final"]
    assert certificate(record)["digests"] == certificate(calm)["digests"]
    assert record.metrics == calm.metrics
    training = record.training
    assert training is not None
    assert training.chaos is not None
    conclusion = training.chaos["conclusion"]
    assert sorted(conclusion["struck"] + conclusion["missed"]) == [1, 2, 3, 4]
    harmed = [fault for fault in training.faults if fault["harm"] != "slow"]
    assert 0 < len(training.losses) <= len(harmed)  # one that is hit with its result in hand is no loss
    assert {loss["cause"] for loss in training.losses} <= {"killed", "silent"}
    assert any(notice.startswith("chaos: ") and "faults struck" in notice for notice in record.notices)
    assert calm.training is not None
    assert (calm.training.losses, calm.training.chaos) == ((), None)


def test_a_command_whose_workers_and_driver_are_killed_resumes_by_itself(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(spec(tmp_path)))
    calm = Pipeline(path).run(timeout_s=LIMIT_S)
    ended = command("run", str(path), "--chaos", "kill=1, worker=1, driver=1, seed=9")
    assert ended.returncode == 0, ended.stderr
    assert "will strike the training" in ended.stderr
    assert "the driver was killed, as was asked for: the run is resumed" in ended.stderr
    assert "are to the bit those of the undisturbed training in the cache" in ended.stderr
    run_id = ended.stderr.split()[1]
    record = attach(run_id, str(tmp_path / "runs")).record()
    assert record.attempts == 2
    assert record.training is not None
    assert [fault["harm"] for fault in record.training.faults].count("driver") == 1
    assert certificate(record) == certificate(calm)
    shown = command("run", "show", run_id, "--runs", str(tmp_path / "runs"))
    assert f"sha256 {certificate(calm)['final']}" in shown.stdout
    plain = json.loads(command("run", "show", run_id, "--runs", str(tmp_path / "runs"), "--json").stdout)
    assert len(plain["training"]["losses"]) == len(record.training.losses)


def test_chaos_is_refused_before_anything_starts(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(spec(tmp_path, train={"estimator": "xgboost"})))
    ended = command("run", str(path), "--chaos", "kill=1")
    assert ended.returncode == 2
    assert "does not go on after a loss" in ended.stderr
    path.write_text(yaml.safe_dump(spec(tmp_path)))
    ended = command("run", str(path), "--chaos", "kil=1")
    assert ended.returncode == 2
    assert "Did you mean 'kill'?" in ended.stderr
    assert not (tmp_path / "runs" / "runs").exists()
