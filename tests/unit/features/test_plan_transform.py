"""Does a plan give each row the same bits, whatever company, order or Arrow form it comes in?"""

from __future__ import annotations

import datetime as dt
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipelines.errors import CorruptArtifactError, DataError, UsageError
from pipelines.features import FeaturePlan, Fitted
from pipelines.features.apply import hash_buckets

Fit = Callable[..., Fitted]


def mixed(rows: int, seed: int = 0) -> pa.Table:
    """A table with every kind of column, with missing values."""
    rng = np.random.default_rng(seed)

    def gaps(values: Any, kind: pa.DataType | None = None) -> pa.Array:
        return pa.array(values, kind, mask=rng.random(rows) < 0.1)

    hours = [dt.datetime(2013, 1, 1) + dt.timedelta(hours=int(h)) for h in rng.integers(0, 9000, rows)]
    return pa.table(
        {
            "double": gaps(rng.normal(5, 2, rows)),
            "float": gaps(rng.normal(-3, 1e-3, rows).astype(np.float32)),
            "int": gaps(rng.integers(-50, 50, rows)),
            "byte": pa.array(rng.integers(0, 200, rows).astype(np.uint8)),
            "flag": gaps(rng.random(rows) < 0.3),
            "word": gaps(rng.choice(["AA", "B6", "UA", "é"], rows)),
            "code": gaps(rng.integers(0, 9, rows)),
            "when": gaps(np.array(hours, "datetime64[us]"), pa.timestamp("us")),
        }
    )


EVERY_STEP: list[dict[str, Any]] = [
    {"columns": ["double", "float", "int", "byte", "flag"], "scale": "standard", "impute": "mean"},
    {"columns": ["double", "int"], "scale": "robust", "impute": "median", "missing_indicator": True},
    {"columns": ["float"], "scale": "minmax", "impute": {"constant": -3.0}},
    {"columns": ["double"], "scale": "none", "impute": "none"},
    {"columns": ["double", "byte"], "bins": 5},
    {"columns": ["int"], "bins": 4, "bin_by": "uniform", "encode": "ordinal"},
    {"columns": ["word", "code", "flag"], "encode": "one_hot", "max_categories": 5},
    {"columns": ["word"], "encode": "ordinal", "impute": "most_frequent"},
    {"columns": ["word", "code"], "encode": "native"},
    {"columns": ["word", "double"], "encode": "hash", "buckets": 16},
    {"columns": ["when"], "dates": ["year", "weekday", "hour_cyclic", "epoch"], "missing_indicator": True},
    {"columns": ["when"], "dates": ["weekday"], "encode": "one_hot"},
]


def rows_of(table: pa.Table, batch_rows: Sequence[int]) -> list[pa.RecordBatch]:
    """Cut a table into batches of the given sizes, over and over."""
    batches, start, turn = [], 0, 0
    while start < table.num_rows:
        batches += table.slice(start, batch_rows[turn % len(batch_rows)]).combine_chunks().to_batches()
        start += batch_rows[turn % len(batch_rows)]
        turn += 1
    return batches


def dense(matrix: Any) -> np.ndarray:
    return np.asarray(matrix.toarray() if hasattr(matrix, "toarray") else matrix)


def same_bits(a: Any, b: Any) -> bool:
    """Equal bits; a NaN is a NaN."""
    a, b = dense(a), dense(b)
    return a.shape == b.shape and bool(np.array_equal(np.isnan(a), np.isnan(b)) and np.array_equal(*_plain(a, b)))


