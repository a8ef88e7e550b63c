"""Delta and Iceberg tables and versioned datasets are read through their logs, never by listing."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.memory import InMemoryCatalog
from pyiceberg.table import Table as IcebergTable
from pyiceberg.types import DoubleType

from pipelines.data.dataset import open_dataset
from pipelines.data.writer import write_dataset
from pipelines.errors import DataError, DatasetChangedError, NotFoundError, StorageError, UsageError

ROWS = pa.table({"a": pa.array([1, 2, 3], pa.int64()), "p": ["x", "y z", "x"]})


@pytest.fixture
def delta(tmp_path: Path) -> Path:
    """A table of which a part was written over: a listing would show rows twice."""
    folder = tmp_path / "delta"
    deltalake.write_deltalake(folder, ROWS, partition_by=["p"])
    deltalake.write_deltalake(folder, ROWS, partition_by=["p"], mode="overwrite")
    deltalake.write_deltalake(folder, pa.table({"a": [4], "p": [None]}, schema=ROWS.schema), mode="append")
    return folder


@pytest.fixture
def iceberg(tmp_path: Path) -> IcebergTable:
    catalog = InMemoryCatalog("test", warehouse=f"file://{tmp_path}")
    catalog.create_namespace("n")
    table = catalog.create_table("n.t", schema=ROWS.schema)
    with table.update_spec() as update:
        update.add_identity("p")
    table.append(ROWS)
    table.overwrite(ROWS)
    return table


def _folder(table: IcebergTable) -> str:
    return table.location().removeprefix("file://")


def test_a_delta_table_is_its_newest_version(delta: Path) -> None:
    assert len(list(delta.rglob("*.parquet"))) == 5
    dataset = open_dataset(str(delta))
    assert (dataset.opened.kind, dataset.opened.version) == ("delta", "2")
    assert dataset.rows == 4
    assert dataset.schema == pa.schema({"a": pa.int64(), "p": pa.string()}.items())
    assert [each["p"] for each in dataset.files["partition"].to_pylist()] == [None, "x", "y z"]
    assert dataset.prune("p == 'y z'").dataset.rows == 1
    dataset.check_unchanged()
    deltalake.write_deltalake(delta, ROWS.slice(0, 1), mode="append")
    with pytest.raises(DatasetChangedError, match="1 added"):
        dataset.check_unchanged()
    assert dataset.refresh().rows == 5


def test_typed_partitions_come_from_the_log(tmp_path: Path) -> None:
    table = pa.table({"a": [1, 2], "n": pa.array([7, None], pa.int32()), "zip": ["01", "02"]})
    deltalake.write_deltalake(tmp_path / "t", table, partition_by=["n", "zip"])
    dataset = open_dataset(str(tmp_path / "t"))
    assert dataset.schema.field("n").type == pa.int32()
    assert dataset.schema.field("zip").type == pa.string()


def test_files_without_rows_that_a_log_names_are_no_fault(delta: Path) -> None:
    empty = next(path for path in delta.rglob("*.parquet") if "p=y" in str(path))
    for path in delta.rglob("p=y*/*.parquet"):
        pq.write_table(pq.ParquetFile(empty).read().slice(0, 0), path)
    assert open_dataset(str(delta)).rows == 3


def _act(folder: Path, *actions: dict[str, Any]) -> None:
    log = folder / "_delta_log" / f"{len(list((folder / '_delta_log').glob('*.json'))):020}.json"
    log.write_text("".join(json.dumps(action) + "\n" for action in actions))


def _protocol(*features: str) -> dict[str, Any]:
    listed = {"readerFeatures": list(features), "writerFeatures": list(features)}
    return {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **listed}}


def _map_columns(folder: Path) -> None:
    first = (folder / "_delta_log" / f"{0:020}.json").read_text().splitlines()
    found: dict[str, Any] = next(json.loads(line) for line in first if "metaData" in line)
    schema = json.loads(found["metaData"]["schemaString"])
    for i, field in enumerate(schema["fields"]):
        field["metadata"] = {"delta.columnMapping.id": i, "delta.columnMapping.physicalName": field["name"]}
    found["metaData"] |= {"schemaString": json.dumps(schema), "configuration": {"delta.columnMapping.mode": "name"}}
    _act(folder, _protocol("columnMapping"), found)


def _delete_by_vector(folder: Path) -> None:
    added = next(
        json.loads(line)["add"]
        for line in (folder / "_delta_log" / f"{2:020}.json").read_text().splitlines()
        if '"add"' in line
    )
    vector = {
        "storageType": "u",
        "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^",
        "offset": 4,
        "sizeInBytes": 40,
        "cardinality": 1,
    }
    removed = {
        "path": added["path"],
        "deletionTimestamp": 1,
        "dataChange": True,
        "partitionValues": added["partitionValues"],
    }
    _act(folder, _protocol("deletionVectors"), {"remove": removed}, {"add": {**added, "deletionVector": vector}})


@pytest.mark.parametrize(
    ("spoil", "error", "message"),
    [
        (_delete_by_vector, DataError, "has deletion vectors, which can't be honoured"),
        (
            lambda folder: next(folder.rglob("p=_*/*.parquet")).unlink(),
            DataError,
            "1 files of version 2 of this Delta table are gone",
        ),
        (_map_columns, DataError, "renames columns"),
        (lambda folder: (folder / "_delta_log" / f"{1:020}.json").write_text("{"), StorageError, "log can't be read"),
    ],
)
def test_what_a_delta_log_says_is_honoured_or_refused(
    delta: Path, spoil: Callable[[Path], object], error: type[Exception], message: str
) -> None:
    spoil(delta)
    with pytest.raises(error, match=message):
        open_dataset(str(delta))


def test_parts_of_tables_and_folders_of_tables_are_refused(delta: Path, iceberg: IcebergTable) -> None:
    for source in (
        f"{delta}/p=x",
        f"{delta}/**/*.parquet",
        str(next(delta.rglob("*.parquet"))),
        f"{_folder(iceberg)}/data",
    ):
        with pytest.raises(DataError, match=r"the source names files of a table.*Name that folder"):
            open_dataset(source)
    with pytest.raises(DataError, match="there is a table in 'delta'"):
        open_dataset(str(delta.parent))


def test_an_iceberg_table_is_its_newest_snapshot(iceberg: IcebergTable) -> None:
    with iceberg.update_schema() as update:
        update.add_column("b", DoubleType())
    iceberg.append(
        pa.table(
            {"a": pa.array([4], pa.int64()), "p": [None], "b": [1.5]},
            pa.schema({"a": pa.int64(), "p": pa.string(), "b": pa.float64()}.items()),
        )
    )
    dataset = open_dataset(_folder(iceberg))
    assert dataset.opened.kind == "iceberg"
    assert dataset.rows == 4
    assert set(dataset.schema.names) == {"a", "b", "p"}
    assert dataset.partition_columns == ("p",)
    assert dataset.prune("p == 'x'").dataset.rows == 2
    dataset.check_unchanged()


def test_dropped_iceberg_columns_are_gone_and_renamed_ones_refused(iceberg: IcebergTable) -> None:
    with iceberg.update_schema() as update:
        update.add_column("b", DoubleType())
    iceberg.append(pa.table({"a": pa.array([4], pa.int64()), "p": ["x"], "b": [1.5]}))
    with iceberg.update_schema() as update:
        update.delete_column("b")
    assert open_dataset(_folder(iceberg)).schema.names == ["a", "p"]
    with iceberg.update_schema() as update:
        update.add_column("b", DoubleType())
    with pytest.raises(DataError, match=r"the table has renamed a column.*found 'b'"):
        open_dataset(_folder(iceberg))
    with iceberg.update_schema() as update:
        update.delete_column("b")
        update.rename_column("a", "c")
    with pytest.raises(DataError, match=r"the table has renamed a column.*expected 'c'; found 'a'"):
        open_dataset(_folder(iceberg))


def test_a_changed_iceberg_layout_still_reads_its_columns_from_the_files(iceberg: IcebergTable) -> None:
    with iceberg.update_spec() as update:
        update.remove_field("p")
    iceberg.append(ROWS)
    dataset = open_dataset(_folder(iceberg))
    assert dataset.partition_columns == ()
    assert dataset.rows == 6


def test_a_copied_iceberg_table_is_read_from_its_copy_and_a_moved_one_told(
    iceberg: IcebergTable, tmp_path: Path
) -> None:
    before = open_dataset(_folder(iceberg))
    shutil.copytree(_folder(iceberg), tmp_path / "copy")
    copy = open_dataset(str(tmp_path / "copy"))
    assert copy.root == str(tmp_path / "copy")
    assert copy.content_digest == before.content_digest
    shutil.rmtree(_folder(iceberg))
    with pytest.raises(StorageError, match=r"metadata can't be read.*A table that was moved"):
        open_dataset(str(tmp_path / "copy"))


def test_damaged_iceberg_metadata_is_told(iceberg: IcebergTable) -> None:
    (Path(_folder(iceberg)) / "metadata" / "99999-x.metadata.json").write_text("{")
    with pytest.raises(StorageError, match="metadata can't be read"):
        open_dataset(_folder(iceberg))


@pytest.mark.parametrize("library", ["deltalake", "pyiceberg"])
def test_without_the_library_the_remedy_is_an_extra(
    delta: Path, iceberg: IcebergTable, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(UsageError, match=rf"needs {library}.*pip install 'mutirao\[lakes\]'"):
        open_dataset(str(delta) if library == "deltalake" else _folder(iceberg))


def test_a_versioned_dataset_is_its_newest_version_in_its_order(tmp_path: Path) -> None:
    url = str(tmp_path / "v")
    with pytest.raises(NotFoundError):
        open_dataset({"versioned": url})
    write_dataset([ROWS], url)
    write_dataset([ROWS.slice(0, 1)], url)
    write_dataset([ROWS.slice(1)], url, mode="append")
    for source in ({"versioned": url}, url):
        dataset = open_dataset(source)
        assert (dataset.opened.kind, dataset.opened.version, dataset.rows) == ("versioned", "3", 3)
        assert dataset.row_groups["rows"].to_pylist() == [1, 2]
    dataset.check_unchanged()
    with pytest.raises(DataError, match="files of a table or of a versioned dataset"):
        open_dataset(f"{url}/data")
    write_dataset([ROWS], url)
    with pytest.raises(DatasetChangedError, match=r"1 added.*2 removed"):
        dataset.check_unchanged()
    assert dataset.refresh().rows == 3
