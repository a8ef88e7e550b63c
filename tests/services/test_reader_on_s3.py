"""Datasets are read from and written to a real S3 server, and a changed object is refused."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.data.compact import compact
from pipelines.data.dataset import open_dataset
from pipelines.data.reader import read_batches
from pipelines.data.shards import plan_shards
from pipelines.data.source import make_source
from pipelines.data.writer import WriteOptions, write_dataset
from pipelines.errors import DatasetChangedError
from pipelines.storage import open_store

pytestmark = pytest.mark.slow


def parquet(rows: int, start: int = 0) -> bytes:
    buffer = io.BytesIO()
    numbers = np.arange(start, start + rows)
    pq.write_table(pa.table({"id": numbers, "x": numbers / 7}), buffer, row_group_size=5000)
    return buffer.getvalue()


def ids(url: str, columns: tuple[str, ...] = ("id", "x"), cap: int = 64 << 20) -> list[int]:
    dataset = open_dataset(url)
    shards = plan_shards(dataset, list(columns), shards=5).shards
    reads = read_batches(make_source(dataset), shards, list(columns), max_bytes_in_flight=cap)
    return [each for read in reads for each in read.batch["id"].to_pylist()]


def test_batches_come_from_s3_whole_and_buffered(s3_url: str) -> None:
    store = open_store(s3_url)
    for i in range(3):
        store.create(f"month={i}/part.parquet", parquet(20_000, 20_000 * i))
    assert ids(s3_url) == list(range(60_000))
    # Too small a cap to fetch column chunks at once: they are read buffer by buffer.
    assert ids(s3_url, cap=100_000) == list(range(60_000))


@pytest.mark.parametrize("when", ["before", "within"])
def test_an_object_written_again_is_refused(s3_url: str, when: str) -> None:
    store = open_store(s3_url)
    store.create("a.parquet", parquet(20_000))
    store.create("b.parquet", parquet(20_000, 20_000))
    dataset = open_dataset(s3_url)
    shards = plan_shards(dataset, ["id"], shards=1).shards
    reads = read_batches(make_source(dataset), shards, ["id"], threads=0)
    if when == "within":
        next(reads)
    store.replace("b.parquet", parquet(20_000, 20_001))
    with pytest.raises(DatasetChangedError, match=r"b.parquet: the file is another one"):
        list(reads)
    store.delete("b.parquet")
    with pytest.raises(DatasetChangedError, match=r"b.parquet: the file is gone"):
        list(read_batches(make_source(dataset), shards, ["id"]))


def test_versions_are_written_to_s3_and_compacted_there(s3_url: str) -> None:
    held = pa.table({"id": np.arange(50_000), "x": np.arange(50_000) / 7})
    small = WriteOptions(file_bytes=50_000, row_group_bytes=25_000)
    version = write_dataset(held.to_batches(1000), s3_url, options=small)
    assert len(version.files) > 5
    assert ids(s3_url) == list(range(50_000))
    write_dataset([held.slice(0, 10)], s3_url, mode="append")
    done = compact(open_dataset({"versioned": s3_url}), s3_url, target_bytes=10 << 20, dry_run=False)
    assert done.version is not None
    assert done.version.number == 3
    assert len(done.version.files) == 1
    assert ids(s3_url) == [*range(50_000), *range(10)]
