"""Saving in the background: the newest state is written, older ones do not queue up, and failures end nothing."""

from __future__ import annotations

import threading

import pytest

from pipelines.errors import StorageError
from pipelines.training.saving import Saver

LIMIT_S = 10.0


class Slow:
    """Writes once it is allowed to."""

    def __init__(self) -> None:
        self.go, self.begun = threading.Semaphore(0), threading.Semaphore(0)
        self.written: list[tuple[int, bytes]] = []

    def __call__(self, step: int, payload: bytes) -> None:
        self.begun.release()
        assert self.go.acquire(timeout=LIMIT_S)
        self.written.append((step, payload))


def test_offering_never_waits_and_the_newest_takes_the_place_of_what_waits() -> None:
    write, told = Slow(), list[str]()
    saver = Saver(write, told.append)
    saver.offer(1, b"one")
    assert write.begun.acquire(timeout=LIMIT_S)
    for step in (2, 3, 4):
        saver.offer(step, b"later")
    assert not saver.finish(0.0)
    write.go.release(2)
    assert saver.finish(LIMIT_S)
    assert write.written == [(1, b"one"), (4, b"later")]
    assert (saver.saved, saver.replaced, told) == (2, 2, [])


def test_a_saver_with_nothing_to_do_has_no_thread_and_begins_again() -> None:
    before = threading.active_count()
    written: list[int] = []
    saver = Saver(lambda step, payload: written.append(step), lambda text: None)
    assert saver.finish(0.0)
    for step in range(5):
        saver.offer(step, b"")
        assert saver.finish(LIMIT_S)
    assert written == list(range(5))
    for thread in threading.enumerate():
        if thread.name == "checkpoints":
            thread.join(LIMIT_S)
    assert threading.active_count() <= before


@pytest.mark.parametrize("error", [StorageError("there is no space left", on="s3://x"), ValueError("odd")])
def test_what_goes_wrong_is_told_once_in_a_row_and_the_next_is_tried(error: Exception) -> None:
    failing, written, told = [True, True, False, True], list[int](), list[str]()

    def write(step: int, payload: bytes) -> None:
        if failing[step]:
            raise error
        written.append(step)

    saver = Saver(write, told.append)
    for step in range(4):
        saver.offer(step, b"")
        assert saver.finish(LIMIT_S)
    assert written == [2]
    assert [text.split(" was")[0] for text in told] == ["the checkpoint of step 0", "the checkpoint of step 3"]
    assert str(error) in told[0]
