"""The journal tells what happened, in order, whole entries only; the record is folded from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.codec import dump, load
from pipelines.errors import ObjectExistsError, StorageError, UnreachableStoreError, UsageError
from pipelines.run.journal import Event, JournalWriter, ProgressBoard, read_journal, read_progress
from pipelines.run.record import RunRecord, fold
from pipelines.storage import ObjectStore, open_store


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store(str(tmp_path))


def kinds(store: ObjectStore) -> list[tuple[str, str]]:
    return [(event.kind, event.stage) for _, event in read_journal(store, "runs/x")]


def test_events_are_published_in_order_and_continue_after_a_key(store: ObjectStore) -> None:
    journal = JournalWriter(store, "runs/x")
    journal.append("attempt", number=1)
    journal.append("stage", "split", status="running")
    [(first, _), (last, _)] = list(read_journal(store, "runs/x"))
    journal.append("end", exit_code=0)
    assert kinds(store) == [("attempt", ""), ("stage", "split"), ("end", "")]
    assert [event.kind for _, event in read_journal(store, "runs/x", after=first)] == ["stage", "end"]
    assert [event.kind for _, event in read_journal(store, "runs/x", after=last)] == ["end"]


def test_a_long_training_makes_no_long_journal(store: ObjectStore) -> None:
    board = ProgressBoard(store, "runs/x", attempt=2)
    for done in range(100):
        board.post("train", done=done)
        board.publish()
    board.post("features", done=7)
    board.publish()
    assert kinds(store) == []
    found = {event.stage: event.data["done"] for event in read_progress(store, "runs/x", 2)}
    assert found == {"train": 99, "features": 7}
    assert read_progress(store, "runs/x", 1) == []
    assert len(list(store.list("runs/x"))) == 1


def test_a_second_writer_goes_on_where_the_first_stopped(store: ObjectStore) -> None:
    JournalWriter(store, "runs/x").append("attempt", number=1)
    JournalWriter(store, "runs/x").append("attempt", number=2)
    assert [event.data["number"] for _, event in read_journal(store, "runs/x")] == [1, 2]


def test_two_drivers_at_once_are_noticed(store: ObjectStore) -> None:
    one, two = JournalWriter(store, "runs/x"), JournalWriter(store, "runs/x")
    one.append("attempt", number=1)
    with pytest.raises(ObjectExistsError, match="another driver"):
        two.append("attempt", number=2)


class Flaky:
    """A store whose creates fail, before they have written or after."""

    def __init__(self, inner: ObjectStore, *, reply_lost: bool) -> None:
        self.inner, self.reply_lost, self.broken = inner, reply_lost, True

    def create(self, key: str, data: bytes) -> object:
        if self.broken and not self.reply_lost:
            raise UnreachableStoreError("no network")
        info = self.inner.create(key, data)
        if self.broken:
            raise UnreachableStoreError("the reply was lost")
        return info

    def get(self, key: str) -> bytes:
        if self.broken:
            raise UnreachableStoreError("no network")
        return self.inner.get(key)

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)


@pytest.mark.slow
@pytest.mark.parametrize("reply_lost", [False, True])
def test_events_outlive_a_store_that_fails_for_a_while(store: ObjectStore, reply_lost: bool) -> None:
    flaky = Flaky(store, reply_lost=reply_lost)
    journal = JournalWriter(flaky, "runs/x")  # type: ignore[arg-type]  # the protocol, by delegation
    journal.append("attempt", number=1)
    journal.append("stage", "split", status="running")
    with pytest.raises(StorageError):
        journal.flush()
    flaky.broken = False
    journal.append("end", exit_code=0)
    assert kinds(store) == [("attempt", ""), ("stage", "split"), ("end", "")]


def test_a_journal_of_a_later_release_is_refused(store: ObjectStore) -> None:
    store.create("runs/x/journal/0000000000.json", b'{"schema": 2, "events": []}')
    with pytest.raises(UsageError, match="later release"):
        list(read_journal(store, "runs/x"))


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


def test_what_was_under_way_at_the_end_is_not_running_any_more() -> None:
    begun = [Event(1.0, "attempt", data={"number": 1}), Event(2.0, "stage", "train", {"status": "running"})]
    for code, status in ((130, "interrupted"), (5, "failed")):
        record = fold(RunRecord("x", "p"), [*begun, Event(3.0, "end", data={"exit_code": code, "message": "m"})])
        assert [stage.status for stage in record.stages] == [status]


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
