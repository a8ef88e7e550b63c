"""Splits are pure functions of values: the same on every machine, for every layout of the files."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from pipelines import codec
from pipelines.data.config import DataConfig
from pipelines.data.dataset import Dataset
from pipelines.data.hashing import hash_rows, hash_values
from pipelines.data.quantiles import HashRanks, ValueCounts
from pipelines.data.reader import read_batches
from pipelines.data.rows import RowIds
from pipelines.data.shards import plan_shards
from pipelines.data.source import make_source
from pipelines.data.split import Cuts, SplitConfig, SplitPlan
from pipelines.data.splitting import count_parts, fit_split
from pipelines.errors import NotFoundError, UsageError

Write = Callable[..., Dataset]
ROWS = 6000


@cache
def table() -> pa.Table:
    generator = np.random.default_rng(3)
    days = [dt.date(2013, 1, 1) + dt.timedelta(days=int(d)) for d in np.sort(generator.integers(0, 365, ROWS))]
    return pa.table(
        {
            "id": np.arange(ROWS),
            "day": pa.array(days),
            "carrier": pa.array(
                [None if i % 13 == 0 else f"c{int(c)}" for i, c in enumerate(generator.poisson(3, ROWS))]
            ),
            "speed": pa.array(generator.random(ROWS).round(2)),
            "tail": pa.array([f"N{int(t)}" for t in generator.integers(0, 400, ROWS)]),
        }
    )


def quarters(write: Write, folder: str = "four") -> Dataset:
    held = {f"part-{i}.parquet": table().slice(i * 1500, 1500) for i in range(4)}
    return write(held, folder=folder, row_group_size=123)


def layouts(write: Write) -> list[Dataset]:
    turned = {"x/a.parquet": table().slice(3000), "x/b.parquet": table().slice(0, 3000)}
    one = write(table(), folder="one", row_group_size=700)
    return [one, quarters(write), write(turned, folder="turned", row_group_size=9999)]


def parts_of(dataset: Dataset, config: SplitConfig, shards: int = 5) -> tuple[SplitPlan, dict[int, int]]:
    source, plan = make_source(dataset), plan_shards(dataset, ["id"], shards=shards)
    split = fit_split(config, source, plan.shards)
    found: dict[int, int] = {}
    for read in read_batches(source, plan.shards, ["id"], split=split):
        assert read.parts is not None
        found |= dict(zip(read.batch["id"].to_pylist(), read.parts.tolist(), strict=True))
    assert len(found) == ROWS
    return split, found


@pytest.mark.parametrize(
    "config",
    [
        SplitConfig(kind="hash", by="id", seed=7),
        SplitConfig(kind="grouped", by="tail", seed=7),
        SplitConfig(kind="grouped", by="day", seed=7),
        SplitConfig(kind="time", by="day"),
        SplitConfig(kind="time", by="speed"),
    ],
)
def test_a_split_by_a_key_is_the_same_for_any_layout_of_the_files(write: Write, config: SplitConfig) -> None:
    found = [parts_of(dataset, config) for dataset in layouts(write)]
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("config", [SplitConfig(seed=1), SplitConfig(kind="stratified", by="carrier", seed=1)])
def test_a_split_by_rows_hangs_on_the_files_but_not_on_the_shards(write: Write, config: SplitConfig) -> None:
    dataset = quarters(write)
    assert parts_of(dataset, config, 1) == parts_of(dataset, config, 17)
    copied = quarters(write, "copy")
    assert parts_of(copied, config) == parts_of(dataset, config)


def test_shares_are_met(write: Write) -> None:
    dataset = quarters(write)
    for config in (SplitConfig(), SplitConfig(by="id"), SplitConfig(kind="grouped", by="tail")):
        _, found = parts_of(dataset, config)
        shares = np.bincount(list(found.values()), minlength=3) / ROWS
        # Binomial: three standard deviations of 6,000 rows (2 %) or 400 groups (7 %).
        assert shares == pytest.approx([0.7, 0.1, 0.2], abs=0.07 if config.kind == "grouped" else 0.02)


def test_groups_stay_together(write: Write) -> None:
    _, found = parts_of(quarters(write), SplitConfig(kind="grouped", by="tail"))
    tails = table()["tail"].to_pylist()
    parts: dict[str, set[int]] = {}
    for row, part in found.items():
        parts.setdefault(tails[row], set()).add(part)
    assert all(len(each) == 1 for each in parts.values())


def test_every_stratum_has_exactly_its_shares_nulls_too(write: Write) -> None:
    split, found = parts_of(quarters(write), SplitConfig(kind="stratified", by="carrier", validation=0.15, test=0.25))
    carriers = table()["carrier"].to_pylist()
    assert len(split.strata) == len(set(carriers))
    for stratum in split.strata:
        mine = [found[row] for row, carrier in enumerate(carriers) if carrier == stratum.value]
        assert stratum.rows == len(mine)
        assert mine.count(2) == round(0.25 * len(mine))
        assert mine.count(2) + mine.count(1) == round(0.4 * len(mine))


def test_a_value_that_was_not_there_when_the_split_was_fitted_takes_the_shares(write: Write) -> None:
    split, _ = parts_of(quarters(write), SplitConfig(kind="stratified", by="carrier"))
    rows = RowIds("new.parquet", 0, np.arange(10_000), 0)
    parts = split.assign(pa.record_batch({"carrier": ["zz"] * 10_000}), rows)
    assert np.bincount(parts) / 10_000 == pytest.approx([0.7, 0.1, 0.2], abs=0.02)


def test_time_is_cut_between_values_latest_rows_are_tested(write: Write) -> None:
    split, found = parts_of(quarters(write), SplitConfig(kind="time", by="day"))
    days = table()["day"].to_pylist()
    by_part = [{days[row] for row, part in found.items() if part == number} for number in range(3)]
    assert max(by_part[0]) < min(by_part[1]) <= max(by_part[1]) < min(by_part[2])
    # Cut at the nearest day, of which there are 365.
    shares = np.bincount(list(found.values())) / ROWS
    assert shares == pytest.approx([0.7, 0.1, 0.2], abs=2 / 365)
    assert split.cuts is not None
    assert split.cuts.test_text.startswith(str(min(by_part[2])))


def test_nulls_have_a_defined_part() -> None:
    nulls = pa.record_batch({"k": pa.nulls(5, pa.string()), "t": pa.nulls(5, pa.float64())})
    parts = SplitPlan("grouped", "k", 0.1, 0.2, 0).assign(nulls)
    assert len(set(parts.tolist())) == 1
    mixed = pa.record_batch({"t": pa.array([None, float("nan"), 5.0])})
    assert SplitPlan("time", "t", 0.1, 0.2, 0, cuts=Cuts("number", 0, 0, "0", "0")).assign(mixed).tolist() == [0, 0, 2]


def test_parts_are_counted_and_filters_count(write: Write) -> None:
    dataset = quarters(write)
    source = make_source(
        dataset, DataConfig(source=dataset.root, filter="carrier == 'c3'", derive={"month": "month(day)"})
    )
    shards = plan_shards(dataset, ["id"], shards=3).shards
    split = fit_split(SplitConfig(kind="stratified", by="month", test=0.5, validation=0), source, shards)
    counts = count_parts(split, source, shards)
    assert sum(counts.values()) == table()["carrier"].to_pylist().count("c3") == sum(s.rows for s in split.strata)
    assert counts["validation"] == 0


def test_a_plan_goes_through_json(write: Write) -> None:
    for config in (SplitConfig(kind="stratified", by="carrier"), SplitConfig(kind="time", by="day"), SplitConfig()):
        split, _ = parts_of(quarters(write), config)
        assert codec.load(SplitPlan, codec.dump(split)) == split


def test_faults_are_named(write: Write) -> None:
    dataset = quarters(write)
    source, shards = make_source(dataset), plan_shards(dataset, ["id"], shards=2).shards
    with pytest.raises(NotFoundError, match=r"split.by: there is no column 'dai'. Did you mean day"):
        fit_split(SplitConfig(kind="grouped", by="dai"), source, shards)
    with pytest.raises(UsageError, match=r"split.by: column 'tail' has no order in time"):
        fit_split(SplitConfig(kind="time", by="tail"), source, shards)
    for bad in ({"kind": "grouped"}, {"validation": 0.5, "test": 0.5}, {"test": 1.5}, {"kind": "random"}):
        with pytest.raises(ValidationError):
            SplitConfig(**bad)  # type: ignore[arg-type]


# --- the hash --------------------------------------------------------------------------------------------------------


def test_hashes_are_pinned() -> None:
    assert hash_values(pa.array([0, 1, -1, 2**62])).tolist() == [
        16576549522093199164,
        17474652204475260503,
        1211616879285518609,
        14519186334296129062,
    ]
    assert hash_values(pa.array(["", "a", "carrier", "a longer text than eight"])).tolist() == [
        875746893545637296,
        16979015974227785661,
        5133181730490329999,
        13872122297785732640,
    ]
    assert hash_rows("month=1/part-0.parquet", 3, np.arange(2), 9).tolist() == [
        4203947151773261073,
        18089962777592361403,
    ]


SAME: list[tuple[Any, list[pa.DataType]]] = [
    (
        [0, 7, None, 100],
        [pa.int8(), pa.int32(), pa.int64(), pa.uint8(), pa.uint64(), pa.float32(), pa.float64(), pa.decimal128(9, 2)],
    ),
    ([-5, 2**40], [pa.int64(), pa.float64(), pa.decimal128(20, 0)]),
    (
        ["x", None, "", "longer than eight bytes"],
        [pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.dictionary(pa.int8(), pa.string())],
    ),
    (
        [dt.datetime(2013, 7, 4), None, dt.datetime(1931, 1, 1)],
        [pa.date32(), pa.date64(), *(pa.timestamp(u) for u in ("s", "ms", "us", "ns"))],
    ),
    ([dt.time(5, 3), None], [pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")]),
    ([dt.timedelta(seconds=90)], [pa.duration(u) for u in ("s", "ms", "us", "ns")]),
    ([0.5, -0.25, float("inf")], [pa.float16(), pa.float32(), pa.float64()]),
    ([decimal.Decimal("1.5")], [pa.decimal128(5, 1), pa.decimal128(9, 4), pa.decimal256(50, 3)]),
]


@pytest.mark.parametrize(("values", "types"), SAME)
def test_equal_values_of_any_width_have_one_hash(values: list[Any], types: list[pa.DataType]) -> None:
    hashes = []
    for type in types:
        if pa.types.is_dictionary(type):
            array = pa.array(values).dictionary_encode()
        elif pa.types.is_date32(type):
            array = pa.array(values, pa.timestamp("s")).cast(type)
        else:
            array = (
                pa.array(values, type)
                if not pa.types.is_date64(type)
                else pa.array(values, pa.timestamp("ms")).cast(type)
            )
        hashes.append(hash_values(array, 5).tolist())
    assert all(each == hashes[0] for each in hashes)
    assert len(set(hashes[0])) == len(values)


def test_zeros_and_nans_are_one_each() -> None:
    odd = np.array([0.0, -0.0, np.nan, -np.nan])
    hashes = hash_values(pa.array(odd)).tolist()
    assert hashes[0] == hashes[1]
    assert hashes[2] == hashes[3] != hashes[0]


@given(st.lists(st.one_of(st.none(), st.text(max_size=20), st.text(min_size=300, max_size=1500)), max_size=12))
@settings(max_examples=25)
def test_a_texts_hash_does_not_hang_on_its_neighbours(texts: list[str | None]) -> None:
    array = pa.array(texts, pa.string())
    whole = hash_values(array).tolist()
    assert whole == [hash_values(pa.array([text], pa.string()))[0] for text in texts]
    assert whole[3:] == hash_values(array[3:]).tolist()
    assert len(set(whole)) == len(set(texts))


# --- quantiles -------------------------------------------------------------------------------------------------------


@given(st.integers(0, 3000), st.integers(0, 10**6), st.integers(1, 5), st.floats(0, 1), st.floats(0, 1))
@settings(max_examples=100)
def test_thresholds_are_exact_and_do_not_hang_on_the_dealing(
    rows: int, seed: int, groups: int, a: float, b: float
) -> None:
    hashes = np.random.default_rng(seed).integers(0, 2**64, rows, dtype=np.uint64)
    shares = (min(a, b), max(a, b))
    total = HashRanks(shares)
    for some in np.array_split(hashes, groups):
        part = HashRanks(shares)
        part.update(some)
        total.merge(part)
    whole = HashRanks(shares)
    whole.update(hashes)
    assert total.thresholds() == whole.thresholds()
    below = [sum(int(each) < threshold for each in hashes.tolist()) for threshold in total.thresholds()]
    assert below == [round(share * rows) for share in shares]


def test_thresholds_take_little_memory() -> None:
    ranks = HashRanks((0.2, 0.3))
    generator = np.random.default_rng(0)
    for _ in range(20):
        ranks.update(generator.integers(0, 2**64, 100_000, dtype=np.uint64))
    assert ranks.rows == 2_000_000
    assert sum(map(len, ranks.windows)) < 32 * 2_000_000**0.5


@given(st.lists(st.integers(-(2**62), 2**62), max_size=60), st.integers(1, 4), st.integers(2, 20))
@settings(max_examples=100)
def test_cells_of_time_do_not_hang_on_the_dealing(values: list[int], groups: int, capacity: int) -> None:
    whole, total = ValueCounts(capacity), ValueCounts(capacity)
    whole.update(np.array(values, np.int64))
    for some in np.array_split(np.array(values, np.int64), groups):
        part = ValueCounts(capacity)
        part.update(some)
        total.merge(part)
    assert whole.shift == total.shift
    assert whole.cells.tolist() == total.cells.tolist()
    assert whole.counts.tolist() == total.counts.tolist()
    assert whole.counts.sum() == len(values)
    assert len(whole.cells) <= capacity
