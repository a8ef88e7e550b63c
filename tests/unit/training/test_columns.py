"""Features are cut into blocks that are all there once, and a block computes what the whole plan computes there."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import issparse

from pipelines.errors import SpecError
from pipelines.features import FeatureConfig
from pipelines.features.plan import FeaturePlan
from pipelines.features.steps import Category, Hashed, Input, Number, Step
from pipelines.features.stored import Stored
from pipelines.training.columns import WEIGHT_BYTES, ColumnBlock, cut_columns

STEPS = st.lists(st.sampled_from(["number", "category", "hash"]), min_size=1, max_size=12)


def plan_of(kinds: list[str], sparse: bool) -> FeaturePlan:
    """A plan of steps with one, five and thirty features."""
    types: dict[str, pa.DataType] = {"number": pa.float64(), "category": pa.string(), "hash": pa.string()}
    steps: list[Step] = []
    for at, kind in enumerate(kinds):
        read = Input(f"c{at}")
        match kind:
            case "number":
                steps.append(Number(read, 1.0, 2.0, 0.0))
            case "category":
                steps.append(Category(read, "letters", "one_hot", other=True, missing=True))
            case _:
                steps.append(Hashed(read, 30, "one_hot"))
    schema = pa.schema([(f"c{at}", types[kind]) for at, kind in enumerate(kinds)])
    return FeaturePlan(Stored(schema, tuple(steps), {"letters": pa.array(["a", "b", "c"])}, sparse=sparse))


def batch_of(kinds: list[str]) -> pa.RecordBatch:
    rng = np.random.default_rng(len(kinds))
    words = pa.array(["a", "b", "c", "d", None, "e"])
    columns = {
        f"c{at}": pa.array(rng.normal(size=50)) if kind == "number" else words.take(pa.array(rng.integers(0, 6, 50)))
        for at, kind in enumerate(kinds)
    }
    return pa.RecordBatch.from_pydict(columns)


@given(STEPS, st.integers(1, 20), st.booleans())
def test_blocks_have_every_feature_once_and_compute_it_as_the_whole_plan_does(
    kinds: list[str], blocks: int, sparse: bool
) -> None:
    plan = plan_of(kinds, sparse)
    blocks = min(blocks, len(plan.names))
    cut = cut_columns(plan, blocks, rows=1000, outputs=1)
    assert len(cut.blocks) == len(cut.sizes) == blocks
    ends = list(itertools.accumulate((block.width for block in cut.blocks), initial=0))
    assert [block.first for block in cut.blocks] == ends[:-1]
    assert ends[-1] == len(plan.names)
    assert all(block.width for block in cut.blocks)
    batch = batch_of(kinds)
    expected = plan.transform(batch)
    for block in cut.blocks:
        again = ColumnBlock.from_plain(json.loads(json.dumps(block.to_plain())))
        # Only what is needed is asked for: no more than its steps' columns.
        assert set(again.plan.inputs) <= set(batch.schema.names)
        assert len(again.plan.inputs) <= block.width
        found = again.plan.transform(batch.select(list(again.plan.inputs)))[:, block.skip : block.skip + block.width]
        there = expected[:, block.first : block.first + block.width]
        if issparse(there):
            found, there = found.toarray(), there.toarray()
        np.testing.assert_array_equal(found, there)
        assert again.names == plan.names[block.first : block.first + block.width]


@given(STEPS, st.integers(1, 20), st.booleans(), st.integers(1, 10**7))
def test_no_block_is_larger_than_the_mean_and_its_largest_feature(
    kinds: list[str], blocks: int, sparse: bool, rows: int
) -> None:
    plan = plan_of(kinds, sparse)
    blocks = min(blocks, len(plan.names))
    cut = cut_columns(plan, blocks, rows=rows, outputs=1)
    largest = (8 if sparse else 4) * rows + WEIGHT_BYTES
    # Where many features share few bytes, leaving each block one may move a boundary by as many features.
    assert max(cut.sizes) <= sum(cut.sizes) / blocks + largest + blocks * WEIGHT_BYTES
    assert cut.page_rows % 64 == 0
    assert cut.page_rows >= 64


def test_features_of_one_step_of_many_are_shared_out(maker: Any) -> None:
    table = pa.table({"word": [f"w{row % 97}" for row in range(500)], "label": [row % 2 for row in range(500)]})
    data = maker.prepare(table, features=[FeatureConfig(columns=["word"], encode="hash", buckets=100_000)])
    cut = cut_columns(data.features, 4, rows=500, outputs=1)
    assert [block.width for block in cut.blocks] == [25_000] * 4
    assert [block.skip for block in cut.blocks] == [0, 25_000, 50_000, 75_000]


def test_more_blocks_than_features_are_a_fault() -> None:
    with pytest.raises(SpecError, match=r"train\.strategy\.blocks: there are 2 features"):
        cut_columns(plan_of(["number", "number"], sparse=False), 3, rows=10, outputs=1)
