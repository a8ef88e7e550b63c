"""One schema fits all files, or one error says all that does not fit."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.data.config import ColumnCorrection
from pipelines.data.schema import Drift, FileSchema, Found, Unified, unify
from pipelines.errors import DataError, NotFoundError

CATEGORY = ColumnCorrection(type="category")


def _schema(**columns: pa.DataType) -> pa.Schema:
    return pa.schema(list(columns.items()))


def test_nullability_null_types_and_column_order_are_no_drift() -> None:
    one = pa.schema([pa.field("a", pa.int64(), nullable=False), pa.field("b", pa.string())])
    other = _schema(b=pa.null(), a=pa.int64())
    unified = unify([FileSchema(one, 1, "1"), FileSchema(other, 1, "2")], on_drift="strict")
    assert unified.schema == _schema(a=pa.int64(), b=pa.string())
    assert unified.drift == ()


def test_drift_is_recorded_with_files_and_types() -> None:
    found = [FileSchema(_schema(a=pa.int32()), 3, "old"), FileSchema(_schema(a=pa.int64(), b=pa.string()), 2, "zew")]
    unified = unify(found)
    assert unified.schema == _schema(a=pa.int64(), b=pa.string())
    assert unified.drift == (
        Drift("a", "type", "int64", (Found("int32", 3, "old"), Found("int64", 2, "zew"))),
        Drift("b", "missing", "string", (Found("string", 2, "zew"), Found("", 3, "old"))),
    )


def test_strict_refuses_all_drift_in_one_error_and_a_correction_settles_a_type() -> None:
    found = [
        FileSchema(_schema(a=pa.int32(), c=pa.float32()), 1, "x"),
        FileSchema(_schema(a=pa.int64(), b=pa.string(), c=pa.float64()), 1, "y"),
    ]
    with pytest.raises(DataError) as error:
        unify(found, on_drift="strict", corrections={"c": ColumnCorrection(type="float32")})
    text = str(error.value)
    assert "a: int32 in x; int64 in y" in text
    assert "b: string in y; missing in x" in text
    assert "c:" not in text


def test_all_irreconcilable_columns_are_one_error_with_file_column_and_types() -> None:
    found = [
        FileSchema(_schema(a=pa.string(), b=pa.bool_(), c=pa.int8()), 1, "part-0"),
        FileSchema(_schema(a=pa.float64(), b=pa.int64(), c=pa.int64()), 4, "part-1"),
    ]
    with pytest.raises(DataError) as error:
        unify(found, on="s3://bucket/data")
    text = str(error.value)
    assert text.startswith("s3://bucket/data: 2 columns have types that can't be reconciled")
    assert "a: string in part-0; double in part-1 and 3 more" in text
    assert "b: bool in part-0; int64 in part-1 and 3 more" in text
    assert "columns: {a: {type: …}}" in text
    assert "c:" not in text


def test_corrections_name_the_type() -> None:
    found = [
        FileSchema(_schema(a=pa.string(), b=pa.int64()), 1, "x"),
        FileSchema(_schema(a=pa.int64(), b=pa.int64()), 1, "y"),
    ]
    corrections = {"a": ColumnCorrection(type="string"), "b": CATEGORY}
    unified = unify(found, corrections=corrections)
    assert unified.schema == _schema(a=pa.string(), b=pa.dictionary(pa.int32(), pa.int64()))
    assert unify(found, corrections={"a": CATEGORY}).schema.field("a").type == pa.dictionary(pa.int32(), pa.string())


def test_a_correction_that_nothing_can_be_cast_to_is_refused() -> None:
    found = [FileSchema(_schema(a=pa.list_(pa.int8())), 1, "x")]
    with pytest.raises(
        DataError,
        match=r"a \(to be read as int8\): list<element: int8> in x|a \(to be read as int8\): list<item: int8> in x",
    ):
        unify(found, corrections={"a": ColumnCorrection(type="int8")})


def test_a_correction_of_an_unknown_column_suggests_the_nearest() -> None:
    with pytest.raises(NotFoundError, match="Did you mean carrier"):
        unify([FileSchema(_schema(carrier=pa.string()), 1, "x")], corrections={"carier": CATEGORY})


def test_partition_columns_come_last_and_stand_for_columns_of_the_files() -> None:
    found = [FileSchema(_schema(month=pa.string(), a=pa.int8()), 1, "month=1/x")]
    unified = unify(found, partitions=[pa.field("month", pa.int64())], corrections={"month": CATEGORY})
    assert unified.schema == _schema(a=pa.int8(), month=pa.dictionary(pa.int32(), pa.int64()))
    assert unified.drift == ()


schemas = st.dictionaries(
    st.sampled_from("abcde"),
    st.sampled_from(
        [
            pa.null(),
            pa.int8(),
            pa.int64(),
            pa.float32(),
            pa.float64(),
            pa.string(),
            pa.large_string(),
            pa.timestamp("ms"),
        ]
    ),
    min_size=1,
).map(lambda columns: pa.schema(list(columns.items())))


@settings(max_examples=50)
@given(st.lists(schemas, min_size=1, max_size=6), st.integers(0, 1000))
def test_the_order_of_files_does_not_matter_and_unifying_again_changes_nothing(
    found: list[pa.Schema], seed: int
) -> None:
    files = [FileSchema(schema, 1, f"part-{i}") for i, schema in enumerate(found)]
    shuffled = random.Random(seed).sample(files, len(files))
    unified, again = _outcome(files), _outcome(shuffled)
    if isinstance(unified, str) or isinstance(again, str):
        assert unified == again
        return
    assert again.schema.equals(unified.schema)
    assert again.drift == unified.drift
    assert unify([FileSchema(unified.schema, 1, "all")]).schema.equals(unified.schema)
    assert set(unified.schema.names) == {name for schema in found for name in schema.names}


def _outcome(files: list[FileSchema]) -> Unified | str:
    try:
        return unify(files)
    except DataError as error:
        return str(error)
