"""Batches hold exactly the rows that were asked for, in order, however they are read."""

from __future__ import annotations

import datetime as dt
import gc
import json
import os
import tempfile
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines import codec
from pipelines.data.config import DataConfig
from pipelines.data.dataset import Dataset, open_dataset
from pipelines.data.expressions import parse_expression
from pipelines.data.reader import Read, read_batches
from pipelines.data.rows import Position
from pipelines.data.shards import plan_shards
from pipelines.data.source import Source, input_columns, make_source
from pipelines.data.split import SplitPlan
from pipelines.data.streams import shared_streams
from pipelines.errors import DataError, DatasetChangedError, NotFoundError, UsageError

Write = Callable[..., Dataset]


def table(rows: int, start: int = 0) -> pa.Table:
    numbers = np.arange(start, start + rows)
    return pa.table(
        {
            "id": numbers,
            "x": (numbers / 7).astype(np.float32),
            "carrier": pa.array([None if i % 11 == 0 else f"c{i % 5}" for i in numbers], pa.string()),
        }
    )


def flights(write: Write) -> Dataset:
    return write({f"month={m}/part-{i}.parquet": table(250, 1000 * m + 250 * i) for m in (1, 2, 3) for i in (0, 1)})


def source_of(dataset: Dataset, **config: Any) -> Source:
    return make_source(dataset, DataConfig(source=dataset.root, **config))


def ids(reads: list[Read]) -> list[int]:
    return [each for read in reads for each in read.batch["id"].to_pylist()]


ALL = [1000 * m + i for m in (1, 2, 3) for i in range(500)]


@pytest.mark.parametrize("shards", [1, 7, 40])
@pytest.mark.parametrize("threads", [0, 1, 3])
@pytest.mark.parametrize("batch_rows", [13, 100, 10_000])
def test_all_rows_come_once_in_order(write: Write, shards: int, threads: int, batch_rows: int) -> None:
    dataset = flights(write)
    plan = plan_shards(dataset, ["id"], shards=shards)
    reads = list(read_batches(make_source(dataset), plan.shards, ["id"], threads=threads, batch_rows=batch_rows))
    assert ids(reads) == ALL
    assert all(0 < read.batch.num_rows <= batch_rows for read in reads)
    assert [read.shard for read in reads] == sorted(read.shard for read in reads)


