"""The journal tells what happened, in order, whole entries only; the record is folded from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.codec import dump, load
from pipelines.errors import ObjectExistsError, StorageError
from pipelines.run.journal import Event, JournalWriter, read_journal
from pipelines.run.record import RunRecord, fold
from pipelines.storage import ObjectStore, open_store


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store(str(tmp_path))


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def kinds(store: ObjectStore) -> list[tuple[str, str]]:
    return [(event.kind, event.stage) for _, event in read_journal(store, "runs/x")]


def test_events_are_published_in_order_and_continue_after_a_key(store: ObjectStore) -> None:
    clock = Clock()
    journal = JournalWriter(store, "runs/x", clock=clock)
    journal.append("attempt", number=1)
    clock.now += 2
    journal.append("stage", "split", status="running", now=True)
    [(first, _), (last, _)] = list(read_journal(store, "runs/x"))
    journal.append("end", exit_code=0)
    journal.flush()
    assert kinds(store) == [("attempt", ""), ("stage", "split"), ("end", "")]
    assert [event.kind for _, event in read_journal(store, "runs/x", after=first)] == ["stage", "end"]
    assert [event.kind for _, event in read_journal(store, "runs/x", after=last)] == ["end"]


def test_only_the_last_unwritten_progress_is_kept(store: ObjectStore) -> None:
    clock = Clock()
    journal = JournalWriter(store, "runs/x", clock=clock)
    journal.append("attempt", number=1, now=True)
    for done in range(100):
        journal.append("progress", "train", done=done)
    journal.append("progress", "features", done=7)
    journal.flush()
    events = [event for _, event in read_journal(store, "runs/x") if event.kind == "progress"]
    assert [(event.stage, event.data["done"]) for event in events] == [("train", 99), ("features", 7)]


def test_a_second_writer_goes_on_where_the_first_stopped(store: ObjectStore) -> None:
    JournalWriter(store, "runs/x").append("attempt", number=1, now=True)
    JournalWriter(store, "runs/x").append("attempt", number=2, now=True)
    assert [event.data["number"] for _, event in read_journal(store, "runs/x")] == [1, 2]


def test_two_drivers_at_once_are_noticed(store: ObjectStore) -> None:
    one, two = JournalWriter(store, "runs/x"), JournalWriter(store, "runs/x")
    one.append("attempt", number=1, now=True)
    with pytest.raises(ObjectExistsError, match="another driver"):
        two.append("attempt", number=2, now=True)


def test_events_outlive_a_store_that_fails_for_a_while(tmp_path: Path) -> None:
    class Flaky:
        def __init__(self, inner: ObjectStore) -> None:
            self.inner, self.broken = inner, True

        def __getattr__(self, name: str) -> object:
            if self.broken and name == "create":
                raise StorageError("no network")
            return getattr(self.inner, name)

    store = open_store(str(tmp_path))
    flaky = Flaky(store)
    journal = JournalWriter(flaky, "runs/x")  # type: ignore[arg-type]  # the protocol, by delegation
    journal.append("attempt", number=1, now=True)
    with pytest.raises(StorageError):
        journal.flush()
    flaky.broken = False
    journal.append("end", exit_code=0, now=True)
    assert kinds(store) == [("attempt", ""), ("end", "")]


def story() -> list[Event]:
    return [
        Event(1.0, "attempt", data={"number": 1}),
        Event(2.0, "stage", "train", {"status": "running", "why": "new"}),
        Event(3.0, "progress", "train", {"done": 5, "total": 10}),
        Event(4.0, "stage", "train", {"status": "failed", "seconds": 2.0}),
        Event(5.0, "end", data={"exit_code": 4, "type": "TrainingError", "message": "diverged"}),
        Event(6.0, "attempt", data={"number": 2}),
        Event(7.0, "stage", "train", {"status": "done", "seconds": 3.0, "summary": {"n_iter": 9}}),
        Event(8.0, "stage", "evaluate", {"status": "done", "summary": {"metrics": {"test": {"auc": 0.7}}}}),
        Event(9.0, "stage", "publish", {"status": "done", "summary": {"version": "m/3"}}),
        Event(9.5, "end", data={"exit_code": 0}),
    ]


def test_a_record_is_folded_from_events() -> None:
    record = fold(RunRecord("x", "p"), story())
    assert (record.status, record.attempts, record.exit_code) == ("succeeded", 2, 0)
    assert record.metrics == {"test": {"auc": 0.7}}
    assert record.version == "m/3"
    train = record.stage("train")
    assert train is not None
    assert (train.status, train.summary) == ("done", {"n_iter": 9})
    assert load(RunRecord, dump(record)) == record


def test_folding_in_pieces_is_folding_at_once() -> None:
    events = story()
    for cut in range(len(events)):
        assert fold(fold(RunRecord("x", "p"), events[:cut]), events[cut:]) == fold(RunRecord("x", "p"), events)


@pytest.mark.parametrize(
    ("code", "status"), [(4, "failed"), (5, "failed"), (6, "preempted"), (7, "gate_not_met"), (130, "interrupted")]
)
def test_the_exit_code_says_how_a_run_ended(code: int, status: str) -> None:
    record = fold(RunRecord("x", "p"), [Event(1.0, "end", data={"exit_code": code, "message": "m"})])
    assert (record.status, record.exit_code) == (status, code)