def _plain(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.nan_to_num(a).view(np.int32), np.nan_to_num(b).view(np.int32)


@pytest.fixture(scope="module")
def table() -> pa.Table:
    return mixed(700)


@pytest.fixture(scope="module")
def plans(fit: Fit, table: pa.Table) -> dict[bool, FeaturePlan]:
    """The same plan, sparse and dense."""
    return {sparse: fit(table, *EVERY_STEP, sparse=sparse).plan for sparse in (False, True)}


@pytest.fixture(scope="module")
def plan(plans: dict[bool, FeaturePlan]) -> FeaturePlan:
    return plans[False]


@pytest.mark.parametrize("sparse", [False, True])
def test_rows_have_the_same_bits_in_any_batches(plans: dict[bool, FeaturePlan], table: pa.Table, sparse: bool) -> None:
    plan = plans[sparse]
    whole = plan.transform(table)
    assert dense(whole).dtype == np.float32
    assert whole.shape == (700, len(plan.names)) == (700, len(plan.types))
    assert plan.width == len(plan.names)
    for sizes in ([37, 1, 164], [699, 1], [256]):
        pieces = [dense(plan.transform(batch)) for batch in rows_of(table, sizes)]
        assert same_bits(np.vstack(pieces), whole)
    alone = [dense(plan.transform(batch)) for batch in rows_of(table.slice(0, 40), [1])]
    assert same_bits(np.vstack(alone), dense(whole)[:40])
    order = np.random.default_rng(1).permutation(700)
    assert same_bits(plan.transform(table.take(order)), dense(whole)[order])


def test_blocks_leave_no_trace(plan: FeaturePlan) -> None:
    table = mixed(40_000)  # more than two blocks
    whole = dense(plan.transform(table.combine_chunks().to_batches()[0]))
    assert same_bits(plan.transform(table.slice(16_380, 10)), whole[16_380:16_390])
    assert same_bits(plan.transform(table.slice(1, 39_999)), whole[1:])


def test_csr_holds_the_same_values_as_the_dense_matrix(plans: dict[bool, FeaturePlan], table: pa.Table) -> None:
    thin, full = (plans[sparse].transform(table) for sparse in (True, False))
    assert same_bits(thin, full)
    assert thin.has_sorted_indices
    assert thin.indices.dtype == np.int32
    assert isinstance(full, np.ndarray)
    assert full.flags.f_contiguous


FORMS: dict[str, Callable[[pa.Table], pa.Table]] = {
    "dictionary strings": lambda t: _with(t, "word", t["word"].dictionary_encode()),
    "large strings": lambda t: _with(t, "word", t["word"].cast(pa.large_string())),
    "string views": lambda t: _with(t, "word", t["word"].cast(pa.string_view())),
    "narrow integers": lambda t: _with(t, "int", t["int"].cast(pa.int8())),
    "integers as doubles": lambda t: _with(t, "code", t["code"].cast(pa.float64())),
    "integers as decimals": lambda t: _with(t, "int", t["int"].cast(pa.decimal128(25, 2))),
    "floats as doubles": lambda t: _with(t, "float", t["float"].cast(pa.float64())),
    "flags as integers": lambda t: _with(t, "flag", t["flag"].cast(pa.int64())),
    "other timestamps": lambda t: _with(t, "when", t["when"].cast(pa.timestamp("ns"))),
    "ISO texts": lambda t: _with(t, "when", t["when"].cast(pa.string())),
    "another order and more columns": lambda t: t.append_column("more", t["int"]).select(
        ["more", *reversed(t.column_names)]
    ),
    "many chunks": lambda t: pa.concat_tables([t.slice(0, 3), t.slice(3, 0), t.slice(3)]),
}


def _with(table: pa.Table, name: str, column: Any) -> pa.Table:
    return table.set_column(table.schema.get_field_index(name), name, column)


@pytest.mark.parametrize("form", FORMS)
def test_other_forms_of_the_same_values_give_the_same_bits(plan: FeaturePlan, table: pa.Table, form: str) -> None:
    assert same_bits(plan.transform(FORMS[form](table)), plan.transform(table))


def test_a_column_of_nulls_without_a_type_is_a_column_of_nulls(plan: FeaturePlan, table: pa.Table) -> None:
    untyped = table
    typed = table
    for name in table.column_names:
        untyped = _with(untyped, name, pa.nulls(700))
        typed = _with(typed, name, pa.nulls(700, table.schema.field(name).type))
    assert same_bits(plan.transform(untyped), plan.transform(typed))


def test_it_writes_into_what_it_is_given(plan: FeaturePlan, table: pa.Table) -> None:
    whole = plan.transform(table)
    for order in ("F", "C"):
        room = np.full((702, len(plan.names)), 7.0, np.float32, order=order)  # type: ignore[call-overload]
        result = plan.transform(table, room[1:-1])
        assert np.shares_memory(result, room)
        assert same_bits(result, whole)
        assert (room[[0, -1]] == 7.0).all()


@pytest.mark.parametrize(
    "out",
    [np.empty((700, 3), np.float32), np.empty((699, 73), np.float32), np.empty((700, 73))],
    ids=["columns", "rows", "float64"],
)
def test_out_must_fit(plan: FeaturePlan, table: pa.Table, out: np.ndarray) -> None:
    with pytest.raises(UsageError, match="out does not fit"):
        plan.transform(table, out)


def test_no_rows_give_no_rows(plans: dict[bool, FeaturePlan], table: pa.Table) -> None:
    for sparse in (False, True):
        plan = plans[sparse]
        assert plan.transform(table.slice(0, 0)).shape == (0, len(plan.names))
        assert plan.transform(table.slice(0, 0).combine_chunks().schema.empty_table()).shape == (0, len(plan.names))


def test_missing_columns_are_named_all_at_once(plan: FeaturePlan, table: pa.Table) -> None:
    with pytest.raises(DataError) as caught:
        plan.transform(table.drop_columns(["word", "int"]).rename_columns({"double": "Double"}))
    text = str(caught.value)
    assert "3 input columns are missing" in text
    assert all(name in text for name in ("double", "int", "word"))
    assert "Did you mean" in text


WRONG = {
    "a word for a number": ("double", pa.array(["fast"] * 700), "double"),
    "a fraction for an integer category": ("code", pa.array([1.5] * 700), "int64"),
    "a number for a word": ("word", pa.array([1.5] * 700), "string"),
    "a list": ("int", pa.array([[1]] * 700), "int64"),
    "an integer for a date": ("when", pa.array([1] * 700), "timestamp"),
    "a word for a date": ("when", pa.array(["yesterday"] * 700), "timestamp"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_type_is_named_with_its_column(plan: FeaturePlan, table: pa.Table, case: str) -> None:
    name, values, expected = WRONG[case]
    with pytest.raises(DataError) as caught:
        plan.transform(_with(table, name, values))
    assert f"column {name}" in str(caught.value)
    assert f"expected {expected}" in str(caught.value)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=st.lists(st.floats(width=32, allow_nan=True, allow_infinity=True) | st.none(), min_size=1, max_size=20))
def test_infinities_and_overflow_count_as_missing(fit: Fit, values: list[float | None]) -> None:
    plan = _cached_plan(fit)
    batch = pa.record_batch({"x": pa.array(values, pa.float64()), "z": pa.array(values, pa.float32())})
    found = plan.transform(batch)
    assert np.isfinite(found).all()
    for place, value in enumerate(values):
        if value is None or not np.isfinite(value):
            assert found[place, 0] == found[place, 1] == 0.0  # the imputed mean, standardised


_plans: dict[str, FeaturePlan] = {}


def _cached_plan(fit: Fit) -> FeaturePlan:
    if not _plans:
        rng = np.random.default_rng(0)
        table = pa.table({"x": rng.normal(0, 1e-3, 100), "z": rng.normal(0, 1e-3, 100).astype(np.float32)})
        _plans["plan"] = fit(table, ["x", "z"]).plan
    return _plans["plan"]


def test_a_null_beside_it_does_not_change_how_a_large_integer_is_rounded(fit: Fit) -> None:
    plan = fit(pa.table({"x": [1, 2, 3]}), {"columns": "x", "scale": "none", "impute": "none"}).plan
    values = [2**24 + 1 + 2**54 * k for k in range(300)] + [2**60 + 2**36 + 1]
    alone = plan.transform(pa.record_batch({"x": pa.array(values)}))
    beside = plan.transform(pa.record_batch({"x": pa.array([*values, None])}))
    assert same_bits(alone, beside[:-1])


def test_a_number_beyond_float32_is_missing(fit: Fit) -> None:
    plan = fit(pa.table({"x": [1.0, 2.0, 4.0]}), {"columns": ["x"], "scale": "none", "impute": {"constant": 9}}).plan
    batch = pa.record_batch({"x": [1e39, -1e39, 3.0]})
    assert plan.transform(batch)[:, 0].tolist() == [9.0, 9.0, 3.0]


def test_a_plan_is_its_files(plan: FeaturePlan, table: pa.Table) -> None:
    files = plan.files()
    assert set(files) == {"plan.json", "categories.arrow"}
    again, pickled = FeaturePlan.from_files(files), pickle.loads(pickle.dumps(plan))
    for other in (again, pickled):
        assert other == plan
        assert (other.names, other.types, other.digest) == (plan.names, plan.types, plan.digest)
        assert other.files() == files
        assert other.input_schema.equals(plan.input_schema)
        assert same_bits(other.transform(table), plan.transform(table))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("plan.json", lambda data: data.replace(b'"schema_number":1', b'"schema_number":2')),
        ("plan.json", lambda data: data[:100]),
        ("plan.json", None),
        ("categories.arrow", lambda data: data[:100]),
        ("categories.arrow", None),
    ],
)
def test_files_that_are_no_plan_are_refused(plan: FeaturePlan, name: str, change: Any) -> None:
    files = plan.files()
    if change is None:
        del files[name]
    else:
        files[name] = change(files[name])
    with pytest.raises(CorruptArtifactError, match="not a feature plan that this release reads"):
        FeaturePlan.from_files(files)


