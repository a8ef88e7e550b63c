"""Row-level checks say what is in the rows, and merge to the same however the rows were dealt."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import math
import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipelines.data.checks import FEW, Checks, ColumnChecks
from pipelines.data.sketch import DistinctSketch


def described(values: pa.Array) -> dict[str, Any]:
    checks = ColumnChecks(values.type)
    checks.update(values)
    return checks.result()


def test_numbers_are_described_without_what_is_no_number() -> None:
    values = pa.array([1.0, None, float("nan"), float("inf"), -float("inf"), 3.0, 3.0], pa.float32())
    assert described(values) == {
        "type": "float",
        "nulls": 1,
        "nan": 1,
        "inf": [1, 1],
        "min": 1.0,
        "max": 3.0,
        "mean": pytest.approx(7 / 3),
        "std": pytest.approx(np.std([1, 3, 3])),
        "distinct": 2,
        "distinct_error": 0.0,
        "top": [[3.0, 2], [1.0, 1]],
    }


@pytest.mark.parametrize(
    ("values", "low", "high", "distinct"),
    [
        (pa.array([3, None, -1, 3], pa.int8()), -1, 3, 2),
        (pa.array([2**64 - 1, 5], pa.uint64()), 5, 2**64 - 1, 2),
        (pa.array([True, False, None]), False, True, 2),
        (pa.array(["b", "", None, "b"]), "", "b", 2),
        (pa.array(["b", "a", None, "b"]).dictionary_encode(), "a", "b", 2),
        (pa.array([dt.date(2013, 1, 1), dt.date(2012, 1, 1)]), "2012-01-01", "2013-01-01", 2),
        (pa.array([dt.datetime(2013, 1, 1, 5), None]), "2013-01-01 05:00:00", "2013-01-01 05:00:00", 1),
        (pa.array([dt.time(5), dt.time(4)]), "04:00:00", "05:00:00", 2),
        (pa.array([dt.timedelta(seconds=90), dt.timedelta(0)]), "0:00:00", "0:01:30", 2),
        (pa.array([2**62], pa.timestamp("s")), 2**62, 2**62, 1),
        (pa.array([decimal.Decimal("1.50"), decimal.Decimal("-2.25")]), "-2.25", "1.50", 2),
        (pa.array([1, 2, 2], pa.int64()).dictionary_encode(), 1, 2, 2),
        (pa.array([1.5, 2.5], pa.float16()), 1.5, 2.5, 2),
        (pa.array([b"x", b"y"]), None, None, 2),
        (pa.array([None, None]), None, None, 0),
    ],
)
def test_every_plain_type_has_a_range_and_a_cardinality(values: pa.Array, low: Any, high: Any, distinct: int) -> None:
    found = described(values)
    assert (found["min"], found["max"], found["distinct"]) == (low, high, distinct)
    json.dumps(found, allow_nan=False)


def test_nested_columns_are_described_by_their_nulls() -> None:
    assert described(pa.array([[1], None])) == {"type": "list<item: int64>", "nulls": 1}


def test_the_label_distribution_is_that_of_its_column() -> None:
    checks = Checks(pa.schema([("label", pa.int8())]))
    checks.update(pa.record_batch({"label": pa.array([1, 0, 0, None], pa.int8())}))
    assert checks.result()["columns"]["label"]["top"] == [[0, 2], [1, 1]]
    assert checks.result()["rows"] == 4


COLUMNS = {
    "f": st.one_of(st.none(), st.floats(width=32)),
    "i": st.one_of(st.none(), st.integers(-(2**31), 2**31 - 1)),
    "s": st.one_of(st.none(), st.text(max_size=3)),
    "d": st.one_of(st.none(), st.dates()),
}
SCHEMA = pa.schema([("f", pa.float32()), ("i", pa.int32()), ("s", pa.string()), ("d", pa.date32())])


ZERO, MOST = ({"f": value, "i": None, "s": None, "d": None} for value in (0.0, 3.4028234663852886e38))


@pytest.mark.slow
@given(st.lists(st.lists(st.fixed_dictionaries(COLUMNS), max_size=8), min_size=3, max_size=3))
@example([[], [ZERO], [ZERO | {"f": 1.0}, MOST, MOST | {"f": -MOST["f"]}]])  # the mean is lost to cancellation
@settings(max_examples=60)
def test_merging_is_associative_and_the_same_as_one_pass(groups: list[list[dict[str, Any]]]) -> None:
    def of(rows: list[dict[str, Any]]) -> Checks:
        checks = Checks(SCHEMA)
        checks.update(pa.RecordBatch.from_pylist(rows, SCHEMA))
        return checks

    left, right, first = of(groups[0]), of(groups[1]), of(groups[0])
    left.merge(of(groups[1]))
    left.merge(of(groups[2]))
    right.merge(of(groups[2]))
    first.merge(right)
    whole = of([row for group in groups for row in group])
    assert same(left.result(), first.result())
    assert same(left.result(), whole.result())


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Equal but for mean and deviation, whose rounding hangs on the greatest value: 24 sums within 1e-13 of it."""
    columns, others = one["columns"], other["columns"]
    if one["rows"] != other["rows"] or columns.keys() != others.keys():
        return False
    for name, left in columns.items():
        right, scale = others[name], 0.0
        if isinstance(left["max"], int | float):
            scale = max(abs(left["min"]), abs(left["max"]))
        for key in left.keys() | right.keys():
            if key in ("mean", "std"):
                if not math.isclose(left[key], right[key], rel_tol=0, abs_tol=1e-13 * scale):
                    return False
            elif left[key] != right[key]:
                return False
    return True


