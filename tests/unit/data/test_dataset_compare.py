"""Two datasets differ by schema, files, rows and statistics."""

from __future__ import annotations

import datetime as dt
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines import codec
from pipelines.data.compare import ColumnDifference, ColumnSummary, DatasetDiff, StatisticsDifference, compare
from pipelines.data.dataset import open_dataset


def _write(folder: Path, name: str, **columns: list[object]) -> None:
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.table(columns), folder / name)


def test_a_copy_does_not_differ(tmp_path: Path) -> None:
    _write(tmp_path / "a", "x.parquet", a=[1, 2])
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    diff = compare(open_dataset(str(tmp_path / "a")), open_dataset(str(tmp_path / "b")))
    assert diff.same_content
    assert diff.files.same == 1
    assert (diff.schema, diff.statistics, diff.rows) == ((), (), (2, 2))


def test_all_differences_are_told(tmp_path: Path) -> None:
    day = dt.date(2013, 1, 1)
    _write(tmp_path / "a", "same.parquet", a=[1, None], s=["x", "y"], gone=[1.5, 2.5], day=[day, day])
    _write(tmp_path / "a", "changed.parquet", a=[3], s=["z"], gone=[0.5], day=[day])
    _write(tmp_path / "a", "removed.parquet", a=[9], s=["y"], gone=[float("inf")], day=[day])
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    (tmp_path / "b" / "removed.parquet").unlink()
    _write(tmp_path / "b", "changed.parquet", a=[2.5, None], s=["z", None], day=[day, day], new=[True, False])
    _write(tmp_path / "b", "added.parquet", a=[1], s=["aa"], gone=[1.0], day=[day])
    diff = compare(open_dataset(str(tmp_path / "a")), open_dataset(str(tmp_path / "b")))
    assert not diff.same_content
    assert diff.schema == (ColumnDifference("a", "int64", "double"), ColumnDifference("new", "", "bool"))
    assert diff.files.added == ("added.parquet",)
    assert diff.files.removed == ("removed.parquet",)
    assert diff.files.changed == ("changed.parquet",)
    assert diff.files.same == 1
    assert diff.rows == (4, 5)
    assert {each.column: each for each in diff.statistics} == {
        "a": StatisticsDifference("a", ColumnSummary(1, 9, 1), ColumnSummary(1.0, 2.5, 2)),
        "s": StatisticsDifference("s", ColumnSummary("x", "z", 0), ColumnSummary("aa", "z", 1)),
        "gone": StatisticsDifference("gone", ColumnSummary(0.5, "inf", 0), ColumnSummary(1.0, 2.5, 2)),
    }
    assert codec.load(DatasetDiff, codec.dump(diff)) == diff
    assert (
        compare(open_dataset(str(tmp_path / "a")), open_dataset(str(tmp_path / "b")), statistics=False).statistics == ()
    )


def test_statistics_that_are_missing_in_a_part_are_not_made_up(tmp_path: Path) -> None:
    _write(tmp_path / "a", "x.parquet", a=[1, 2])
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    pq.write_table(pa.table({"a": [100]}), tmp_path / "b" / "y.parquet", write_statistics=False)
    (found,) = compare(open_dataset(str(tmp_path / "a")), open_dataset(str(tmp_path / "b"))).statistics
    assert found.after == ColumnSummary(None, None, None)