def test_hashes_never_change() -> None:
    """A plan stores no hashes: other buckets for the same values would silently change every model that hashes."""
    assert hash_buckets(pa.array(["AA", "", "é", "a longer text than one word"]), 1000).tolist() == [227, 737, 476, 668]
    assert hash_buckets(pa.array([0, 1, -1, 2**62]), 1000).tolist() == [929, 54, 407, 656]
    assert hash_buckets(pa.array([0.0, 1.0, 0.5]), 1000).tolist() == [929, 54, 823]


WIDTHS = [
    pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(),
    pa.float16(), pa.float32(), pa.float64(), pa.decimal128(25, 2), pa.decimal256(40, 2), pa.duration("ms"),
]  # fmt: skip


@pytest.mark.parametrize("kind", WIDTHS, ids=str)
def test_numbers_of_every_type(fit: Fit, kind: pa.DataType) -> None:
    values = [1, 2, None, 4, 100, 7]
    numbers = pa.array([v if v is None else v * 1000 for v in values], pa.int64()).cast(pa.duration("ms"))
    column = numbers if pa.types.is_duration(kind) else pa.array(values, pa.int64()).cast(kind, safe=False)
    table = pa.table({"x": column})
    plan = fit(table, {"columns": "x", "scale": "none", "impute": "median", "missing_indicator": True}, "x").plan
    found = plan.transform(table)
    assert found[:, 0].tolist() == [1, 2, 4, 4, 100, 7]
    assert found[:, 1].tolist() == [0, 0, 1, 0, 0, 0]
    there = np.array([1, 2, 4, 100, 7])
    np.testing.assert_allclose(found[[0, 1, 3, 4, 5], 2], (there - there.mean()) / there.std(), rtol=1e-6)


@pytest.mark.parametrize("kind", [kind for kind in WIDTHS if not pa.types.is_duration(kind)], ids=str)
def test_categories_of_every_type_of_number(fit: Fit, kind: pa.DataType) -> None:
    table = pa.table({"x": pa.array([1, 2, None, 100], pa.int64()).cast(kind, safe=False)})
    plan = fit(table, {"columns": "x", "encode": "ordinal"}, {"columns": "x", "encode": "hash"}).plan
    assert np.asarray(plan.transform(table).toarray())[:, 0].tolist() == [0, 1, -1, 2]
    wider = table.set_column(0, "x", table["x"].cast(pa.float64()))
    assert same_bits(plan.transform(wider), plan.transform(table))