def test_few_values_are_counted_exactly_and_many_are_estimated_within_the_stated_error() -> None:
    generator = np.random.default_rng(0)
    for distinct in (FEW, FEW + 1, 5000, 200_000):
        values = generator.permutation(np.repeat(np.arange(distinct) * 977, 2))
        for array in (
            pa.array(values),
            pa.array(values.astype(np.int32)),
            pa.array(values / 8),
            pa.array(values.astype(np.str_), pa.string()),
            pa.array(values).cast(pa.timestamp("us")),
        ):
            found = described(array)
            if distinct <= FEW:
                assert (found["distinct"], found["distinct_error"]) == (distinct, 0.0)
            else:
                assert "top" not in found
                assert abs(found["distinct"] / distinct - 1) <= 4 * found["distinct_error"]


def test_a_sketch_estimates_within_its_error_at_every_size() -> None:
    generator = np.random.default_rng(1)
    for size in (0, 1, 10, 500, 2_000, 50_000, 1_000_000):
        errors = []
        for _ in range(20 if size < 10**6 else 3):
            sketch = DistinctSketch()
            sketch.update(generator.integers(0, 2**64, size, dtype=np.uint64))
            errors.append(sketch.estimate() / max(size, 1) - (size > 0))
        assert abs(np.mean(errors)) < 0.04
        assert np.max(np.abs(errors)) < 0.14


def test_checks_travel_small() -> None:
    checks = Checks(pa.schema([(f"x{i}", pa.float32()) for i in range(28)]))
    numbers = np.random.default_rng(0).random((28, 10_000)).astype(np.float32)
    checks.update(pa.record_batch(list(numbers), names=list(checks.columns)))
    data = pickle.dumps(checks)
    assert len(data) < 28 * 1600
    assert pickle.loads(data).result() == checks.result()


@pytest.mark.filterwarnings("ignore:.*encountered:RuntimeWarning")
def test_what_overflows_has_no_deviation_and_stays_json() -> None:
    found = described(pa.array([1.7e308, -1.7e308, 1.7e308, 1.7e308]))
    assert (found["min"], found["max"], found["std"]) == (-1.7e308, 1.7e308, None)
    json.dumps(found, allow_nan=False)