def test_columns_come_as_asked_with_partition_and_derived_ones(write: Write) -> None:
    dataset = flights(write)
    source = source_of(dataset, derive={"twice": "id * 2", "odd": "twice / 2 > month * 1000 + 3"})
    shards = plan_shards(dataset, ["id"], shards=3).shards
    columns = ["odd", "month", "carrier", "twice"]
    reads = list(read_batches(source, shards, columns))
    whole = pa.Table.from_batches([read.batch for read in reads])
    assert whole.column_names == columns
    assert whole.schema == pa.schema([source.arrow_schema.field(name) for name in columns])
    assert whole["twice"].to_pylist() == [2 * i for i in ALL]
    assert whole["month"].to_pylist() == [i // 1000 for i in ALL]
    assert whole["odd"].to_pylist() == [i % 1000 > 3 for i in ALL]
    assert input_columns(source, ["odd"]) == ("id", "month")


def test_only_partition_columns_or_no_columns_need_no_file(write: Write) -> None:
    dataset = flights(write)
    shards = plan_shards(dataset, ["id"], shards=3).shards
    reads = list(read_batches(make_source(dataset), shards, ["month"]))
    assert [each for read in reads for each in read.batch["month"].to_pylist()] == [i // 1000 for i in ALL]
    reads = list(read_batches(make_source(dataset), shards, [], row_ids=True))
    assert sum(read.batch.num_rows for read in reads) == 1500


def test_a_filter_keeps_what_is_true_and_null_is_not(write: Write) -> None:
    dataset = flights(write)
    source = source_of(dataset, derive={"late": "id > 2400"}, filter="carrier != 'c1' and late")
    shards = plan_shards(dataset, ["id"], shards=5).shards
    expected = [i for i in ALL if i > 2400 and i % 11 != 0 and i % 5 != 1]
    assert ids(list(read_batches(source, shards, ["id"]))) == expected
    # Identities are those of the rows that are left.
    reads = list(read_batches(source, shards, ["id"], row_ids=True, batch_rows=64))
    for read in reads:
        assert read.rows is not None
        stored = pq.read_table(Path(dataset.root) / read.rows.path, partitioning=None)["id"].to_pylist()
        assert [stored[i] for i in read.rows.in_file] == read.batch["id"].to_pylist()


@pytest.mark.parametrize("batch_rows", [7, 50, 1000])
def test_a_saved_position_goes_on_with_exactly_the_rest(write: Write, batch_rows: int) -> None:
    dataset = flights(write)
    source = source_of(dataset, filter="carrier != 'c2'")
    shards = plan_shards(dataset, ["id"], shards=9).shards
    whole = list(read_batches(source, shards, ["id"], batch_rows=batch_rows))
    for stop in range(0, len(whole), max(1, len(whole) // 20)):
        saved = json.loads(json.dumps(codec.to_plain(whole[stop].position)))
        rest = read_batches(source, shards, ["id"], batch_rows=64, position=codec.from_plain(Position, saved))
        assert ids(whole[: stop + 1]) + ids(list(rest)) == ids(whole)


@given(
    st.lists(st.lists(st.integers(1, 60), min_size=1, max_size=4), min_size=1, max_size=4),
    st.integers(1, 12),
    st.tuples(st.integers(1, 70), st.integers(1, 70)),
    st.integers(0, 3),
    st.floats(0, 1),
    st.integers(200, 4000),
)
@settings(max_examples=40)
def test_any_interruption_of_any_layout_loses_and_repeats_nothing(
    files: list[list[int]], shards: int, batch_rows: tuple[int, int], threads: int, stop: float, cap: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        start = 0
        for number, groups in enumerate(files):
            with pq.ParquetWriter(f"{folder}/{number}.parquet", table(0).schema) as writer:
                for rows in groups:
                    writer.write_table(table(rows, start))
                    start += rows
        dataset = open_dataset(folder)
        source, plan = make_source(dataset), plan_shards(dataset, ["id", "carrier"], shards=shards)
        options: dict[str, Any] = {"threads": threads, "max_bytes_in_flight": cap}
        before, position = [], None
        with closing(read_batches(source, plan.shards, ["id"], batch_rows=batch_rows[0], **options)) as reads:
            for read in reads:
                before.append(read)
                position = read.position
                assert read.offset + read.batch.num_rows == sum(each.batch.num_rows for each in before)
                if read.offset >= stop * start:
                    break
        after = read_batches(source, plan.shards, ["id"], batch_rows=batch_rows[1], position=position, **options)
        assert ids(before) + ids(list(after)) == list(range(start))


def test_parts_of_a_split_are_read_alone_or_told(write: Write) -> None:
    dataset = flights(write)
    source, shards = make_source(dataset), plan_shards(dataset, ["id"], shards=4).shards
    split = SplitPlan("hash", "carrier", 0.2, 0.4, 1)
    told = list(read_batches(source, shards, ["id"], split=split))
    parts = {
        part: ids(list(read_batches(source, shards, ["id"], split=split, part=part)))
        for part in ("train", "validation", "test")
    }
    assert sorted(i for part in parts.values() for i in part) == ALL
    for number, part in enumerate(parts):
        mine = [
            i for read in told for i, p in zip(read.batch["id"].to_pylist(), read.parts, strict=True) if p == number
        ]  # type: ignore[arg-type]
        assert mine == parts[part]
    with pytest.raises(UsageError, match="'trian'"):
        next(read_batches(source, shards, ["id"], split=split, part="trian"))


def test_files_are_brought_to_the_unified_schema(write: Write) -> None:
    dataset = write(
        {
            "a.parquet": pa.table(
                {"id": pa.array([1, 2], pa.int8()), "x": pa.array([1, 2], pa.int32()), "c": ["u", "v"]}
            ),
            "b.parquet": pa.table({"x": pa.array([0.5], pa.float32()), "id": pa.array([3], pa.int64())}),
            "c.parquet": pa.table(
                {"id": pa.array([4], pa.int64()), "x": pa.nulls(1), "c": pa.array(["w"]).dictionary_encode()}
            ),
        },
        columns={"c": {"type": "category"}},
    )
    reads = list(read_batches(make_source(dataset), plan_shards(dataset, ["id"], shards=1).shards, ["id", "x", "c"]))
    whole = pa.Table.from_batches([read.batch for read in reads])
    assert whole.schema == dataset.schema.empty_table().select(["id", "x", "c"]).schema
    assert whole.to_pydict() == {"id": [1, 2, 3, 4], "x": [1.0, 2.0, 0.5, None], "c": ["u", "v", None, "w"]}


def test_names_with_dots_and_nested_columns_are_read(write: Write) -> None:
    held = pa.table(
        {
            "a": [1, 2, 3],
            "a.b": ["x", None, "z"],
            "struct": [{"a": 1, "b": {"c": "u"}}, None, {"a": 3, "b": None}],
            "list": [[1, 2], [], None],
            "map": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64())),
            "last.": [0.5, 1.5, 2.5],
        }
    )
    dataset = write(held, row_group_size=2)
    shards = plan_shards(dataset, held.column_names, shards=2).shards
    for columns in ([name] for name in held.column_names):
        batches = [read.batch for read in read_batches(make_source(dataset), shards, columns)]
        assert pa.Table.from_batches(batches).to_pydict() == held.select(columns).to_pydict()
    batches = [read.batch for read in read_batches(make_source(dataset), shards, held.column_names[::-1])]
    assert pa.Table.from_batches(batches).to_pylist() == held.select(held.column_names[::-1]).to_pylist()


def test_a_value_that_does_not_fit_is_named(write: Write) -> None:
    dataset = write({"a.parquet": pa.table({"x": [2**60 + 1]}), "b.parquet": pa.table({"x": [0.5]})})
    with pytest.raises(DataError, match=r"a.parquet: column 'x' does not fit"):
        list(read_batches(make_source(dataset), plan_shards(dataset, ["x"], shards=1).shards, ["x"]))


def test_an_unknown_column_is_named(write: Write) -> None:
    dataset = flights(write)
    with pytest.raises(NotFoundError, match=r"'carier'.*carrier"):
        next(read_batches(make_source(dataset), plan_shards(dataset, ["id"], shards=1).shards, ["carier"]))


@pytest.mark.parametrize(
    "condition",
    [
        "id >= 3200",
        "id in (1005, 3499)",
        "late",
        "not late and month < 2",
        "carrier is None and id < 1100",
        "x > 300 and carrier == 'c1'",
        "month == 3",
        "id < 0",
    ],
)
def test_row_groups_that_can_not_meet_the_filter_are_not_decoded(
    write: Write, monkeypatch: pytest.MonkeyPatch, condition: str
) -> None:
    dataset = flights(write)
    source = source_of(dataset, derive={"late": "id > 2400"}, filter=condition)
    decoded = []
    real = pq.ParquetFile.iter_batches

    def noting(self: pq.ParquetFile, *args: Any, **kwargs: Any) -> Any:
        decoded.append(kwargs["row_groups"][0])
        return real(self, *args, **kwargs)

    shards = plan_shards(dataset, ["id"], shards=1).shards
    unfiltered = source_of(dataset, derive={"late": "id > 2400"})
    everything = read_batches(unfiltered, shards, unfiltered.arrow_schema.names)
    whole = pa.Table.from_batches([read.batch for read in everything])
    keep = parse_expression(condition, whole.schema).evaluate(whole)
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", noting)
    assert ids(list(read_batches(source, shards, ["id"]))) == whole.filter(keep)["id"].to_pylist()
    assert len(decoded) < 18


# --- memory and threads ----------------------------------------------------------------------------------------------


def threads_reading() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("read-ahead")]


def test_threads_end_when_the_caller_leaves_early_or_fails(write: Write) -> None:
    dataset = flights(write)
    shards = plan_shards(dataset, ["id"], shards=9).shards
    # With room for one batch only the threads can't be done before they are looked for.
    options: dict[str, Any] = {"threads": 3, "batch_rows": 10, "max_bytes_in_flight": 1}
    with closing(read_batches(make_source(dataset), shards, ["id"], **options)) as reads:
        next(reads)
        assert threads_reading()
    assert not threads_reading()
    reads = read_batches(make_source(dataset), shards, ["id"], **options)
    next(reads)
    del reads
    gc.collect()
    assert not threads_reading()


@pytest.mark.parametrize(("dictionaries", "cap"), [(False, 8 << 20), (True, 32 << 20)])
def test_what_arrow_holds_stays_within_the_cap(write: Write, dictionaries: bool, cap: int) -> None:
    numbers = np.random.default_rng(0).random((8, 400_000))
    held = pa.table({f"x{i}": column for i, column in enumerate(numbers)})
    dataset = write(held, row_group_size=50_000, use_dictionary=dictionaries)
    shards = plan_shards(dataset, dataset.schema.names, shards=16).shards
    gc.collect()
    before, most = pa.total_allocated_bytes(), 0
    for read in read_batches(
        make_source(dataset), shards, dataset.schema.names, max_bytes_in_flight=cap, batch_rows=10_000, threads=4
    ):
        most = max(most, pa.total_allocated_bytes() - before)
        del read
    assert most <= 1.2 * cap


def test_wide_rows_are_cut_finer_than_asked(write: Write) -> None:
    numbers = np.random.default_rng(0).random((800, 2000))
    wide = pa.table({f"x{i}": column for i, column in enumerate(numbers)})
    dataset = write(wide, row_group_size=2000, use_dictionary=False)
    shards = plan_shards(dataset, dataset.schema.names, shards=2).shards
    reads = list(read_batches(make_source(dataset), shards, dataset.schema.names, max_bytes_in_flight=16 << 20))
    assert sum(read.batch.num_rows for read in reads) == 2000
    assert max(read.batch.nbytes for read in reads) <= (16 << 20) / 16
    assert reads[-1].batch["x799"][-1].as_py() == numbers[799, -1]


def test_slices_of_a_row_group_share_its_decoding(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = write(table(5000), row_group_size=5000)
    shards = plan_shards(dataset, ["id"], shards=10).shards
    assert len(shards) == 10
    decoded = []
    real = pq.ParquetFile.iter_batches

    def counting(self: pq.ParquetFile, *args: Any, **kwargs: Any) -> Any:
        for batch in real(self, *args, **kwargs):
            decoded.append(batch.num_rows)
            yield batch

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", counting)
    source = make_source(dataset)
    assert ids(list(read_batches(source, shards, ["id"], batch_rows=100))) == list(range(5000))
    assert sum(decoded) == 5000
    decoded.clear()
    with shared_streams():
        read = [i for shard in shards for i in ids(list(read_batches(source, [shard], ["id"], batch_rows=100)))]
    assert read == list(range(5000))
    assert sum(decoded) == 5000


# --- what was planned and what is there ------------------------------------------------------------------------------


def change(path: Path, how: str) -> None:
    if how == "gone":
        path.unlink()
    elif how == "other size":
        pq.write_table(table(251), path)
    elif how == "same size":
        data, status = path.read_bytes(), path.stat()
        path.write_bytes(data)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    else:
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size // 2)


@pytest.mark.parametrize("how", ["gone", "other size", "same size", "truncated"])
def test_a_dataset_that_changed_since_the_plan_is_refused(write: Write, how: str) -> None:
    dataset = flights(write)
    shards = plan_shards(dataset, ["id"], shards=4).shards
    change(Path(dataset.root) / "month=2/part-1.parquet", how)
    reads = read_batches(make_source(dataset), shards, ["id"])
    with pytest.raises(
        DatasetChangedError, match=r"month=2/part-1.parquet: the file is .* since the dataset was opened"
    ):
        list(reads)
    assert not threads_reading()


def test_a_file_written_over_while_it_is_read_is_noticed(write: Write) -> None:
    dataset = write(table(5000), row_group_size=5000)
    shards = plan_shards(dataset, ["id"], shards=1).shards
    with closing(read_batches(make_source(dataset), shards, ["id"], threads=0, batch_rows=100)) as reads:
        next(reads)
        change(Path(dataset.root) / "part.parquet", "same size")
        with pytest.raises(DatasetChangedError):
            list(reads)


def test_damaged_pages_are_named_with_file_and_row_group(write: Write) -> None:
    dataset = flights(write)
    shards = plan_shards(dataset, ["id"], shards=4).shards
    path = Path(dataset.root) / "month=2/part-0.parquet"
    status, data = path.stat(), bytearray(path.read_bytes())
    start = pq.read_metadata(path).row_group(1).column(0).dictionary_page_offset
    data[start : start + 400] = b"\xff" * 400
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(DataError, match=r"month=2/part-0.parquet: row group 1 can't be decoded"):
        list(read_batches(make_source(dataset), shards, ["id"]))


def test_dates_of_folders_are_typed(write: Write) -> None:
    dataset = write({"day=2013-01-05/a.parquet": table(3), "day=2013-01-06/a.parquet": table(3)})
    source = source_of(dataset, filter="day > '2013-01-05'")
    (read,) = read_batches(source, plan_shards(dataset, ["id"], shards=1).shards, ["day", "id"])
    assert read.batch["day"].to_pylist() == [dt.date(2013, 1, 6)] * 3
