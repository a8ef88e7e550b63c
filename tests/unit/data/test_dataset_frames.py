"""A dataset is a Dask DataFrame and back, with every row, in order, and the same types in all partitions."""

from __future__ import annotations

from pathlib import Path

import dask
import dask.dataframe as dd
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.data.dataset import open_dataset
from pipelines.data.frames import from_dask, to_dask
from pipelines.errors import NotFoundError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for part, nulls in ((0, False), (1, True)):
        table = pa.table(
            {
                "i": pa.array([None if nulls and i == 3 else part * 100 + i for i in range(50)], pa.int32()),
                "x": [i / 2 for i in range(50)],
                "s": [None if nulls and i == 4 else f"s{i}" for i in range(50)],
                "b": pa.array([None] * 50 if nulls else [True] * 50, pa.bool_()),
                "c": [f"c{part}{i % 3}" for i in range(50)],
            }
        )
        (tmp_path / f"p={part}").mkdir()
        pq.write_table(table, tmp_path / f"p={part}" / "x.parquet", row_group_size=20)
    return tmp_path


def test_partitions_agree_with_each_other_and_with_the_data(folder: Path) -> None:
    dataset = open_dataset(str(folder), columns={"c": {"type": "category"}})
    frame = to_dask(dataset, partition_bytes=500)
    assert frame.npartitions > 3
    with dask.config.set(scheduler="synchronous"):
        parts = [frame.partitions[i].compute() for i in range(frame.npartitions)]
        assert len({tuple(part.drop(columns="c").dtypes.astype(str)) for part in parts}) == 1
        assert all(str(part["c"].dtype) == "category" for part in parts)
        whole = frame.compute()
    assert tuple(whole.drop(columns="c").dtypes.astype(str)) == tuple(frame.drop(columns="c").dtypes.astype(str))
    expected = pa.concat_tables(pq.ParquetFile(folder / f"p={p}" / "x.parquet").read() for p in (0, 1))
    for name in ("i", "x", "s", "b"):
        assert pa.table(whole[[name]], pa.schema([expected.schema.field(name)])).equals(expected.select([name]))
    assert whole["c"].astype(str).tolist() == expected["c"].to_pylist()
    assert whole["p"].tolist() == [0] * 50 + [1] * 50


def test_columns_are_those_asked_for_in_that_order(folder: Path) -> None:
    frame = open_dataset(str(folder)).to_dask(["p", "x"])
    assert list(frame.columns) == ["p", "x"]
    with dask.config.set(scheduler="synchronous"):
        assert list(frame.compute().columns) == ["p", "x"]
    with pytest.raises(NotFoundError):
        open_dataset(str(folder)).to_dask(["y"])


def test_a_frame_is_written_as_a_version_in_its_order(folder: Path, tmp_path: Path) -> None:
    frame = to_dask(open_dataset(str(folder), columns={"c": {"type": "category"}}), partition_bytes=500)
    with dask.config.set(scheduler="synchronous"):
        dataset = from_dask(frame, str(tmp_path / "out"))
        again = dataset.to_dask().compute()
        expected = frame.compute()
    assert (dataset.opened.kind, dataset.rows) == ("versioned", 100)
    assert dataset.schema.field("i").type == pa.int32()
    assert dataset.schema.field("c").type in (pa.string(), pa.large_string())
    assert again["i"].tolist() == expected["i"].tolist()
    assert again["c"].tolist() == expected["c"].astype(str).tolist()


def test_plain_pandas_frames_can_be_written(tmp_path: Path) -> None:
    frame = dd.from_pandas(
        pd.DataFrame({"a": [1, 2, 3], "s": ["x", None, "z"]}, index=[9, 8, 7]), npartitions=2, sort=False
    )
    with dask.config.set(scheduler="synchronous"):
        dataset = from_dask(frame, str(tmp_path / "out"))
        assert dataset.to_dask().compute()["a"].tolist() == [1, 2, 3]
    assert dataset.schema.names == ["a", "s"]
