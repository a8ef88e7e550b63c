"""A manifest says what is in the files, stays small, and knows when it is out of date."""

from __future__ import annotations

import os
import pickle
import shutil
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from pipelines import codec
from pipelines.data import dataset as dataset_module
from pipelines.data.config import DataConfig, Versioned
from pipelines.data.dataset import Dataset, load_dataset, open_dataset
from pipelines.data.listing import ListedFile
from pipelines.errors import CorruptArtifactError, DataError, DatasetChangedError, ObjectNotFoundError, StorageError
from pipelines.storage import open_store


def _write(path: Path, table: pa.Table, **options: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, **options)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files of three years, each with one column more than the one before."""
    root = tmp_path / "data"
    columns: dict[str, pa.Array] = {"a": pa.array(range(10), pa.int32())}
    for year, (name, values) in zip(
        (2011, 2012, 2013),
        {"a": columns["a"], "b": pa.array(list("abcdefghij")), "c": pa.array([0.5] * 10)}.items(),
        strict=True,
    ):
        columns[name] = values
        _write(root / f"year={year}" / "part.parquet", pa.table(columns), row_group_size=4)
    return root


def test_the_manifest_is_what_pyarrow_says(folder: Path) -> None:
    dataset = open_dataset(str(folder))
    assert dataset.root == str(folder)
    assert dataset.schema == pa.schema(
        {"a": pa.int32(), "b": pa.string(), "c": pa.float64(), "year": pa.int64()}.items()
    )
    assert dataset.partition_columns == ("year",)
    assert dataset.rows == 30
    assert dataset.files.drop_columns(["etag", "mtime_ns", "footer"]).to_pylist() == [
        {
            "path": f"year={y}/part.parquet",
            "size": os.path.getsize(folder / f"year={y}/part.parquet"),
            "rows": 10,
            "row_groups": 3,
            "schema": i,
            "partition": {"year": y},
        }
        for i, y in enumerate((2011, 2012, 2013))
    ]
    expected = []
    for i, path in enumerate(dataset.files["path"].to_pylist()):
        metadata = pq.read_metadata(folder / path)
        for g in range(metadata.num_row_groups):
            group = metadata.row_group(g)
            sizes = [group.column(j).total_uncompressed_size for j in range(group.num_columns)]
            expected.append(
                {
                    "file": i,
                    "row_group": g,
                    "first_row": 4 * g,
                    "rows": group.num_rows,
                    "bytes": sum(sizes),
                    "column_bytes": (sizes + [0] * 4)[:4],
                }
            )
    assert dataset.row_groups.to_pylist() == expected
    assert [(each.column, each.kind) for each in dataset.drift] == [("b", "missing"), ("c", "missing")]


def test_nested_columns_count_as_one_and_empty_row_groups_are_left_out(tmp_path: Path) -> None:
    table = pa.table(
        {"n": [{"x": 1, "y": [1, 2]}], "m": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())), "z": [1.0]}
    )
    with pq.ParquetWriter(tmp_path / "n.parquet", table.schema) as writer:
        writer.write_table(table)
        writer.write_table(table.slice(0, 0))
        writer.write_table(table)
    dataset = open_dataset(str(tmp_path / "n.parquet"))
    group = pq.read_metadata(tmp_path / "n.parquet").row_group(0)
    sizes = [group.column(j).total_uncompressed_size for j in range(5)]
    assert dataset.schema.names == ["n", "m", "z"]
    rows = dataset.row_groups.to_pylist()
    assert rows[0]["column_bytes"] == [sizes[0] + sizes[1], sizes[2] + sizes[3], sizes[4]]
    assert [row["first_row"] for row in rows] == [0, 1]
    assert all(row["rows"] for row in rows)


def test_what_pandas_notes_of_its_index_makes_no_other_schema(tmp_path: Path) -> None:
    for rows in (1, 2, 3):
        pd.DataFrame({"a": range(rows)}).to_parquet(tmp_path / f"{rows}.parquet")
    assert len(open_dataset(str(tmp_path)).file_schemas) == 1


def test_a_copy_elsewhere_has_the_same_content_but_another_location(folder: Path, tmp_path: Path) -> None:
    one = open_dataset(str(folder))
    shutil.copytree(folder, tmp_path / "copy", copy_function=shutil.copy)
    url = f"memory://copy-{tmp_path.name}"
    for path in folder.rglob("*.parquet"):
        open_store(url).replace(str(path.relative_to(folder)), path.read_bytes())
        os.utime(tmp_path / "copy" / path.relative_to(folder), (1, 1))
    for other in (
        open_dataset(str(tmp_path / "copy")),
        open_dataset(url),
        open_dataset(f"{folder}/*"),
        open_dataset([str(folder)]),
    ):
        assert other.content_digest == one.content_digest
        assert other.schema == one.schema
    assert open_dataset(str(tmp_path / "copy")).location_digest != one.location_digest
    (folder / "year=2011" / "part.parquet").rename(folder / "year=2011" / "other.parquet")
    assert open_dataset(str(folder)).content_digest != one.content_digest


def test_saved_manifests_come_back_whole(folder: Path, tmp_path: Path) -> None:
    (folder / "year=2011" / "bad.parquet").write_bytes(b"")
    dataset = open_dataset(str(folder), on_bad_file="skip", columns={"b": {"type": "category"}})
    store = open_store(str(tmp_path / "store"))
    dataset.save(store, "manifests/one.arrow")
    shutil.rmtree(folder)
    for again in (load_dataset(store, "manifests/one.arrow"), pickle.loads(pickle.dumps(dataset))):
        _assert_same(again, dataset)
    with pytest.raises(ObjectNotFoundError):
        load_dataset(store, "manifests/two.arrow")
    for data in (b"", b"ARROW1 and more", store.get("manifests/one.arrow")[:-100]):
        store.replace("manifests/one.arrow", data)
        with pytest.raises(CorruptArtifactError, match=r"manifests/one.arrow: this is no manifest, or a damaged one"):
            load_dataset(store, "manifests/one.arrow")


def test_a_manifest_of_a_later_release_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(str(tmp_path / "store"))
    monkeypatch.setattr("pipelines.data.manifest.SCHEMA", 2)
    open_dataset(str(folder)).save(store, "m")
    monkeypatch.undo()
    with pytest.raises(StorageError, match="later release; expected layout 1 or less; found 2"):
        load_dataset(store, "m")


def _assert_same(one: Dataset, other: Dataset) -> None:
    for name in Dataset.__dataclass_fields__:
        a, b = getattr(one, name), getattr(other, name)
        assert a.equals(b) if isinstance(a, pa.Table | pa.Schema) else a == b, name


def test_refreshing_reads_new_and_changed_files_only(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = open_dataset(str(folder))
    _write(folder / "year=2010" / "new.parquet", pa.table({"a": pa.array([1], pa.int64()), "d": [True]}))
    _write(folder / "year=2012" / "part.parquet", pa.table({"a": pa.array([5], pa.int32()), "b": ["z"]}))
    (folder / "year=2013" / "part.parquet").unlink()
    read: list[str] = []
    real = dataset_module.read_footers

    def counting(root: str, files: list[ListedFile], **options: Any) -> Any:
        read.extend(file.path for file in files)
        return real(root, files, **options)

    monkeypatch.setattr(dataset_module, "read_footers", counting)
    after = before.refresh()
    assert read == ["year=2010/new.parquet", "year=2012/part.parquet"]
    monkeypatch.undo()
    fresh = open_dataset(str(folder))
    assert after.content_digest == fresh.content_digest
    assert after.row_groups.equals(fresh.row_groups)
    assert (
        after.schema
        == fresh.schema
        == pa.schema({"a": pa.int64(), "d": pa.bool_(), "b": pa.string(), "year": pa.int64()}.items())
    )
    assert {str(each) for each in after.drift} == {str(each) for each in fresh.drift}
    assert after.prune("year == 2010").dataset.refresh().content_digest == fresh.content_digest


def test_a_changed_dataset_is_told_by_name(folder: Path) -> None:
    dataset = open_dataset(str(folder))
    dataset.check_unchanged()
    pruned = dataset.prune("year == 2011").dataset
    _write(folder / "year=2014" / "new.parquet", pa.table({"a": [1]}))
    _write(folder / "year=2012" / "part.parquet", pa.table({"a": [1]}))
    (folder / "year=2013" / "part.parquet").unlink()
    with pytest.raises(DatasetChangedError) as error:
        dataset.check_unchanged()
    text = str(error.value)
    for change in (
        "1 added (year=2014/new.parquet)",
        "1 removed (year=2013/part.parquet)",
        "1 written again (year=2012/part.parquet)",
    ):
        assert change in text
    pruned.check_unchanged()
    os.utime(folder / "year=2011" / "part.parquet", ns=(time.time_ns(), time.time_ns()))
    with pytest.raises(DatasetChangedError, match=r"1 written again \(year=2011"):
        pruned.check_unchanged()


def test_partition_columns_stand_for_those_of_the_files_unless_they_contradict(tmp_path: Path) -> None:
    for month in (1, 2):
        _write(
            tmp_path / f"month={month:02}" / "x.parquet",
            pa.table({"month": pa.array([month, month], pa.int8()), "a": [1, 2]}),
        )
    dataset = open_dataset(str(tmp_path), on_drift="strict")
    assert dataset.schema == pa.schema({"a": pa.int64(), "month": pa.int64()}.items())
    assert dataset.describe()["partitions"][0]["also_in_files"]
    _write(tmp_path / "month=03" / "y.parquet", pa.table({"month": pa.array([3, 4], pa.int8()), "a": [1, 2]}))
    with pytest.raises(
        DataError,
        match=r"month=03/y.parquet: the file has a column 'month' that contradicts its folder; expected 3; found 4",
    ):
        open_dataset(str(tmp_path))


def test_progress_is_told_until_all_are_read(folder: Path) -> None:
    told: list[tuple[int, int]] = []
    open_dataset(str(folder), threads=2, progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (3, 3)


def test_descriptions_are_plain_json(folder: Path) -> None:
    told = open_dataset(str(folder)).describe()
    assert codec.canonical(told)
    assert told["rows"] == 30
    assert [each["name"] for each in told["columns"]] == ["a", "b", "c", "year"]
    assert told["partitions"] == [
        {"column": "year", "type": "int64", "distinct": 3, "values": [2011, 2012, 2013], "also_in_files": False}
    ]
    assert [each["column"] for each in told["drift"]] == ["b", "c"]


def test_configs_go_through_json() -> None:
    for source in ("x", ["x", "y"], {"versioned": "s3://bucket/x"}):
        config = DataConfig.model_validate(
            {"source": source, "columns": {"a": {"type": "category"}}, "filter": "a > 1"}
        )
        assert DataConfig.model_validate_json(config.model_dump_json()) == config
    assert DataConfig.model_validate({"source": {"versioned": "x"}}).source == Versioned(versioned="x")
    for source in (7, [], {"version": "x"}, ""):
        with pytest.raises(ValidationError) as error:
            DataConfig.model_validate({"source": source})
        assert len({fault["loc"][1] for fault in error.value.errors()}) == 1, "a fault of one form of source only"
    with pytest.raises(ValueError, match="there is no type 'integer'"):
        DataConfig.model_validate({"source": "x", "columns": {"a": {"type": "integer"}}})


@settings(max_examples=15)
@given(
    st.lists(st.sampled_from([pa.int8(), pa.int64(), pa.float64(), pa.string(), None]), min_size=1, max_size=6),
    st.data(),
)
def test_refreshing_in_any_steps_ends_where_opening_does(types: list[pa.DataType | None], data: st.DataObject) -> None:
    url = f"memory://steps-{data.draw(st.uuids())}"
    store = open_store(url)
    dataset: Dataset | None = None
    numbers = st.integers(0, 3)
    for i, type in enumerate(types):
        columns = {"k": pa.array([1, 2])} | ({} if type is None else {"v": pa.array([1, 2]).cast(type)})
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table(columns), sink, row_group_size=1)
        store.replace(f"g={data.draw(numbers)}/{data.draw(numbers)}-{i % 2}.parquet", sink.getvalue().to_pybytes())
        fresh = _outcome(lambda: open_dataset(url, threads=1))
        step = _outcome(dataset.refresh) if dataset is not None else fresh
        if isinstance(fresh, str) or isinstance(step, str):
            assert fresh == step
        else:
            assert step.content_digest == fresh.content_digest
            assert step.row_groups.equals(fresh.row_groups)
            assert step.schema == fresh.schema
            dataset = step


def _outcome(action: Any) -> Dataset | str:
    try:
        result: Dataset = action()
    except DataError as error:
        return str(error)
    return result
