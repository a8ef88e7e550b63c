"""Shards hold every row exactly once, in order, balanced, whoever reads them."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines import codec
from pipelines.data.balance import cut_evenly
from pipelines.data.shards import FileRef, ShardPlan, deal, default_shards, plan_shards
from pipelines.errors import NotFoundError, UsageError

SCHEMA = pa.schema([("a", pa.float32()), ("b", pa.string()), ("day", pa.date32())])


def manifest(files: list[list[tuple[int, int, int]]]) -> Any:
    """A manifest with, for each file, row groups of (rows, bytes of a, bytes of b); what shards need of a `Dataset`."""
    groups = [(f, g, *group) for f, held in enumerate(files) for g, group in enumerate(held)]
    first, seen = [], {}
    for f, _, rows, _, _ in groups:
        first.append(seen.get(f, 0))
        seen[f] = seen.get(f, 0) + rows
    count = len(files)
    days = pa.array([{"day": i} for i in range(count)], pa.struct([("day", pa.date32())]))
    return SimpleNamespace(
        root="/data",
        schema=SCHEMA,
        partition_columns=("day",),
        files=pa.table(
            {
                "path": pa.array([f"f{i}.parquet" for i in range(count)], pa.string()),
                "size": pa.array([1000] * count, pa.int64()),
                "etag": pa.array(["", "abc"] * count, pa.string())[:count],
                "mtime_ns": pa.array([17] * count, pa.int64()),
                "partition": days,
            }
        ),
        row_groups=pa.table(
            {
                "file": pa.array([g[0] for g in groups], pa.int32()),
                "row_group": pa.array([g[1] for g in groups], pa.int32()),
                "first_row": pa.array(first, pa.int64()),
                "rows": pa.array([g[2] for g in groups], pa.int64()),
                "column_bytes": pa.array([[g[3], g[4], 0] for g in groups], pa.list_(pa.int64(), 3)),
            }
        ),
    )


row_groups = st.tuples(st.integers(0, 300), st.integers(0, 10**6), st.integers(0, 10**5))
manifests = st.lists(st.lists(row_groups, max_size=5), max_size=5)


@given(manifests, st.integers(1, 40))
@settings(max_examples=100)
def test_every_row_is_in_exactly_one_shard_in_the_order_of_the_dataset(files: list[Any], shards: int) -> None:
    dataset = manifest(files)
    plan = plan_shards(dataset, ["a", "b"], shards=shards)
    expected = [
        (f"f{f}.parquet", g, row)
        for f, held in enumerate(files)
        for g, group in enumerate(held)
        for row in range(group[0])
    ]
    read = [
        (piece.file.path, piece.row_group, row)
        for shard in plan.shards
        for piece in shard.slices
        for row in range(piece.start, piece.stop)
    ]
    assert read == expected
    assert [shard.index for shard in plan.shards] == list(range(len(plan.shards)))
    assert plan.rows == len(expected)


@given(manifests, st.integers(1, 40))
@settings(max_examples=100)
def test_shards_differ_by_no_more_than_the_largest_piece(files: list[Any], shards: int) -> None:
    plan = plan_shards(manifest(files), ["a", "b"], shards=shards)
    weighs = any(sum(group[1:]) and group[0] for held in files for group in held)
    sizes = [shard.bytes for shard in plan.shards]
    assert not sizes or max(sizes) - min(sizes) <= plan.largest_piece
    if weighs:
        whole = sum(sum(group[1:]) for held in files for group in held if group[0])
        assert plan.bytes == whole
    for shard in plan.shards:
        assert shard.rows == sum(piece.rows for piece in shard.slices)
        assert shard.bytes == sum(piece.bytes for piece in shard.slices)


@given(st.lists(st.integers(0, 30), max_size=14), st.integers(1, 9))
@settings(max_examples=200)
def test_a_sequence_is_cut_such_that_parts_differ_by_no_more_than_one_element(weights: list[int], parts: int) -> None:
    cuts = cut_evenly(weights, parts)
    assert len(cuts) == parts + 1
    assert (cuts[0], cuts[-1]) == (0, len(weights))
    assert cuts == sorted(cuts)
    sums = [sum(weights[begin:end]) for begin, end in pairwise(cuts)]
    assert max(sums) - min(sums) <= max(weights, default=0)


def test_large_row_groups_are_cut_and_balanced_to_six_percent() -> None:
    plan = plan_shards(manifest([[(1_000_000, 10**9, 10**8)]]), ["a"], shards=64)
    assert len(plan.shards) == 64
    sizes = [shard.bytes for shard in plan.shards]
    assert max(sizes) <= 1.07 * min(sizes)


def test_small_row_groups_stay_whole() -> None:
    plan = plan_shards(manifest([[(100, 1000, 10)] * 4000]), ["a"], shards=16)
    assert all((piece.start, piece.stop) == (0, 100) for shard in plan.shards for piece in shard.slices)


def test_only_projected_columns_weigh() -> None:
    dataset = manifest([[(100, 10, 10**6)], [(100, 10, 10)]])
    assert [shard.rows for shard in plan_shards(dataset, ["a"], shards=2).shards] == [100, 100]
    assert plan_shards(dataset, ["b"], shards=2).shards[0].rows < 60
    assert [shard.rows for shard in plan_shards(dataset, ["day"], shards=2).shards] == [100, 100]


def test_the_first_row_of_a_row_group_and_the_identity_of_its_file_come_along() -> None:
    plan = plan_shards(manifest([[(10, 1, 1), (20, 1, 1)], [(5, 1, 1)]]), ["a"], shards=1)
    assert [piece.first_row for piece in plan.shards[0].slices] == [0, 10, 0]
    assert plan.shards[0].slices[0].file == FileRef("f0.parquet", 1000, "mtime:17", (("day", "1970-01-01"),))
    assert plan.shards[0].slices[2].file == FileRef("f1.parquet", 1000, "abc", (("day", "1970-01-02"),))


def test_a_plan_goes_through_json_and_its_digest_says_what_is_read() -> None:
    dataset = manifest([[(1000, 10**6, 10)] * 3])
    plan = plan_shards(dataset, ["a"], shards=8)
    assert codec.load(ShardPlan, codec.dump(plan)) == plan
    assert plan.digest == plan_shards(dataset, ["a"], shards=8).digest
    assert plan.digest != plan_shards(dataset, ["a"], shards=7).digest


@given(
    st.lists(st.tuples(st.integers(1, 500), st.integers(1, 10**5), st.just(0)), min_size=1, max_size=30),
    st.integers(1, 9),
)
@settings(max_examples=50)
def test_shards_are_dealt_whole_once_and_evenly(groups: list[Any], ranks: int) -> None:
    shards = plan_shards(manifest([groups]), ["a"], shards=16).shards
    dealt = deal(shards, ranks)
    assert [at for run in dealt for at in run] == list(range(len(shards)))
    sizes = [sum(shards[at].bytes for at in run) for run in dealt]
    assert max(sizes) - min(sizes) <= max(shard.bytes for shard in shards)


@pytest.mark.parametrize(
    ("size", "workers", "shards"),
    [
        (100, 2, 1),
        (1 << 20, 2, 64),
        (20 << 20, 2, 256),
        (20 << 20, 200, 1280),
        (560 << 20, 2, 256),
        (560 << 20, 8, 256),
        (560 << 20, 9, 512),
        (1 << 40, 4, 4096),
    ],
)
def test_the_default_number_is_the_same_for_small_clusters_and_bounded_for_small_data(
    size: int, workers: int, shards: int
) -> None:
    assert default_shards(manifest([[(1000, size, 0)]]), ["a"], max_workers=workers) == shards


def test_a_column_that_is_not_there_is_named_with_its_neighbours() -> None:
    with pytest.raises(NotFoundError, match=r"'days'.*Did you mean day"):
        plan_shards(manifest([[(1, 1, 1)]]), ["days"], shards=1)
    with pytest.raises(UsageError, match="at least one shard"):
        plan_shards(manifest([[(1, 1, 1)]]), ["a"], shards=0)
