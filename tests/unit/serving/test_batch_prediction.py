"""A dataset is predicted in its own order, by one version, all of it or nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.data.config import DataConfig
from pipelines.data.dataset import open_dataset
from pipelines.data.reader import read_batches
from pipelines.data.shards import plan_shards
from pipelines.data.source import make_source
from pipelines.data.writer import WriteOptions
from pipelines.errors import DataError, NotFoundError, StorageError, UsageError
from pipelines.evaluation import ModelRef
from pipelines.model import save_model
from pipelines.serving import predict_dataset
from pipelines.storage import open_store


def read(source: Any, columns: list[str] | None = None, derive: dict[str, str] | None = None) -> pa.Table:
    """Read a dataset in its order."""
    dataset = open_dataset(source)
    data = make_source(dataset, DataConfig(source=dataset.root, derive=derive or {}))
    shards = plan_shards(dataset, dataset.schema.names, shards=1).shards
    names = columns or data.arrow_schema.names
    return pa.Table.from_batches([each.batch for each in read_batches(data, shards, names)])


def expected(published: Any) -> pa.Table:
    """Predict all rows at once, in the order of the dataset."""
    rows = read(published.folder, derive={"hour": "minute / 60"})
    return published.model.predict(rows).add_column(0, "id", rows["id"])


@pytest.mark.parametrize("how", ["alias", "name", "number", "version", "model", "ref"])
def test_every_row_is_predicted_in_the_order_of_the_dataset(published: Any, tmp_path: Path, how: str) -> None:
    model = {
        "alias": "models:/flights@champion",
        "name": "flights",
        "number": "flights/1",
        "version": published.version,
        "model": published.model,
        "ref": None,
    }[how]
    if how == "ref":
        store = open_store(str(tmp_path / "models"))
        model = ModelRef(store.url, "m", save_model(published.model, store, "m"))
    derive = {"hour": "minute / 60"} if how in ("model", "ref") else {}
    scored = predict_dataset(
        model,
        DataConfig(source=published.folder, derive=derive),
        str(tmp_path / "out"),
        registry=published.registry,
        key_columns=["id"],
    )
    assert scored.rows == 5000
    assert scored.model == (f"model {published.model.digest[:12]}" if how in ("model", "ref") else "flights/1")
    written = read({"versioned": str(tmp_path / "out")})
    assert written.column_names == ["id", "prediction", "probability"]
    assert written.equals(expected(published).cast(written.schema))


def test_keys_of_every_kind_go_along(published: Any, tmp_path: Path) -> None:
    keys = ["month", "id", "carrier", "hour"]
    source = DataConfig(source=published.folder, columns={"carrier": {"type": "category"}})
    predict_dataset("flights", source, str(tmp_path / "out"), registry=published.registry, key_columns=keys)
    written = read({"versioned": str(tmp_path / "out")})
    assert written.column_names == [*keys, "prediction", "probability"]
    assert written.schema.field("carrier").type == pa.string()
    plain = read(published.folder, keys, derive={"hour": "minute / 60"})
    assert written.select(keys).equals(plain.cast(written.select(keys).schema))
    predict_dataset(
        "flights", published.folder, str(tmp_path / "late"), registry=published.registry, key_columns=["is_late"]
    )
    late = read({"versioned": str(tmp_path / "late")})["is_late"].combine_chunks()
    assert late.equals(pa.compute.greater(read(published.folder)["delay"], 15).combine_chunks()), "derived by the spec"
    predict_dataset("flights", published.folder, str(tmp_path / "all"), registry=published.registry, key_columns=["*"])
    everything = read({"versioned": str(tmp_path / "all")})
    assert set(read(published.folder).column_names) < set(everything.column_names)


def test_a_filter_chooses_rows(published: Any, tmp_path: Path) -> None:
    scored = predict_dataset(
        "flights",
        published.folder,
        str(tmp_path / "out"),
        registry=published.registry,
        key_columns=["id"],
        filter="month == 10 and distance > 1000",
    )
    table = published.table
    chosen = table.filter(
        pa.compute.and_(pa.compute.equal(table["month"], 10), pa.compute.greater(table["distance"], 1000))
    )
    assert scored.rows == chosen.num_rows
    assert sorted(read({"versioned": scored.url})["id"].to_pylist()) == chosen["id"].to_pylist()


@pytest.mark.parametrize(
    ("row_group_bytes", "shards", "files"), [(1 << 12, 7, 14), (32 << 20, 13, 13), (32 << 20, 1, 1)]
)
def test_the_order_does_not_depend_on_how_the_work_is_cut(
    published: Any, tmp_path: Path, row_group_bytes: int, shards: int, files: int
) -> None:
    options = WriteOptions(file_bytes=row_group_bytes, row_group_bytes=row_group_bytes)
    scored = predict_dataset(
        "flights",
        published.folder,
        str(tmp_path),
        registry=published.registry,
        key_columns=["id"],
        shards=shards,
        options=options,
    )
    assert scored.files >= files
    written = read({"versioned": scored.url})
    assert written.equals(expected(published).cast(written.schema))


def test_again_gives_a_new_version_and_the_same_rows(published: Any, tmp_path: Path) -> None:
    first = predict_dataset("flights", published.folder, str(tmp_path), registry=published.registry)
    second = predict_dataset("flights", published.folder, str(tmp_path), registry=published.registry)
    assert (first.version, second.version) == (1, 2)
    assert read({"versioned": str(tmp_path)}).num_rows == 5000


def test_every_mismatch_is_told_at_once_before_anything_is_read(published: Any, tmp_path: Path) -> None:
    folder = tmp_path / "wrong"
    folder.mkdir()
    table = pa.table({"distnace": [1.0], "minute": ["1"], "carrier": [[1]], "hour": [pa.scalar("noon")]})
    pq.write_table(table, folder / "a.parquet")
    with pytest.raises(DataError) as raised:
        predict_dataset("flights", str(folder), str(tmp_path / "out"), registry=published.registry)
    text = str(raised.value)
    assert "3 columns do not fit what flights/1 reads" in text
    assert "distance: missing (expected double); is it 'distnace'?" in text
    assert "hour: expected double, found string" in text
    assert "carrier: expected string, found list" in text
    assert not (tmp_path / "out").exists()


def test_what_a_missing_column_was_derived_from_is_told(published: Any, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"distance": [1.0], "carrier": ["AA"]}), tmp_path / "in" / "a.parquet")
    with pytest.raises(
        DataError, match=r"1 column does not.*\n  hour: missing, and what it is derived from too \(minute / 60\)"
    ):
        predict_dataset("flights", str(tmp_path / "in"), str(tmp_path / "out"), registry=published.registry)


def test_widths_and_layouts_of_types_are_no_mismatch(published: Any, tmp_path: Path) -> None:
    rows = read(published.folder, ["id", "distance", "minute", "carrier"])
    other = rows.set_column(1, "distance", rows["distance"].cast(pa.float32()))
    other = other.set_column(2, "minute", rows["minute"].cast(pa.int16()))
    other = other.set_column(3, "carrier", rows["carrier"].dictionary_encode())
    (tmp_path / "in").mkdir()
    pq.write_table(other, tmp_path / "in" / "a.parquet")
    scored = predict_dataset("flights", str(tmp_path / "in"), str(tmp_path / "out"), registry=published.registry)
    found = read({"versioned": scored.url})["probability"].to_numpy()
    # distance was rounded to float32: seven digits of a standardised value
    np.testing.assert_allclose(found, expected(published)["probability"].to_numpy(), atol=1e-6)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"model": "fligths"}, NotFoundError, "flights"),
        ({"registry": None}, UsageError, "found in a registry"),
        ({"key_columns": ["idd"]}, NotFoundError, "id"),
        ({"source": "nowhere"}, NotFoundError, "nowhere"),
        ({"filter": "distance >"}, Exception, "filter"),
    ],
)
def test_what_can_not_be_predicted_is_told(
    published: Any, tmp_path: Path, change: dict[str, Any], error: type[Exception], message: str
) -> None:
    arguments = {"model": "flights", "source": published.folder, "registry": published.registry} | change
    with pytest.raises(error, match=message):
        predict_dataset(output_url=str(tmp_path / "out"), **arguments)


def test_an_output_inside_of_the_input_is_refused(published: Any) -> None:
    for output in (published.folder, f"{published.folder}/scores"):
        with pytest.raises(UsageError, match="inside the input"):
            predict_dataset("flights", published.folder, output, registry=published.registry)


def test_a_key_with_the_name_of_a_prediction_is_refused(published: Any, tmp_path: Path) -> None:
    rows = read(published.folder, ["id", "distance", "minute", "carrier"]).append_column("probability", [[0.0] * 5000])
    (tmp_path / "in").mkdir()
    pq.write_table(rows, tmp_path / "in" / "a.parquet")
    with pytest.raises(UsageError, match="names of output columns: probability"):
        predict_dataset(
            "flights",
            str(tmp_path / "in"),
            str(tmp_path / "out"),
            registry=published.registry,
            key_columns=["probability"],
        )


def test_a_failure_in_the_middle_leaves_what_was_there(published: Any, tmp_path: Path, monkeypatch: Any) -> None:
    first = predict_dataset("flights", published.folder, str(tmp_path), registry=published.registry, key_columns=["id"])
    before = read({"versioned": first.url})
    calls = []

    def fail(self: Any, batch: Any) -> Any:
        calls.append(batch)
        if len(calls) == 4:
            raise StorageError("there is no space left")
        return original(self, batch)

    original = type(published.model).predict
    monkeypatch.setattr(type(published.model), "predict", fail)
    with pytest.raises(StorageError):
        predict_dataset("flights", published.folder, str(tmp_path), registry=published.registry)
    assert read({"versioned": first.url}).equals(before)


# The peak of the process's own memory: ru_maxrss would be its parent's at least.
CHILD = """
import re, sys
from pipelines.serving import predict_dataset
def peak_kib():
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
base = peak_kib()
scored = predict_dataset("flights/1", sys.argv[1], sys.argv[2], registry=sys.argv[3], key_columns=["id"])
print(scored.rows, (peak_kib() - base) // 1024)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_dataset(published: Any, tmp_path: Path) -> None:
    """Ten times the rows take no more than some buffers more: the decoded input alone would take some 100 MB."""
    peaks = []
    for rows in (200_000, 2_000_000):
        folder = tmp_path / f"in-{rows}"
        folder.mkdir()
        rng = np.random.default_rng(0)
        table = pa.table(
            {"id": np.arange(rows), "distance": rng.random(rows) * 1000, "minute": rng.integers(0, 9, rows)}
        )
        table = table.append_column("carrier", pa.array(np.array(["AA", "UA"])[rng.integers(0, 2, rows)]))
        pq.write_table(table, folder / "a.parquet", row_group_size=100_000)
        arguments = [str(folder), str(tmp_path / f"out-{rows}"), published.registry.url]
        done = subprocess.run([sys.executable, "-c", CHILD, *arguments], capture_output=True, text=True, check=True)
        written, peak = map(int, done.stdout.split())
        assert written == rows
        peaks.append(peak)
    print("MiB beyond the start:", peaks)
    assert peaks[1] < peaks[0] + 100, peaks


@pytest.fixture(scope="module")
def client() -> Any:
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        yield client


@pytest.mark.slow
@pytest.mark.parametrize("how", ["flights@champion", "model"])
def test_workers_share_the_rows_and_keep_their_order(published: Any, tmp_path: Path, client: Any, how: str) -> None:
    model = published.model if how == "model" else how
    seen = []
    scored = predict_dataset(
        model,
        DataConfig(source=published.folder, derive={"hour": "minute / 60"}),
        str(tmp_path / "out"),
        registry=published.registry,
        client=client,
        key_columns=["id"],
        shards=16,
        on_done=seen.append,
    )
    assert (scored.rows, scored.files) == (5000, 16)
    assert seen[-1].rows == 5000
    written = read({"versioned": scored.url})
    assert written.equals(expected(published).cast(written.schema))
    assert list(open_store(scored.url).list("_scratch")) == []


@pytest.mark.slow
def test_a_lost_worker_neither_loses_nor_doubles_rows(published: Any, tmp_path: Path, client: Any) -> None:
    killed = []

    def kill_one(progress: Any) -> None:
        if not killed:
            address = next(iter(client.scheduler_info()["workers"]))
            killed.append(address)
            client.run(os._exit, 1, workers=[address], wait=False, on_error="ignore")

    scored = predict_dataset(
        "flights", published.folder, str(tmp_path / "out"), registry=published.registry, client=client,
        key_columns=["id"], shards=40, on_done=kill_one,
    )  # fmt: skip
    assert killed
    assert read({"versioned": scored.url})["id"].equals(expected(published)["id"])


@pytest.mark.slow
def test_predictions_go_to_object_storage(published: Any, s3_url: str) -> None:
    scored = predict_dataset(
        "flights", published.folder, f"{s3_url}/scores", registry=published.registry, key_columns=["id"]
    )
    assert read({"versioned": scored.url})["id"].equals(expected(published)["id"])
