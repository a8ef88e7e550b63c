"""Versions of a dataset appear whole or not at all, and keep what they hold."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.data import commits
from pipelines.data.commits import (
    begin_write,
    collect,
    commit,
    is_versioned,
    list_versions,
    newest_version,
    open_version,
)
from pipelines.data.dataset import open_dataset
from pipelines.data.reader import read_batches
from pipelines.data.shards import Shard, plan_shards
from pipelines.data.source import Source, make_source
from pipelines.data.writer import WriteOptions, write_dataset, write_part, write_shards
from pipelines.errors import DataError, NotFoundError, UsageError

NOW = timedelta(0)
SMALL = WriteOptions(file_bytes=40_000, row_group_bytes=20_000)


def table(rows: int, start: int = 0) -> pa.Table:
    numbers = np.arange(start, start + rows)
    texts = pa.array([f"c{i % 5}" for i in numbers], pa.string())
    return pa.table({"id": numbers, "x": (numbers / 7).astype(np.float32), "c": texts.dictionary_encode()})


def rows_of(url: str, number: int | None = None) -> pa.Table:
    version = newest_version(url) if number is None else open_version(url, number)
    return pa.concat_tables(pq.read_table(f"{url}/{path}") for path in version.paths)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return str(tmp_path / "versioned")


def test_rows_keep_their_order_over_files_and_row_groups(url: str) -> None:
    held = table(20_000)
    version = write_dataset(held.to_batches(777), url, options=SMALL)
    assert (version.number, version.rows) == (1, 20_000)
    assert len(version.files) > 3
    assert list(version.paths) == sorted(version.paths)
    assert rows_of(url)["id"].to_pylist() == list(range(20_000))
    assert rows_of(url).schema.equals(held.schema)
    for file in version.files:
        assert os.path.getsize(f"{url}/{file.path}") == file.size
        assert pq.read_metadata(f"{url}/{file.path}").num_rows == file.rows
    assert is_versioned(url)


def test_floats_are_plain_and_others_have_dictionaries(url: str) -> None:
    version = write_dataset([table(1000)], url)
    group = pq.read_metadata(f"{url}/{version.paths[0]}").row_group(0)
    assert [group.column(i).has_dictionary_page for i in range(3)] == [True, False, True]
    version = write_dataset([table(1000)], url, options=WriteOptions(plain_floats=False))
    assert pq.read_metadata(f"{url}/{version.paths[0]}").row_group(0).column(1).has_dictionary_page


def test_a_large_dictionary_does_not_make_row_groups_small(url: str) -> None:
    codes = pa.array(np.arange(50_000) % 10, pa.int32())
    large = pa.DictionaryArray.from_arrays(codes, pa.array([f"{i:0100d}" for i in range(10_000)]))
    version = write_dataset([pa.table({"c": large})], url, options=WriteOptions(row_group_bytes=100_000))
    metadata = pq.read_metadata(f"{url}/{version.paths[0]}")
    assert metadata.num_row_groups == 2


def test_overwriting_appending_and_going_back(url: str) -> None:
    write_dataset([table(10)], url)
    write_dataset([table(5, 10)], url, mode="append", properties={"why": "more"})
    write_dataset([table(3)], url)
    assert [version.number for version in list_versions(url)] == [3, 2, 1]
    assert rows_of(url)["id"].to_pylist() == [0, 1, 2]
    assert rows_of(url, 2)["id"].to_pylist() == list(range(15))
    assert rows_of(url, 1)["id"].to_pylist() == list(range(10))
    assert open_version(url, 2).properties == {"why": "more", "mode": "append"}
    with pytest.raises(NotFoundError, match="no version '4'"):
        open_version(url, 4)
    assert [open_dataset({"versioned": url, "version": n}).rows for n in (1, 2, 3)] == [10, 15, 3]
    assert open_dataset({"versioned": url}).rows == open_dataset(url).rows == 3


def test_nothing_is_there_before_the_commit(url: str) -> None:
    with pytest.raises(NotFoundError, match="no versioned dataset"):
        newest_version(url)
    write = begin_write(url)
    files = write_part(write, 0, [table(10)], table(0).schema)
    assert not is_versioned(url)
    commit(write, files)
    assert rows_of(url).num_rows == 10


def test_a_failing_source_leaves_the_version_before_and_no_files(url: str) -> None:
    write_dataset([table(10)], url)

    def failing() -> Iterator[pa.Table]:
        yield table(20_000)
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        write_dataset(failing(), url, options=WriteOptions(row_group_bytes=10_000))
    assert rows_of(url).num_rows == 10
    assert len(collect(url, older_than=NOW).paths) == 0


def test_what_can_not_be_written_is_named(url: str) -> None:
    with pytest.raises(DataError, match="nothing to write"):
        write_dataset([], url)
    with pytest.raises(DataError, match="another schema"):
        write_dataset([table(3), pa.table({"id": [1]})], url)
    assert write_dataset([], url, schema=table(0).schema).rows == 0


LIMITED = """
import resource, signal, sys, pyarrow as pa
from pipelines.data.writer import write_dataset
from pipelines.errors import StorageError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    write_dataset([pa.table({"id": list(range(200_000))})], sys.argv[1])
except StorageError as error:
    print(error)
