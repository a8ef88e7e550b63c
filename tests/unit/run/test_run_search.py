"""The sample's search is planned, run, and shown: trials in the record, the best first on the terminal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from pipelines.cli.main import main
from pipelines.run import Event, RunRecord, TrialRecord, fold

ROOT = Path(__file__).parents[3]


def test_trials_are_folded_by_number_and_the_last_word_counts() -> None:
    def event(*trials: dict[str, object]) -> Event:
        return Event(1.0, "trials", "train", {"trials": list(trials), "best": None})

    begun = {"number": 0, "params": {"l2": 1}, "state": "running"}
    other = {"number": 1, "params": {"l2": 2}, "state": "failed", "error": "diverged"}
    ended = {**begun, "state": "complete", "value": 0.5, "seconds": 2.0, "steps": 7}
    record = fold(RunRecord("r", "p"), [event(begun), event(other), event(ended), event(ended, other)])
    assert record.trials == (
        TrialRecord(0, {"l2": 1}, "complete", 0.5, 2.0, 7),
        TrialRecord(1, {"l2": 2}, "failed", error="diverged"),
    )


@pytest.mark.slow
def test_the_sample_is_searched_and_its_trials_are_shown_best_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUTIRAO_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("MUTIRAO_REGISTRY", str(tmp_path / "registry"))
    monkeypatch.chdir(ROOT)
    command, spec = CliRunner(), "data_samples/flights_search.yaml"
    planned = command.invoke(main, ["plan", spec])
    assert planned.exit_code == 0, planned.output
    assert "search     8 trials, to maximize auc on validation; sampler tpe" in planned.output
    assert "l2: 1e-06 … 0.1 (log)" in planned.output
    done = command.invoke(main, ["run", spec, "--json"])
    assert done.exit_code == 0, done.output
    record = json.loads(done.stdout)
    trials = record["trials"]
    assert [trial["state"] for trial in trials] == ["complete"] * 8
    best = max(trials, key=lambda trial: (trial["value"], -trial["number"]))
    assert record["metrics"]["validation"]["auc"] == best["value"]
    shown = command.invoke(main, ["run", "show", record["run_id"]])
    assert shown.exit_code == 0, shown.output
    table = shown.output[shown.output.index("trials  ") :].splitlines()[2:10]
    order = sorted(trials, key=lambda trial: (-trial["value"], trial["number"]))
    assert [int(line.split()[0]) for line in table] == [trial["number"] for trial in order]
