"""What a run's record says of its training: losses, waits, interruptions, faults on purpose and what came of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipelines.cli.follow import follow
from pipelines.cli.training_view import show_training
from pipelines.codec import dump, load
from pipelines.errors import UsageError
from pipelines.run.chaos import announced, concluded, faults_left, read_chaos, resumes_by_itself
from pipelines.run.journal import Event, JournalWriter, read_journal
from pipelines.run.record import RunRecord, fold
from pipelines.run.training_log import TrainingLog, interruption
from pipelines.run.training_record import TrainingRecord
from pipelines.spec import load_spec
from pipelines.storage import open_store
from pipelines.training.gang import Struck
from pipelines.training.gang.chaos import ChaosSpec, plan_faults
from pipelines.training.happenings import Happening

LOSS = {"formation": 1, "rank": 1, "worker": "w", "cause": "killed", "text": "was killed by SIGKILL\nlog", "at": 5.0}
CERTIFICATE: dict[str, Any] = {
    "final": "ab" * 32, "of": "x", "unit": "epoch", "digests": [[1, "cd" * 32]], "broken_by": [],
    "equal_for": "any number of workers",
}  # fmt: skip


def resumption(formation: int, step: int, *, lost: int = 0, stored: bool = False, saved_at: float = 0.0) -> Happening:
    data = {"formation": formation, "step": step, "lost_steps": lost, "lost_s": 0.5 * lost}
    return Happening("resumption", "the training goes on", {**data, "stored": stored, "saved_at": saved_at})


def formation(number: int, ranks: int, waited_s: float = 0.0) -> Happening:
    return Happening("formation", "ranks have met", {"formation": number, "ranks": ranks, "waited_s": waited_s})


class Run:
    """A journal, and what is folded from it."""

    def __init__(self, folder: Path) -> None:
        self.store = open_store(str(folder))
        self.journal = JournalWriter(self.store, "runs/x")

    def attempt(self, number: int, before: Event | None = None) -> TrainingLog:
        self.journal.append("attempt", number=number)
        self.journal.append("stage", "train", status="running")
        return TrainingLog(self.journal, number, before)

    def events(self) -> Iterator[Event]:
        return (event for _, event in read_journal(self.store, "runs/x"))

    def record(self) -> RunRecord:
        record = fold(RunRecord("x", "p"), self.events())
        assert load(RunRecord, dump(record)) == record
        return record


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def progress(done: int, at: float, unit: str = "steps", **data: Any) -> Event:
    return Event(at, "progress", "train", {"done": done, "unit": unit, **data})


def test_losses_are_notices_and_are_counted_over_all_attempts(run: Run) -> None:
    log = run.attempt(1)
    for happening in (
        formation(1, 2, 1.5),
        resumption(1, 0),
        Happening("loss", "rank 1 was lost", LOSS),
        formation(2, 1, 0.5),
        resumption(2, 7, lost=2),
    ):
        log.happened(happening)
    first = run.record()
    assert first.notices == ("rank 1 was lost", "the training goes on")
    assert first.training == TrainingRecord(2, 1, (LOSS,), 2.0, 2, 1.0)
    assert first.exit_code == 0
    log = run.attempt(2)
    log.happened(formation(1, 2))
    log.happened(Happening("loss", "rank 0 was lost", LOSS))
    run.journal.append("stage", "train", status="done", summary={"checkpoints": 4})
    run.journal.append("end", exit_code=0, attempt=2)
    record = run.record()
    assert record.status == "succeeded"
    assert record.training is not None
    assert (len(record.training.losses), record.training.formations, record.training.checkpoints) == (2, 3, 4)


def test_what_an_interruption_has_cost_is_counted_from_the_last_progress(run: Run) -> None:
    run.attempt(1)
    log = run.attempt(2, progress(40, at=107.5))
    log.happened(formation(1, 2))
    log.happened(resumption(1, 30, stored=True, saved_at=105.0))
    log.happened(resumption(2, 35))
    record = run.record()
    assert record.training is not None
    [lost] = record.training.interruptions
    assert lost == {"attempt": 2, "step": 30, "steps": 10, "seconds": 2.5}
    assert "10 steps, 2.5 s of work, were lost by the interruption" in record.notices


@pytest.mark.parametrize(
    ("before", "step", "saved_at", "steps", "seconds"),
    [
        (progress(40, at=107.5), 40, 107.0, 0, 0.0),
        (progress(40, at=107.5), 44, 108.0, 0, 0.0),  # progress is written twice a second: the state may be newer
        (progress(40, at=107.5, began=100.0), 0, 0.0, 40, 7.5),
        (progress(5000, at=107.5, unit="loads"), 0, 0.0, 0, 0.0),
        (progress(40, at=107.5), 30, 110.0, 10, 0.0),  # another machine's clock is ahead
    ],
)
def test_interruptions_cost_what_came_after_the_state(
    before: Event, step: int, saved_at: float, steps: int, seconds: float
) -> None:
    assert interruption(before, step=step, saved_at=saved_at) == {"step": step, "steps": steps, "seconds": seconds}


def test_a_line_is_shown_for_each_and_waits_are_no_notices(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    log = run.attempt(1)
    log.happened(Happening("waits", "waits for workers: place 2", {"position": 2}))
    log.happened(Happening("loss", "rank 1 was lost", LOSS))
    record = follow(RunRecord("x", "p"), run.events())
    shown = capsys.readouterr().err.splitlines()
    assert "  waits for workers: place 2" in shown
    assert "! rank 1 was lost" in shown
    assert record.notices == ("rank 1 was lost",)
    follow(RunRecord("x", "p"), run.events(), since=1)
    assert capsys.readouterr().err == ""


def test_the_record_is_shown_in_a_few_lines(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    log = run.attempt(1)
    log.happened(formation(1, 2))
    log.happened(Happening("loss", "rank 1 was lost", LOSS))
    log.happened(formation(2, 1))
    run.journal.append("stage", "train", status="done", summary={"checkpoints": 2, "certificate": CERTIFICATE})
    show_training(run.record())
    shown = capsys.readouterr().out
    assert "2 formations, 1 ranks lost, 2 checkpoints saved" in shown
    assert "rank 1 on w: was killed by SIGKILL" in shown
    assert f"sha256 {'ab' * 32}" in shown
    assert "log" not in shown


CHAOS = ChaosSpec(kill=2, driver=1, seed=7)


def strike(log: TrainingLog, number: int, harm: str = "kill") -> None:
    fault = next(each for each in plan_faults(CHAOS) if each.harm == harm and each.number >= number)
    log.append("fault", "chaos", {**Struck(fault, 0, "w", 3).to_plain(), "attempt": log._attempt}, notice=True)


def test_faults_that_have_struck_do_not_strike_again_after_a_resumption(run: Run) -> None:
    text, plain = announced(CHAOS)
    assert all(f"{number}. " in text for number in (1, 2, 3))
    log = run.attempt(1)
    log.append("chaos", text, plain, notice=True)
    assert faults_left(CHAOS, run.record()) == list(plan_faults(CHAOS))
    strike(log, 1, "driver")
    left = faults_left(CHAOS, run.record())
    assert [fault.harm for fault in left] == ["kill", "kill"]


@pytest.mark.parametrize(
    ("harm", "error", "itself"),
    [("driver", "DriverLost", True), ("kill", "DriverLost", False), ("driver", "GangError", False)],
)
def test_only_a_driver_that_was_killed_on_purpose_is_resumed(run: Run, harm: str, error: str, itself: bool) -> None:
    strike(run.attempt(1), 1, harm)
    run.journal.append("end", exit_code=5, attempt=1, type=error, message="gone")
    assert resumes_by_itself(run.record()) is itself
    run.attempt(2)
    run.journal.append("end", exit_code=5, attempt=2, type=error, message="gone")
    assert not resumes_by_itself(run.record())


def test_the_conclusion_says_what_struck_what_not_and_whose_bits_came_out(run: Run) -> None:
    log = run.attempt(1)
    strike(log, 1)
    training = run.record().training
    assert training is not None
    text, plain = concluded(CHAOS, training, CERTIFICATE, None)
    assert text.startswith("chaos: 1 of 3 faults struck")
    assert "2 could not be injected because the training ended sooner" in text
    assert "certified for any number of workers" in text
    assert plain["conclusion"]["same_bits"] is None
    assert "are to the bit those" in concluded(CHAOS, training, CERTIFICATE, CERTIFICATE)[0]
    assert "are NOT those" in concluded(CHAOS, training, CERTIFICATE, CERTIFICATE | {"final": "ef"})[0]
    assert concluded(CHAOS, training, CERTIFICATE, CERTIFICATE | {"of": "y"})[1]["conclusion"]["same_bits"] is None


def test_chaos_is_refused_where_it_would_hurt(make_spec: Callable[..., dict[str, Any]]) -> None:
    spec = load_spec(make_spec())
    assert read_chaos("kill=1", spec) == ChaosSpec(kill=1)
    boosting = load_spec(make_spec(train={"estimator": "xgboost"}))
    with pytest.raises(UsageError, match="does not go on after a loss"):
        read_chaos("kill=1", boosting)
    searching = load_spec(make_spec(train={"estimator": "logistic_regression", "tune": {"space": {"l2": [0.1, 1.0]}}}))
    with pytest.raises(UsageError, match="a search has many"):
        read_chaos("kill=1", searching)
    elsewhere = spec.model_copy(update={"cluster": spec.cluster.model_copy(update={"backend": "yarn"})})
    with pytest.raises(UsageError, match="local clusters only"):
        read_chaos("kill=1", elsewhere)
