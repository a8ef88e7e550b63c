"""Statistics are read for every type, and say nothing where they can't be trusted."""

from __future__ import annotations

import datetime as dt
import decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.data.dataset import open_dataset
from pipelines.data.statistics import ColumnStatistics, plain_type, read_statistics
from pipelines.errors import DatasetChangedError

NOON = dt.datetime(2013, 5, 1, 12)
CASES: list[tuple[pa.DataType, list[Any], Any, Any]] = [
    # type, values, their least and greatest
    (pa.int8(), [3, -3, None], -3, 3),
    (pa.uint32(), [2**32 - 1, 0], 0, 2**32 - 1),
    (pa.uint64(), [2**64 - 1, 1], 1, 2**64 - 1),
    (pa.float32(), [0.5, -1.5], -1.5, 0.5),
    (pa.float64(), [1.0, float("nan")], 1.0, 1.0),
    (pa.bool_(), [True, False], False, True),
    (pa.string(), ["b", "é", ""], b"", "é".encode()),
    (pa.large_string(), ["b", "a"], b"a", b"b"),
    (pa.binary(), [b"b", b"\xff"], b"b", b"\xff"),
    (pa.binary(2), [b"bb", b"aa"], b"aa", b"bb"),
    (pa.dictionary(pa.int8(), pa.string()), ["y", "x"], b"x", b"y"),
    (pa.date32(), [dt.date(2013, 5, 1), dt.date(1969, 5, 1)], dt.date(1969, 5, 1), dt.date(2013, 5, 1)),
    (pa.date64(), [dt.date(2013, 5, 1)], dt.date(2013, 5, 1), dt.date(2013, 5, 1)),
    (pa.time32("s"), [dt.time(5), dt.time(4)], dt.time(4), dt.time(5)),
    (pa.time64("us"), [dt.time(5), dt.time(4)], dt.time(4), dt.time(5)),
    (pa.timestamp("s"), [NOON], NOON, NOON),
    (pa.timestamp("ms"), [NOON, NOON - dt.timedelta(1)], NOON - dt.timedelta(1), NOON),
    (
        pa.timestamp("us", "UTC"),
        [NOON.replace(tzinfo=dt.UTC)],
        NOON.replace(tzinfo=dt.UTC),
        NOON.replace(tzinfo=dt.UTC),
    ),
    (pa.duration("ms"), [dt.timedelta(1), dt.timedelta(2)], dt.timedelta(1), dt.timedelta(2)),
    (
        pa.decimal128(10, 2),
        [decimal.Decimal("-1.25"), decimal.Decimal("3.50")],
        decimal.Decimal("-1.25"),
        decimal.Decimal("3.50"),
    ),
]


def _statistics(path: Path, column: str = "v") -> ColumnStatistics:
    dataset = open_dataset(str(path))
    types = {column: dataset.schema.field(column).type}
    return read_statistics(dataset.root, dataset.files, dataset.row_groups, types, dataset.file_schemas)[column]


# Without Arrow's schema a duration is stored as a number, and nothing says that it was one.
STORED = [(*case, stored) for case in CASES for stored in (True, False) if stored or not pa.types.is_duration(case[0])]


@pytest.mark.parametrize(("type", "values", "least", "greatest", "stored"), STORED)
def test_bounds_of_every_type(
    tmp_path: Path, type: pa.DataType, values: list[Any], least: Any, greatest: Any, stored: bool
) -> None:
    table = pa.table({"n": [[{"x": 1}]] * len(values), "v": pa.array(values, type)})
    pq.write_table(table, tmp_path / "x.parquet", store_schema=stored)
    found = _statistics(tmp_path)
    assert found.minimum.to_pylist() == [least]
    assert found.maximum.to_pylist() == [greatest]
    assert found.nulls.to_pylist() == [values.count(None)]


def test_nanoseconds_are_kept(tmp_path: Path) -> None:
    pq.write_table(pa.table({"v": pa.array([1_000_000_001, 7], pa.timestamp("ns"))}), tmp_path / "x.parquet")
    found = _statistics(tmp_path)
    assert found.minimum.cast(pa.int64()).to_pylist() == [7]
    assert found.maximum.cast(pa.int64()).to_pylist() == [1_000_000_001]


def test_bounds_are_those_of_the_unified_type_in_manifest_order(tmp_path: Path) -> None:
    pq.write_table(pa.table({"v": pa.array([1, 2, 3, 4], pa.int32())}), tmp_path / "a.parquet", row_group_size=2)
    pq.write_table(pa.table({"w": pa.array([1])}), tmp_path / "b.parquet")
    pq.write_table(pa.table({"v": pa.array([None, 2.5], pa.float64())}), tmp_path / "c.parquet")
    pq.write_table(pa.table({"v": pa.array([7.5])}), tmp_path / "d.parquet", write_statistics=False)
    pq.write_table(pa.table({"v": pa.nulls(3)}), tmp_path / "e.parquet")
    found = _statistics(tmp_path)
    assert found.minimum.to_pylist() == [1.0, 3.0, None, 2.5, None, None]
    assert found.maximum.to_pylist() == [2.0, 4.0, None, 2.5, None, None]
    assert found.nulls.to_pylist() == [0, 0, 1, 1, None, 3]


def test_a_correction_that_changes_the_order_leaves_nothing_known(tmp_path: Path) -> None:
    pq.write_table(pa.table({"v": ["9", "10"]}), tmp_path / "a.parquet")
    dataset = open_dataset(str(tmp_path), columns={"v": {"type": "int64"}})
    found = read_statistics(dataset.root, dataset.files, dataset.row_groups, {"v": pa.int64()}, dataset.file_schemas)
    assert found["v"].minimum.to_pylist() == [None]
    assert dataset.prune("v > 9").row_groups_after == 1


@pytest.mark.parametrize("type", [pa.list_(pa.int64()), pa.struct({"x": pa.int64()}), pa.float16()])
def test_types_without_usable_bounds(tmp_path: Path, type: pa.DataType) -> None:
    pq.write_table(pa.table({"v": pa.nulls(2, type)}), tmp_path / "a.parquet")
    assert _statistics(tmp_path).minimum.to_pylist() == [None]


def test_another_footer_than_the_manifests_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"v": [1]}), tmp_path / "a.parquet")
    dataset = open_dataset(str(tmp_path))
    pq.write_table(pa.table({"v": [2]}), tmp_path / "a.parquet")
    with pytest.raises(DatasetChangedError, match=r"a\.parquet: the file was written again"):
        read_statistics(dataset.root, dataset.files, dataset.row_groups, {"v": pa.int64()}, dataset.file_schemas)


def test_text_is_kept_as_bytes() -> None:
    assert plain_type(pa.dictionary(pa.int32(), pa.string())) == pa.binary()
    assert plain_type(pa.large_string()) == pa.large_binary()
