"""A run that is interrupted, cancelled or killed leaves no process behind, and goes on inside its training."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from pipelines.errors import UsageError
from pipelines.run import Event, RunHandle, attach, list_runs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

LIMIT_S = 180.0
FLIGHTS = Path(__file__).parents[2] / "data_samples" / "flights"


EPOCHS = 1_500
"""Enough to be disturbed on a fast machine, few enough to be gone through on a busy one."""
ENDLESS = 1_000_000


def write_spec(tmp_path: Path, epochs: int) -> Path:
    """A spec whose training takes long enough to be disturbed, and saves its state every second."""
    path = tmp_path / "spec.yaml"
    content: dict[str, Any] = {
        "name": "disturbed",
        "data": {"source": str(FLIGHTS), "filter": "month == 1", "derive": {"late": "arr_delay > 15"}},
        "label": {"column": "late", "on_null": "drop"},
        "split": {"kind": "grouped", "by": "day"},
        "features": [{"columns": ["distance", "weather_temp", "carrier"]}],
        "train": {
            "estimator": "logistic_regression",
            "params": {"solver": "adam", "epochs": epochs, "batch_rows": 2_000, "tol": 0.0, "l2": 0.001},
            "checkpoint": {"every": "1 s"},
        },
        "evaluate": {"metrics": ["auc"]},
        "publish": {"model": "disturbed"},
        "cluster": {"workers": 2, "worker": {"memory": "1 GiB"}},
        "runs": str(tmp_path / "runs"),
        "registry": str(tmp_path / "registry"),
    }
    path.write_text(yaml.safe_dump(content))
    return path


def start(spec: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "pipelines.cli", "run", str(spec)]
    return subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def until_trained(spec: Path, least_epochs: int) -> RunHandle:
    """Wait until the newest run's training has gone some way and has saved its state."""
    runs = str(spec.parent / "runs")
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        for record in list_runs(runs, limit=1):
            train = record.stage("train")
            if train and train.progress.get("done", 0) >= least_epochs and checkpoints(runs, record.run_id):
                return attach(record.run_id, runs)
            assert not record.ended_run, record.error
        time.sleep(0.3)
    raise AssertionError("the training did not begin in time")


def checkpoints(runs: str, run_id: str) -> list[Path]:
    return list(Path(runs, "runs", run_id, "checkpoint").rglob("commits/*.json"))


def family(handle: RunHandle) -> list[psutil.Process]:
    """The driver's job and all that it started."""
    mine = [p for p in psutil.process_iter() if handle.run_id in " ".join(words(p))]
    return list({p.pid: p for parent in mine for p in [parent, *parent.children(recursive=True)]}.values())


def words(process: psutil.Process) -> list[str]:
    """A process's command line; nothing when it has just ended."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def assert_all_end(processes: list[psutil.Process], within_s: float = 30.0) -> None:
    assert len(processes) >= 4, "driver, scheduler's workers and ranks should have been there"
    _, alive = psutil.wait_procs(processes, timeout=within_s)
    assert not alive, [(p.pid, words(p)) for p in alive]


def first_progress(events: list[Event], attempt: int) -> int:
    """The number of epochs at the first sign of a training in an attempt."""
    begun = [i for i, event in enumerate(events) if event.kind == "attempt" and event.data["number"] == attempt]
    later = [e for e in events[begun[0] :] if e.kind == "progress" and e.stage == "train" and e.data["unit"] != "loads"]
    return int(later[0].data["done"])


def assert_goes_on(handle: RunHandle, done_before: int) -> None:
    handle.resume()
    events = list(handle.events(timeout_s=LIMIT_S))
    record = handle.record()
    assert record.status == "succeeded", record.error
    assert record.version == "disturbed/1"
    statuses = {stage.name: stage.status for stage in record.stages}
    assert (statuses["split"], statuses["features"], statuses["train"]) == ("cached", "cached", "done")
    assert first_progress(events, attempt=2) >= done_before


def test_ctrl_c_saves_the_state_and_leaves_nothing_behind(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, EPOCHS)
    command = start(spec)
    handle = until_trained(spec, least_epochs=20)
    processes = family(handle)
    os.kill(command.pid, signal.SIGINT)
    output, _ = command.communicate(timeout=LIMIT_S)
    assert command.returncode == 130, output.decode()
    assert f"mutirao run resume {handle.run_id}" in output.decode()
    assert handle.record().status == "interrupted"
    assert_all_end([p for p in processes if p.pid != command.pid])
    assert_goes_on(handle, done_before=20)


def test_ctrl_c_in_python_stops_the_run_and_says_how_it_goes_on(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, ENDLESS)
    program = "import sys, pipelines; pipelines.Pipeline(sys.argv[1]).run()"
    command = subprocess.Popen([sys.executable, "-c", program, str(spec)], stderr=subprocess.PIPE)
    handle = until_trained(spec, least_epochs=1)
    processes = family(handle)
    command.send_signal(signal.SIGINT)
    _, told = command.communicate(timeout=LIMIT_S)
    assert command.returncode != 0
    assert f"mutirao run resume {handle.run_id}" in told.decode()
    assert handle.record().status == "interrupted"
    assert_all_end([p for p in processes if p.pid != command.pid])


def test_a_killed_driver_takes_its_cluster_along_and_the_run_goes_on(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, EPOCHS)
    command = start(spec)
    handle = until_trained(spec, least_epochs=20)
    processes = family(handle)
    for process in processes:
        if "pipelines.run.driver" in " ".join(words(process)):
            process.kill()
    output, _ = command.communicate(timeout=LIMIT_S)
    assert command.returncode == 5, output.decode()
    assert "the driver ended without a word" in output.decode()
    assert handle.record().status == "failed"
    assert_all_end([p for p in processes if p.pid != command.pid])
    assert_goes_on(handle, done_before=20)


def test_a_run_at_work_is_not_resumed_but_cancelled(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, ENDLESS)
    command = start(spec)
    handle = until_trained(spec, least_epochs=1)
    with pytest.raises(UsageError, match="its driver is at work"):
        handle.resume()
    processes = family(handle)
    cancel = subprocess.run(
        [sys.executable, "-m", "pipelines.cli", "run", "cancel", handle.run_id, "--runs", handle.runs],
        capture_output=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert cancel.returncode == 0, cancel.stderr.decode()
    assert b"interrupted" in cancel.stdout
    assert command.wait(timeout=LIMIT_S) == 130
    assert_all_end([p for p in processes if p.pid != command.pid])


def test_a_killed_command_ends_nothing(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, ENDLESS)
    command = start(spec)
    handle = until_trained(spec, least_epochs=1)
    command.kill()
    command.wait()
    time.sleep(2)
    assert handle.record().status == "running"
    assert handle.cancel().status == "interrupted"
