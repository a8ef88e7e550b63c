"""Pruning never loses a row that meets the filter, and leaves out what statistics and folders rule out."""

from __future__ import annotations

import datetime as dt
import math
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipelines.data.dataset import Dataset, open_dataset
from pipelines.data.expressions import parse_filter
from pipelines.errors import DatasetChangedError, NotFoundError, UsageError
from pipelines.storage import open_store

DAY = dt.date(2013, 1, 1)
NUMBERS = [-(2**53), -3, -1, 0, 1, 2, 7, 2**53]
KINDS: dict[str, tuple[list[pa.DataType], st.SearchStrategy[Any]]] = {
    # column: types that files may give it, values
    "i": ([pa.int64(), pa.int32(), pa.null()], st.integers(-3, 7)),
    "u": ([pa.uint64(), pa.uint8()], st.integers(0, 9)),
    "x": (
        [pa.float64(), pa.float32(), pa.int8()],
        st.sampled_from([-math.inf, -1.5, -0.0, 0.0, 1.0, 2.5, math.nan, math.inf]),
    ),
    "s": (
        [pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())],
        st.sampled_from(["", "a", "ab", "b", "é", "z" * 80]),
    ),
    "b": ([pa.bool_()], st.booleans()),
    "d": ([pa.date32()], st.integers(0, 800).map(lambda n: DAY + dt.timedelta(days=n))),
    "t": (
        [pa.timestamp("ms"), pa.timestamp("ns")],
        st.integers(0, 10**9).map(lambda n: dt.datetime(2013, 1, 1) + dt.timedelta(seconds=n)),
    ),
}
LITERALS = {
    "i": ["0", "2", "-3", "1.5", "100"],
    "u": ["0", "3", "-1"],
    "x": ["0", "-1.5", "2.5", "1", "-0.0"],
    "s": ["'a'", "'b'", "''", "'é'", "'zz'"],
    "b": ["True", "False"],
    "d": ["'2013-01-01'", "'2014-02-03'"],
    "t": ["'2013-01-01 00:00:00'", "'2029-01-01 12:00:00'"],
    "p": ["1", "2"],
}


@st.composite
def _conditions(draw: st.DrawFn, depth: int = 2) -> str:
    if depth and draw(st.booleans()):
        one = draw(_conditions(depth=depth - 1))
        match draw(st.integers(0, 3)):
            case 0:
                return f"(not {one})"
            case 1:
                return f"({one} and {draw(_conditions(depth=depth - 1))})"
            case 2:
                return f"({one} or {draw(_conditions(depth=depth - 1))})"
            case _:
                return f"coalesce({one}, {draw(_conditions(depth=depth - 1))})"
    name = draw(st.sampled_from([*KINDS, "p"]))
    literal = draw(st.sampled_from(LITERALS[name]))
    sign = draw(st.sampled_from(["==", "!=", "<", "<=", ">", ">="] if name != "b" else ["==", "!="]))
    forms = [f"{name} {sign} {literal}", f"{literal} {sign} {name}", f"is_null({name})", f"{name} {sign} {name}"]
    if name in "iuxsp":
        forms.append(f"{name} in ({literal}, {draw(st.sampled_from(LITERALS[name]))})")
    if name in "ixp":
        forms += [
            f"-{name} {sign} {literal}",
            f"coalesce({name}, 1) {sign} {literal}",
            f"i {sign} x",
            f"floor({name}) {sign} {literal}",
        ]
        forms += [
            f"cast({name}, 'float64') {sign} {literal}",
            f"{name} * 2 {sign} {literal}",
            f"(1 if i > 1 else {literal}) {sign} {name}",
        ]
    if name == "t":
        forms += [f"date(t) {sign} '2014-02-03'", f"year(t) {sign} 2013"]
    if name == "d":
        forms.append(f"year(d) {sign} 2014")
    if name == "s":
        forms.append("starts_with(s, 'a')")
    return draw(st.sampled_from(forms + (["b", "not b"] if name == "b" else [])))


@st.composite
def _file(draw: st.DrawFn) -> tuple[pa.Table, dict[str, Any]]:
    rows = draw(st.integers(1, 6))
    columns = {}
    for name, (types, values) in KINDS.items():
        type = draw(st.sampled_from(types))
        if draw(st.integers(0, 7)) == 0 and name != "i":
            continue  # this file lacks the column
        if pa.types.is_null(type):
            columns[name] = pa.nulls(rows)
            continue
        if pa.types.is_integer(type) and name == "x":
            values = st.integers(-2, 2)
        given = draw(
            st.lists(st.one_of(st.none(), values) if draw(st.booleans()) else values, min_size=rows, max_size=rows)
        )
        columns[name] = pa.array(given, type)
    options = {
        "row_group_size": draw(st.integers(1, 3)),
        "write_statistics": draw(st.sampled_from([True, True, ["i", "x", "t"], False])),
        "store_schema": draw(st.booleans()),
    }
    return pa.table(columns), options


def _write(url: str, path: str, table: pa.Table, **options: Any) -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **options)
    open_store(url).replace(path, sink.getvalue().to_pybytes())


