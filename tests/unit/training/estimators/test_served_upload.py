"""Storing goes on beside the training, one at a time, and what goes wrong is told to who trains."""

from __future__ import annotations

import threading

import pytest

from pipelines.errors import StorageError
from pipelines.training.estimators.served_upload import Uploads


def test_work_is_taken_when_it_is_done_and_once() -> None:
    uploads: Uploads[float] = Uploads()
    assert uploads.take(wait=True) is None
    going = threading.Event()

    def work() -> float:
        assert going.wait(20)
        return 0.5

    uploads.begin(work)
    assert uploads.busy
    assert uploads.take() is None
    going.set()
    assert uploads.take(wait=True) == 0.5
    assert not uploads.busy
    assert uploads.take() is None


def test_its_error_is_raised_where_it_is_taken() -> None:
    uploads: Uploads[float] = Uploads()

    def work() -> float:
        raise StorageError("the store is full")

    uploads.begin(work)
    with pytest.raises(StorageError, match="the store is full"):
        uploads.take(wait=True)
    uploads.begin(lambda: 1.0)
    assert uploads.take(wait=True) == 1.0