"""


def test_a_place_that_takes_no_more_is_an_error_of_the_store(url: str) -> None:
    write_dataset([table(10)], url)
    found = subprocess.run([sys.executable, "-c", LIMITED, url], capture_output=True, text=True, check=True)
    assert "can't write: the file is larger than this place allows" in found.stdout
    assert rows_of(url).num_rows == 10
    assert collect(url, older_than=NOW).paths == ()


# --- races and losses ------------------------------------------------------------------------------------------------


def test_writers_who_race_all_commit_with_numbers_without_gaps(url: str) -> None:
    errors: list[BaseException] = []

    def run(i: int) -> None:
        try:
            write_dataset([table(1, i)], url, mode="append")
        except BaseException as error:  # noqa: BLE001 - shown below
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert [version.number for version in list_versions(url)] == list(range(12, 0, -1))
    assert sorted(rows_of(url)["id"].to_pylist()) == list(range(12))


def test_a_commit_that_is_tried_again_is_the_same_version(url: str) -> None:
    write = begin_write(url)
    files = write_part(write, 0, [table(10)], table(0).schema)
    first = commit(write, files)
    write_dataset([table(1)], url, mode="append")
    assert commit(write, files) == first
    assert newest_version(url).number == 2


def test_a_commit_on_top_of_a_version_that_is_no_longer_the_newest_is_refused(url: str) -> None:
    base = write_dataset([table(10)], url)
    write = begin_write(url)
    write_dataset([table(1)], url)
    with pytest.raises(DataError, match="expected version 1 to be the newest; found version 2"):
        commit(write, [], replaces=base)


KILLED = """
import sys, time, pyarrow as pa
from pipelines.data.writer import write_dataset, WriteOptions
def batches():
    yield pa.table({"id": list(range(50_000))})
    print("writing", flush=True)
    time.sleep(60)
write_dataset(batches(), sys.argv[1], options=WriteOptions(file_bytes=20_000, row_group_bytes=20_000))
"""


def test_a_killed_writer_leaves_the_version_before_and_files_that_are_collected(url: str) -> None:
    write_dataset([table(10)], url)
    with subprocess.Popen([sys.executable, "-c", KILLED, url], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "writing\n"
        writer.send_signal(signal.SIGKILL)
    assert rows_of(url)["id"].to_pylist() == list(range(10))
    assert collect(url).paths == ()  # too young: their writer might be alive
    found = collect(url, older_than=NOW)
    assert found.paths
    assert found.bytes > 0
    assert collect(url, older_than=NOW, dry_run=False) == found
    assert collect(url, older_than=NOW).paths == ()
    assert rows_of(url).num_rows == 10


def test_old_versions_are_collected_with_the_files_that_only_they_have(url: str) -> None:
    write_dataset([table(10)], url)
    write_dataset([table(5, 10)], url, mode="append")
    write_dataset([table(3)], url)
    write_dataset([table(4, 3)], url, mode="append")
    found = collect(url, keep=2, older_than=NOW, dry_run=False)
    assert found.versions == (2, 1)
    assert len(found.paths) == 2
    assert [version.number for version in list_versions(url)] == [4, 3]
    assert rows_of(url)["id"].to_pylist() == list(range(7))
    assert write_dataset([table(1)], url).number == 5
    with pytest.raises(UsageError):
        collect(url, keep=0)


def test_records_are_listed_newest_first_by_their_keys(url: str) -> None:
    for _ in range(3):
        write_dataset([table(1)], url)
    keys = sorted(os.listdir(f"{url}/{commits.VERSIONS}"))
    assert keys == ["9999999997.json", "9999999998.json", "9999999999.json"]


# --- by shards -------------------------------------------------------------------------------------------------------


def doubled(shard: Shard, source: Source) -> Iterator[pa.RecordBatch]:
    for read in read_batches(source, [shard], ["id"]):
        yield pa.record_batch({"twice": pa.array(read.batch["id"].to_numpy() * 2)})


def test_shards_are_written_side_by_side_in_their_order(tmp_path: Path, url: str) -> None:
    (tmp_path / "in").mkdir()
    pq.write_table(table(5000), tmp_path / "in" / "a.parquet", row_group_size=500)
    dataset = open_dataset(str(tmp_path / "in"))
    plan = plan_shards(dataset, ["id"], shards=7)
    schema = pa.schema([("twice", pa.int64())])
    version = write_shards(None, doubled, plan.shards, make_source(dataset), url=url, schema=schema)
    assert len(version.files) == 7
    assert rows_of(url)["twice"].to_pylist() == [2 * i for i in range(5000)]