def _matching(dataset: Dataset, condition: str, tables: dict[str, pa.Table]) -> set[tuple[str, int]]:
    """Rows (path, number in the file) that meet the condition, found by reading everything."""
    expression, found = parse_filter(condition, dataset.schema), set()
    for path, partition in zip(dataset.files["path"].to_pylist(), dataset.files["partition"].to_pylist(), strict=True):
        table = tables[path]
        columns = {}
        for field in dataset.schema:
            if field.name in partition:
                columns[field.name] = pa.array([partition[field.name]] * table.num_rows, field.type)
            elif field.name in table.column_names:
                held = table[field.name].combine_chunks()
                held = (
                    held.dictionary_decode()
                    if pa.types.is_dictionary(held.type) and not pa.types.is_dictionary(field.type)
                    else held
                )
                columns[field.name] = held.cast(field.type)
            else:
                columns[field.name] = pa.nulls(table.num_rows, field.type)
        mask = expression.evaluate(columns, table.num_rows).to_pylist()
        found |= {(path, row) for row, meets in enumerate(mask) if meets}
    return found


def _held(dataset: Dataset) -> set[tuple[str, int]]:
    paths = dataset.files["path"].to_pylist()
    return {
        (paths[group["file"]], row)
        for group in dataset.row_groups.to_pylist()
        for row in range(group["first_row"], group["first_row"] + group["rows"])
    }


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(_file(), min_size=1, max_size=3), st.lists(_conditions(), min_size=1, max_size=6))
def test_every_row_that_meets_the_filter_is_kept(
    files: list[tuple[pa.Table, dict[str, Any]]], conditions: list[str]
) -> None:
    url = f"memory://prune-{uuid.uuid4().hex}"
    tables = {}
    for i, (table, options) in enumerate(files):
        path = f"p={['1', '2', '__HIVE_DEFAULT_PARTITION__'][i]}/f.parquet"
        _write(url, path, table, **options)
        tables[path] = table
    dataset = open_dataset(url, threads=1)
    for condition in conditions:
        try:
            expected = _matching(dataset, condition, tables)
        except (NotFoundError, UsageError):
            continue  # no file has the column, or only nulls of it
        pruned = dataset.prune(condition)
        assert expected <= _held(pruned.dataset)
        assert _held(pruned.dataset) <= _held(dataset)
        assert (pruned.row_groups_before, pruned.row_groups_after) == (
            dataset.row_groups.num_rows,
            pruned.dataset.row_groups.num_rows,
        )


@pytest.fixture
def flights(tmp_path: Path) -> Path:
    for month in (1, 2, 3):
        table = pa.table(
            {
                "delay": pa.array(range(month * 100, month * 100 + 40), pa.int32()),
                "day": [DAY + dt.timedelta(days=month)] * 40,
            }
        )
        (tmp_path / f"month={month}").mkdir()
        pq.write_table(table, tmp_path / f"month={month}" / "part.parquet", row_group_size=10)
    return tmp_path


@pytest.mark.parametrize(
    ("condition", "files", "row_groups"),
    [
        ("month == 2", 1, 4),
        ("month in (1, 3)", 2, 8),
        ("month > 1 and delay < 215", 1, 2),
        ("not (month < 3)", 1, 4),
        ("delay == 139 or month == 3", 2, 5),
        ("day == '2013-01-03'", 1, 4),
        ("is_null(month)", 0, 0),
        ("is_null(delay)", 0, 0),
        ("late", 1, 2),
        ("slot > 3", 3, 12),  # a choice between numbers is not understood
        ("delay > 5000", 0, 0),
        ("delay * 2 > 5000", 3, 12),
        (None, 3, 12),
    ],
)
def test_pruning_says_what_is_left(flights: Path, condition: str | None, files: int, row_groups: int) -> None:
    pruned = open_dataset(str(flights)).prune(condition, {"late": "delay >= 325", "slot": "3 if delay < 315 else 4"})
    assert (pruned.files_before, pruned.row_groups_before) == (3, 12)
    assert (pruned.files_after, pruned.row_groups_after) == (files, row_groups)
    assert pruned.dataset.files.num_rows == files
    assert pruned.dataset.opened.subset == (row_groups < 12)


def test_what_is_kept_keeps_its_place_in_the_file(flights: Path) -> None:
    whole = open_dataset(str(flights))
    left = whole.prune("delay >= 220").dataset
    assert left.files["path"].to_pylist() == ["month=2/part.parquet", "month=3/part.parquet"]
    assert left.row_groups["file"].to_pylist() == [0, 0, 1, 1, 1, 1]
    assert left.row_groups["row_group"].to_pylist() == [2, 3, 0, 1, 2, 3]
    assert left.row_groups["first_row"].to_pylist() == [20, 30, 0, 10, 20, 30]
    assert left.content_digest != whole.content_digest
    left.check_unchanged()


def test_pruning_by_folders_opens_no_file(flights: Path) -> None:
    dataset = open_dataset(str(flights))
    for file in flights.glob("*/*"):
        file.write_bytes(b"")
    assert dataset.prune("month == 1").files_after == 1
    with pytest.raises(DatasetChangedError, match="written again"):
        dataset.prune("delay == 1")
