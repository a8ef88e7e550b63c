"""A source names exactly the files that it should."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pipelines.data.listing import list_source
from pipelines.errors import NotFoundError, StorageError, UsageError
from pipelines.storage import open_store

TREE = [
    "flights/month=1/a.parquet",
    "flights/month=1/b.parquet",
    "flights/month=2/a.parquet",
    "flights/month=2/_SUCCESS",
    "flights/month=2/.a.parquet.crc",
    "flights/_temporary/0/part.parquet",
    "flights/_metadata",
    "flights/_day=3/c.parquet",
    "other/x.parquet/part-0",
    "other/x.parquet/part-1",
    "other/deep/er/y.parquet",
    "odd[1]/z.parquet",
]


@pytest.fixture(params=["local", "memory"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A tree of files, in a folder or in a store; they do not differ to those who list."""
    url = str(tmp_path) if request.param == "local" else f"memory://listing-{tmp_path.name}"
    store = open_store(url)
    for key in TREE:
        store.replace(key, key.encode())
    return url


@pytest.mark.parametrize(
    ("source", "base", "paths"),
    [
        ("flights", "flights", ["_day=3/c.parquet", "month=1/a.parquet", "month=1/b.parquet", "month=2/a.parquet"]),
        ("flights/month=1", "flights/month=1", ["a.parquet", "b.parquet"]),
        ("flights/month=1/a.parquet", "flights", ["month=1/a.parquet"]),
        ("flights/month=*", "flights", ["month=1/a.parquet", "month=1/b.parquet", "month=2/a.parquet"]),
        ("flights/month=[2-9]/*.parquet", "flights", ["month=2/a.parquet"]),
        ("flights/**/a.parquet", "flights", ["month=1/a.parquet", "month=2/a.parquet"]),
        ("*/*.parquet", "", ["odd[1]/z.parquet", "other/x.parquet/part-0", "other/x.parquet/part-1"]),
        ("**", "", [path for path in TREE if "/_" not in path.replace("_day", "day") and "/." not in path]),
        ("odd[1]", "odd[1]", ["z.parquet"]),
        ("flights/_temporary", "flights/_temporary", ["0/part.parquet"]),
        ("flights/month=2/_SUCCESS", "flights", ["month=2/_SUCCESS"]),
        (
            ["flights/month=1", "flights/month=2/a.parquet"],
            "flights",
            ["month=1/a.parquet", "month=1/b.parquet", "month=2/a.parquet"],
        ),
        (["flights/month=1"], "flights", ["month=1/a.parquet", "month=1/b.parquet"]),
        (["other/deep", "flights/month=1/a.parquet"], "", ["flights/month=1/a.parquet", "other/deep/er/y.parquet"]),
        (["flights/month=1", "flights/month=1/a.parquet"], "flights", ["month=1/a.parquet", "month=1/b.parquet"]),
    ],
)
def test_sources(root: str, source: str | list[str], base: str, paths: list[str]) -> None:
    given = f"{root}/{source}" if isinstance(source, str) else [f"{root}/{each}" for each in source]
    listing = list_source(given)
    assert listing.root == (f"{root}/{base}" if base else root)
    assert [each.path for each in listing.files] == sorted(paths)
    assert all(each.size == len(f"{base}/{each.path}" if base else each.path) for each in listing.files)


def test_what_is_hidden_is_told_apart(root: str) -> None:
    hidden = [each.path for each in list_source(f"{root}/flights").hidden]
    assert hidden == ["_metadata", "_temporary/0/part.parquet", "month=2/.a.parquet.crc", "month=2/_SUCCESS"]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("flihgts", "no file or folder 'flihgts'.*Did you mean flights"),
        ("flights/month=3", "no file or folder 'month=3'.*month=1"),
        ("flihgts/month=3/x.parquet", "no file or folder 'flihgts'.*Did you mean flights"),
        ("flights/*.csv", r"no file that matches '\*.csv'.*month=1"),
    ],
)
def test_what_is_missing_is_named_with_its_neighbours(root: str, source: str, message: str) -> None:
    with pytest.raises(NotFoundError, match=message):
        list_source(f"{root}/{source}")


def test_several_stores_are_refused(root: str) -> None:
    with pytest.raises(UsageError, match="lie in one store"):
        list_source([f"{root}/other", "memory://somewhere-else/x"])


def test_links_are_followed_once_and_broken_ones_are_errors(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.parquet").write_bytes(b"x")
    (tmp_path / "data" / "loop").symlink_to(tmp_path / "data")
    (tmp_path / "link").symlink_to(tmp_path / "data")
    assert [each.path for each in list_source(str(tmp_path / "data")).files] == ["a.parquet"]
    assert [each.path for each in list_source(str(tmp_path / "link")).files] == ["a.parquet"]
    (tmp_path / "data" / "gone.parquet").symlink_to(tmp_path / "nowhere")
    with pytest.raises(StorageError, match=r"gone\.parquet"):
        list_source(str(tmp_path / "data"))


def test_a_folder_that_may_not_be_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: str) -> None:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "scandir", denied)  # whoever runs the tests may be root
    with pytest.raises(StorageError, match=f"{tmp_path}: can't list: permission denied"):
        list_source(str(tmp_path))
