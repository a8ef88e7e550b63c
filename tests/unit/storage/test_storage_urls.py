"""A place has one spelling."""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from pipelines.errors import UsageError
from pipelines.storage import absolute_url, join_url, open_filesystem, open_store


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("/a/b/", "/a/b"),
        ("/a/../b", "/b"),
        ("file:///a/b", "/a/b"),
        ("file://localhost/a", "/a"),
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/a/b/", "s3://bucket/a/b"),
        ("s3a://bucket/a", "s3://bucket/a"),
        ("S3://bucket/a", "s3://bucket/a"),
        ("gs://bucket/a%20b", "gs://bucket/a%20b"),
        ("memory://name/a", "memory://name/a"),
    ],
)
def test_absolute(url: str, expected: str) -> None:
    assert absolute_url(url) == expected
    assert absolute_url(absolute_url(url)) == expected


def test_relative_and_home_paths_become_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    assert absolute_url("runs") == f"{os.getcwd()}/runs"
    assert absolute_url("~/runs") == "/home/me/runs"


@pytest.mark.parametrize(
    ("url", "names", "expected"),
    [
        ("/a", ("b", "c"), "/a/b/c"),
        ("/a/", ("/b/", ""), "/a/b"),
        ("/", ("a",), "/a"),
        ("/", (), "/"),
        ("s3://bucket", ("a",), "s3://bucket/a"),
        ("s3://bucket/", ("a/b",), "s3://bucket/a/b"),
    ],
)
def test_joining(url: str, names: tuple[str, ...], expected: str) -> None:
    assert join_url(url, *names) == expected


@pytest.mark.parametrize("url", ["memory://files/data", None])
def test_datasets_are_read_and_written_through_the_file_system(url: str | None, tmp_path: Path) -> None:
    location = open_filesystem(url or str(tmp_path))
    table = pa.table({"a": [1, 2, 3], "m": [1, 1, 2]})
    pads.write_dataset(
        table,
        location.path,
        filesystem=location.filesystem,
        format="parquet",
        partitioning=["m"],
        partitioning_flavor="hive",
    )
    assert sorted(info.key for info in open_store(location.url).list()) == ["m=1/part-0.parquet", "m=2/part-0.parquet"]
    read = pads.dataset(location.path, filesystem=location.filesystem, partitioning="hive").to_table()
    assert read.sort_by("a").to_pydict() == {"a": [1, 2, 3], "m": [1, 1, 2]}
    travelled = pickle.loads(pickle.dumps(location))
    assert travelled.filesystem == location.filesystem
    with travelled.filesystem.open_input_file(f"{location.path}/m=2/part-0.parquet") as file:
        assert pq.read_table(file).num_rows == 1


def test_files_in_memory_behave_as_files() -> None:
    location = open_filesystem("memory://behave/data")
    files, path = location.filesystem, location.path
    with files.open_output_stream(f"{path}/a/one") as file:
        file.write(b"1")
        assert files.get_file_info(f"{path}/a/one").type == pafs.FileType.NotFound, "complete or absent"
    files.copy_file(f"{path}/a/one", f"{path}/a/b/two")
    files.move(f"{path}/a/b/two", f"{path}/a/b/three")
    flat = files.get_file_info(pafs.FileSelector(f"{path}/a"))
    assert [(info.base_name, info.type.name) for info in flat] == [("b", "Directory"), ("one", "File")]
    assert files.get_file_info(f"{path}/a/b/two").type == pafs.FileType.NotFound
    assert files.open_input_stream(f"{path}/a/b/three").read() == b"1"
    files.delete_file(f"{path}/a/one")
    with pytest.raises(FileNotFoundError):
        files.open_input_file(f"{path}/a/one")
    files.delete_dir(path)
    assert files.get_file_info(pafs.FileSelector(path, allow_not_found=True, recursive=True)) == []
    with pytest.raises(FileNotFoundError):
        files.get_file_info(pafs.FileSelector(path))


def test_azure_needs_its_account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(UsageError, match="AZURE_STORAGE_ACCOUNT_NAME"):
        open_filesystem("az://container/data")


def test_hdfs_needs_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hdfs_native.fsspec", None)
    with pytest.raises(UsageError, match=r"mutirao\[hdfs\]"):
        open_filesystem("hdfs://name:8020/data")
