"""Types widen without losing values, whatever the order in which they are met."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.data.widening import castable, holds, widen

INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
FLOATS = [pa.float16(), pa.float32(), pa.float64()]
DECIMALS = [pa.decimal128(10, 2), pa.decimal128(20, 0), pa.decimal256(60, 10)]
STAMPS = [pa.timestamp(unit, tz) for unit in ("s", "ms", "us", "ns") for tz in (None, "UTC", "America/New_York")]
TIMES = [pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns"), pa.duration("s"), pa.duration("ns")]
TEXTS = [pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary(4)]
FLAT = [pa.null(), pa.bool_(), *INTEGERS, *FLOATS, *DECIMALS, *STAMPS, pa.date32(), pa.date64(), *TIMES, *TEXTS]
DICTIONARIES = [
    pa.dictionary(i, v) for i in (pa.int8(), pa.int32()) for v in (pa.string(), pa.large_string(), pa.int64())
]

types = st.recursive(
    st.sampled_from(FLAT + DICTIONARIES),
    lambda inner: st.one_of(
        st.builds(pa.list_, inner),
        st.builds(pa.large_list, inner),
        st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=3).map(
            lambda d: pa.struct(list(d.items()))
        ),
    ),
    max_leaves=4,
)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([pa.int32(), pa.int64()], pa.int64()),
        ([pa.uint8(), pa.int8()], pa.int16()),
        ([pa.uint32(), pa.int8()], pa.int64()),
        ([pa.uint32(), pa.uint64()], pa.uint64()),
        ([pa.uint64(), pa.int8()], None),
        ([pa.uint64(), pa.int8(), pa.float64()], pa.float64()),
        ([pa.float32(), pa.float64()], pa.float64()),
        ([pa.int16(), pa.float32()], pa.float32()),
        ([pa.int64(), pa.float32()], pa.float64()),
        ([pa.int32(), pa.decimal128(5, 2)], pa.decimal128(12, 2)),
        ([pa.decimal128(38, 0), pa.decimal128(38, 10)], pa.decimal256(48, 10)),
        ([pa.null(), pa.string()], pa.string()),
        ([pa.null()], pa.null()),
        ([], pa.null()),
        ([pa.string(), pa.large_string()], pa.large_string()),
        ([pa.string(), pa.binary()], None),
        ([pa.string(), pa.int64()], None),
        ([pa.bool_(), pa.int8()], None),
        ([pa.binary(4), pa.binary(8)], pa.binary()),
        ([pa.timestamp("ms"), pa.timestamp("us")], pa.timestamp("us")),
        ([pa.timestamp("ms", "UTC"), pa.timestamp("ns", "America/New_York")], pa.timestamp("ns", "UTC")),
        ([pa.timestamp("ms", "UTC"), pa.timestamp("ms")], None),
        ([pa.date32(), pa.timestamp("us")], pa.timestamp("us")),
        ([pa.date32(), pa.timestamp("us", "UTC")], None),
        ([pa.date32(), pa.date64()], pa.date32()),
        ([pa.dictionary(pa.int8(), pa.string()), pa.string()], pa.string()),
        (
            [pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.int32(), pa.large_string())],
            pa.dictionary(pa.int32(), pa.large_string()),
        ),
        ([pa.dictionary(pa.int8(), pa.string()), pa.int64()], None),
        ([pa.list_(pa.int8()), pa.list_(pa.int64())], pa.list_(pa.int64())),
        ([pa.list_(pa.int8()), pa.int8()], None),
        ([pa.struct({"x": pa.int8()}), pa.struct({"y": pa.string()})], pa.struct({"x": pa.int8(), "y": pa.string()})),
    ],
)
def test_widening_table(found: list[pa.DataType], expected: pa.DataType | None) -> None:
    assert widen(found) == expected


@settings(max_examples=60)
@given(st.lists(types, max_size=4), st.randoms(use_true_random=False))
def test_order_and_repetition_do_not_matter(found: list[pa.DataType], random: object) -> None:
    shuffled = [*found, *found]
    random.shuffle(shuffled)  # type: ignore[attr-defined]  # hypothesis gives a random.Random
    assert widen(shuffled) == widen(found)


@settings(max_examples=60)
@given(st.lists(types, min_size=1, max_size=4))
def test_widening_the_result_changes_nothing(found: list[pa.DataType]) -> None:
    wide = widen(found)
    if wide is not None:
        assert widen([wide]) == wide


@given(st.sampled_from(FLAT + DICTIONARIES), st.sampled_from(FLAT + DICTIONARIES))
def test_what_holds_can_be_cast(narrow: pa.DataType, wide: pa.DataType) -> None:
    if holds(wide, narrow):
        assert castable(narrow, wide)


@given(st.sampled_from(INTEGERS), st.sampled_from(INTEGERS + FLOATS), st.data())
def test_integers_survive_widening_or_fail_loudly(one: pa.DataType, other: pa.DataType, data: st.DataObject) -> None:
    wide = widen([one, other])
    if wide is None:
        return
    low = 0 if pa.types.is_unsigned_integer(one) else -(2 ** (one.bit_width - 1))
    high = 2 ** (one.bit_width if low == 0 else one.bit_width - 1) - 1
    value = data.draw(st.integers(low, high))
    try:
        cast = pa.array([value], one).cast(wide)[0].as_py()
    except pa.ArrowInvalid:
        assert abs(value) > 2**53
    else:
        assert cast == value
