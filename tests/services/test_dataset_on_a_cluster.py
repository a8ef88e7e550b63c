"""Footers of many files are read on the cluster, with the same result, and here when the cluster fails."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import distributed
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.data import parallel
from pipelines.data.dataset import open_dataset
from pipelines.errors import DataError

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def client() -> Iterator[distributed.Client]:
    options = {"n_workers": 2, "threads_per_worker": 1, "processes": True, "dashboard_address": None}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as client:
        yield client


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(parallel, "MANY_FILES", 10)
    monkeypatch.setattr(parallel, "_CLUSTER_CHUNK", 7)
    for i in range(40):
        kind = pa.int64() if i % 3 else pa.int32()
        pq.write_table(pa.table({"a": pa.array(range(i + 1), kind)}), tmp_path / f"{i:02}.parquet", row_group_size=9)
    return tmp_path


def test_footers_read_on_the_cluster_are_the_same(folder: Path, client: distributed.Client) -> None:
    told: list[tuple[int, int]] = []
    here = open_dataset(str(folder))
    there = open_dataset(str(folder), client=client, progress=lambda done, total: told.append((done, total)))
    assert there.content_digest == here.content_digest
    assert there.row_groups.equals(here.row_groups)
    assert there.files.equals(here.files)
    assert there.drift == here.drift
    assert told[-1] == (40, 40)
    assert not client.futures


def test_bad_files_found_on_the_cluster_are_told_all_at_once(folder: Path, client: distributed.Client) -> None:
    for i in (3, 30):
        (folder / f"{i:02}.parquet").write_bytes(b"")
    with pytest.raises(DataError, match=r"2 files can't be used\n  03.parquet: the file is empty"):
        open_dataset(str(folder), client=client)
    assert open_dataset(str(folder), client=client, on_bad_file="skip").files.num_rows == 38


def test_a_cluster_that_fails_is_done_without(
    folder: Path, client: distributed.Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(parallel, "_CLUSTER_SILENCE_S", 1e-6)
    assert open_dataset(str(folder), client=client).files.num_rows == 40
    assert "40 files" in caplog.text
    assert "the cluster failed" in caplog.text
