"""A dataset on a real S3 server is the same dataset; what is wrong there is told."""

from __future__ import annotations

from pathlib import Path

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.data.dataset import load_dataset, open_dataset
from pipelines.data.tables import _delta_options
from pipelines.errors import DataError, DatasetChangedError, NotFoundError, StorageError
from pipelines.storage import open_store

pytestmark = pytest.mark.slow


@pytest.fixture
def both(tmp_path: Path, s3_url: str) -> tuple[str, str]:
    """The same files in a local folder and on S3."""
    store = open_store(s3_url)
    for month in range(1, 4):
        path = tmp_path / "data" / f"month={month}" / "part.parquet"
        path.parent.mkdir(parents=True)
        pq.write_table(pa.table({"a": range(month * 10), "s": ["é"] * month * 10}), path, row_group_size=7)
        store.create(f"data/month={month}/part.parquet", path)
    store.create("data/_SUCCESS", b"")
    return str(tmp_path / "data"), f"{s3_url}/data"


def test_a_dataset_is_the_same_on_s3(both: tuple[str, str]) -> None:
    local, remote = (open_dataset(source) for source in both)
    assert remote.content_digest == local.content_digest
    assert remote.row_groups.equals(local.row_groups)
    assert remote.schema == local.schema
    assert all(remote.files["etag"].to_pylist())
    assert (
        remote.prune("month == 2 and a > 15").row_groups_after
        == local.prune("month == 2 and a > 15").row_groups_after
        == 1
    )
    assert open_dataset(f"{both[1]}/month=[12]/*.parquet").rows == 30
    assert remote.to_dask(["a"]).compute(scheduler="synchronous")["a"].sum() == sum(range(10)) + sum(range(20)) + sum(
        range(30)
    )


def test_changes_on_s3_are_seen_by_one_listing(both: tuple[str, str]) -> None:
    dataset, store = open_dataset(both[1]), open_store(both[1])
    dataset.save(store, "_manifest.arrow")
    dataset = load_dataset(store, "_manifest.arrow")
    dataset.check_unchanged()
    data = store.get("month=1/part.parquet")
    store.replace("month=1/part.parquet", data[:4] + b"\0" + data[5:])
    with pytest.raises(DatasetChangedError, match=r"1 written again \(month=1/part.parquet\)"):
        dataset.check_unchanged()


def test_bad_and_missing_objects_are_named_with_their_url(both: tuple[str, str]) -> None:
    store = open_store(both[1])
    store.create("month=3/bad.parquet", b"PAR1 but no more")
    with pytest.raises(DataError, match=rf"{both[1]}/month=3/bad.parquet: the Parquet file is truncated"):
        open_dataset(both[1])
    assert open_dataset(both[1], on_bad_file="skip").rows == 60
    with pytest.raises(NotFoundError, match="Did you mean month=1"):
        open_dataset(f"{both[1]}/month=11")


def test_an_unreachable_store_is_told_in_time(both: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(StorageError, match="can't be reached") as error:
        open_dataset(both[1])
    assert error.value.exit_code == 5


def test_a_delta_table_on_s3_is_read_through_its_log(s3_url: str) -> None:
    options = {**_delta_options(s3_url), "aws_conditional_put": "etag"}
    for mode in ("append", "overwrite"):
        deltalake.write_deltalake(f"{s3_url}/t", pa.table({"a": [1, 2]}), mode=mode, storage_options=options)  # type: ignore[call-overload]  # the literal's values
    dataset = open_dataset(f"{s3_url}/t")
    assert (dataset.opened.kind, dataset.rows, dataset.files.num_rows) == ("delta", 2, 1)
