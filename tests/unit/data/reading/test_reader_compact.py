"""Compaction changes files and row groups, never rows or their order, and is told before it is done."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.data.commits import list_versions, newest_version
from pipelines.data.compact import compact
from pipelines.data.dataset import Dataset, open_dataset
from pipelines.data.writer import WriteOptions, write_dataset
from pipelines.errors import DataError, UsageError

Write = Callable[..., Dataset]


def table(rows: int, start: int = 0) -> pa.Table:
    numbers = np.arange(start, start + rows)
    return pa.table({"id": numbers, "x": np.random.default_rng(start).random(rows)})


def small_files(write: Write) -> Dataset:
    return write(
        {f"day={d}/part-{i}.parquet": table(50, 100 * d + 50 * i) for d in range(1, 6) for i in (0, 1)},
        row_group_size=10,
    )


def rows_of(url: str) -> pa.Table:
    return pa.concat_tables(pq.read_table(f"{url}/{path}") for path in newest_version(url).paths)


def test_a_dry_run_tells_and_does_nothing(write: Write, tmp_path: Path) -> None:
    told = compact(small_files(write), str(tmp_path / "out"))
    assert (told.files_before, told.files_after, told.files_kept, told.rewritten_rows) == (10, 1, 0, 500)
    assert told.row_groups_before == 50
    assert told.version is None
    assert not (tmp_path / "out").exists()


def test_small_files_become_one_with_folders_as_columns(write: Write, tmp_path: Path) -> None:
    url = str(tmp_path / "out")
    done = compact(small_files(write), url, dry_run=False)
    assert done.version is not None
    assert (done.files_after, len(done.version.files)) == (1, 1)
    assert pq.read_metadata(f"{url}/{done.version.paths[0]}").num_row_groups == 1
    rows = rows_of(url)
    assert rows["id"].to_pylist() == [100 * d + i for d in range(1, 6) for i in range(100)]
    assert rows["day"].to_pylist() == [d for d in range(1, 6) for _ in range(100)]


def test_files_have_about_the_target(write: Write, tmp_path: Path) -> None:
    dataset = write({f"{i:02d}.parquet": table(5000, 5000 * i) for i in range(20)})
    done = compact(dataset, str(tmp_path / "out"), target_bytes=200_000, dry_run=False)
    assert done.version is not None
    assert abs(len(done.version.files) - done.bytes_before / 200_000) <= 1
    assert all(100_000 < file.size < 300_000 for file in done.version.files)
    assert rows_of(str(tmp_path / "out"))["id"].to_pylist() == list(range(100_000))


def test_in_place_only_runs_of_small_files_are_written_again(tmp_path: Path) -> None:
    url = str(tmp_path / "data")
    large, small = table(20_000), [table(10, 20_000 + 10 * i) for i in range(4)]
    write_dataset([large], url)
    for one in small:
        write_dataset([one], url, mode="append")
    write_dataset([table(20_000, 20_040)], url, mode="append", options=WriteOptions(row_group_bytes=100_000))
    kept = [file for file in newest_version(url).files if file.rows == 20_000]
    dataset = open_dataset({"versioned": url})
    done = compact(dataset, url, target_bytes=200_000, dry_run=False)
    assert (done.files_before, done.files_kept, done.rewritten_rows) == (6, 2, 40)
    assert done.version is not None
    assert [file.rows for file in done.version.files] == [20_000, 40, 20_000]
    assert [done.version.files[0], done.version.files[2]] == kept
    assert rows_of(url)["id"].to_pylist() == list(range(40_040))
    # Now there is nothing to do, and no version for it.
    again = compact(open_dataset({"versioned": url}), url, target_bytes=200_000, dry_run=False)
    assert again.version is None
    assert len(list(list_versions(url))) == 7


def test_what_can_not_be_compacted_is_told(write: Write, tmp_path: Path) -> None:
    dataset = small_files(write)
    with pytest.raises(UsageError, match="a plain folder can't be compacted where it is"):
        compact(dataset, dataset.root)
    with pytest.raises(UsageError, match="a pruned dataset"):
        compact(dataset.prune("id > 300").dataset, str(tmp_path / "out"))
    url = str(tmp_path / "versioned")
    write_dataset([table(10)], url)
    stale = open_dataset({"versioned": url})
    write_dataset([table(5)], url, mode="append")
    with pytest.raises(DataError, match="not the newest version"):
        compact(stale, url)
    assert os.listdir(url)
