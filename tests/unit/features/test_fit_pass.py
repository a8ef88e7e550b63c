"""Does the fit see the training rows only, and the same plan whatever the shards, batches and workers?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from distributed import Client, LocalCluster
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.codec import canonical, from_plain, to_plain
from pipelines.data.split import PARTS, SplitPlan
from pipelines.features import FeatureConfig, Fitted, LabelConfig, Target, fit_features
from pipelines.features.joining import join_shards

SPLIT = SplitPlan("hash", None, 0.2, 0.3, 11)
DROP = LabelConfig(column="y", on_null="drop")

FEATURES = [
    {"columns": ["x", "n"], "scale": "standard", "impute": "mean", "missing_indicator": True},
    {"columns": ["x", "n"], "scale": "robust", "impute": "median"},
    {"columns": ["x"], "bins": 4},
    {"columns": ["w", "n"], "encode": "one_hot", "max_categories": 4},
    {"columns": ["w"], "encode": "native", "impute": "most_frequent"},
    {"columns": ["x"], "scale": "minmax"},
    {"columns": ["n"], "transform": "sklearn.preprocessing.SplineTransformer", "sample_rows": 60},
]


def table_of(rows: int, seed: int) -> pa.Table:
    rng = np.random.default_rng(seed)
    return pa.table(
        {
            "x": pa.array(rng.normal(1e3, 5, rows), mask=rng.random(rows) < 0.1),
            "n": pa.array(rng.integers(0, 30, rows)),
            "w": pa.array(rng.choice(list("abcdefg"), rows), mask=rng.random(rows) < 0.1),
            "y": pa.array(rng.random(rows) < 0.4, mask=rng.random(rows) < 0.05),
        }
    )


def fitted(made: Any, shards: int, features: list[dict[str, Any]] = FEATURES, **arguments: Any) -> Fitted:
    configs = [FeatureConfig.model_validate(feature) for feature in features]
    return fit_features(configs, DROP, made.source, made.shards(shards), SPLIT, **arguments)


@pytest.fixture(scope="module")
def made(make: Callable[..., Any]) -> Any:
    return make(table_of(900, 0))


@pytest.fixture(scope="module")
def one(made: Any) -> Fitted:
    """Fitted on one shard."""
    return fitted(made, 1)


@settings(max_examples=4)
@given(shards=st.integers(2, 40))
def test_any_cutting_into_shards_gives_the_same_plan(made: Any, one: Fitted, shards: int) -> None:
    other = fitted(made, shards)
    assert other.plan.digest == one.plan.digest
    assert (other.target, other.rows, other.dropped) == (one.target, one.rows, one.dropped)


def test_other_files_and_row_groups_give_the_same_statistics(make: Callable[..., Any], made: Any) -> None:
    key = SplitPlan("hash", "n", 0.2, 0.3, 11)  # by a key, so that rows keep their part
    configs = [FeatureConfig.model_validate(feature) for feature in FEATURES[:-1]]
    other = make(made.table, files=3, row_group_rows=17)
    plans = [fit_features(configs, DROP, m.source, m.shards(5), key).plan for m in (made, other)]
    assert plans[0].digest == plans[1].digest


def test_dictionary_columns_give_the_plan_of_their_values(make: Callable[..., Any], made: Any) -> None:
    coded = make(made.table.set_column(2, "w", made.table["w"].dictionary_encode()))
    assert coded.source.arrow_schema.field("w").type == pa.dictionary(pa.int32(), pa.string())
    one, other = fitted(made, 3), fitted(coded, 3)
    assert other.plan.steps == one.plan.steps
    assert other.plan.files()["categories.arrow"] == one.plan.files()["categories.arrow"]
    assert other.checks["test"]["columns"]["w"]["distinct"] == 7
    np.testing.assert_array_equal(other.plan.transform(made.table), one.plan.transform(made.table))


@settings(max_examples=20)
@given(shards=st.integers(1, 300), size=st.integers(1, 1 << 30))
def test_joined_shards_read_the_same_rows_in_the_same_order(made: Any, shards: int, size: int) -> None:
    given_ = [replace(shard, bytes=size) for shard in made.shards(shards)]
    joined = join_shards(given_)
    assert min(shards, 64) <= len(joined) <= max(64, shards)
    assert (sum(shard.rows for shard in joined), sum(shard.bytes for shard in joined)) == (900, shards * size)
    assert _rows(joined) == _rows(given_)
    assert sum(len(shard.slices) for shard in joined) <= sum(len(shard.slices) for shard in given_)


def _rows(shards: list[Any]) -> list[tuple[str, int, int]]:
    return [
        (piece.file.path, piece.row_group, row)
        for shard in shards
        for piece in shard.slices
        for row in range(piece.start, piece.stop)
    ]


def test_rows_are_counted_by_part(made: Any) -> None:
    found, parts = fitted(made, 4), made.parts(SPLIT)
    labelled = made.table["y"].is_valid().to_numpy()
    assert found.rows == {part: int((labelled & (parts == number)).sum()) for number, part in enumerate(PARTS)}
    assert found.dropped == {"label_null": int((~labelled).sum())}
    assert sum(found.target.counts) == found.rows["train"]


def test_only_labelled_training_rows_influence_the_plan(make: Callable[..., Any], made: Any) -> None:
    parts, table = made.parts(SPLIT), made.table
    unseen = pa.array((parts != 0) | ~table["y"].is_valid().to_numpy())
    changed = table
    for name, wild in (("x", 1e30), ("n", 10**6), ("w", "a category of its own")):
        values = pa.compute.if_else(unseen, pa.scalar(wild, table.schema.field(name).type), table[name])
        changed = changed.set_column(changed.schema.get_field_index(name), name, values)
    other = make(changed)
    assert (other.parts(SPLIT) == parts).all()
    assert fitted(other, 3).plan.digest == fitted(made, 3).plan.digest


def test_training_rows_do_influence_the_plan(make: Callable[..., Any], made: Any) -> None:
    parts, table = made.parts(SPLIT), made.table
    row = int(np.flatnonzero((parts == 0) & table["y"].is_valid().to_numpy() & table["x"].is_valid().to_numpy())[0])
    values = table["x"].to_pylist()
    values[row] += 1.0
    other = make(table.set_column(0, "x", pa.array(values)))
    assert fitted(other, 3).plan.digest != fitted(made, 3).plan.digest


def test_checks_describe_every_part(made: Any) -> None:
    found, parts = fitted(made, 3).checks, made.parts(SPLIT)
    assert set(found) == set(PARTS)
    for number, part in enumerate(PARTS):
        rows = made.table.filter(pa.array(parts == number))
        assert found[part]["rows"] == rows.num_rows
        assert found[part]["columns"]["x"]["nulls"] == rows["x"].null_count
        assert found[part]["columns"]["y"]["nulls"] == rows["y"].null_count
        assert found[part]["columns"]["w"]["distinct"] == 7
    canonical(found)  # is plain JSON


def test_the_target_goes_through_json(made: Any) -> None:
    target = fitted(made, 2).target
    assert from_plain(Target, to_plain(target)) == target


def test_progress_is_told_for_every_shard(made: Any) -> None:
    seen: list[Any] = []
    fitted(made, 6, on_done=seen.append)
    assert [progress.shards for progress in seen] == [1, 2, 3, 4, 5, 6]
    assert seen[-1].rows == 900


@pytest.fixture(scope="module")
def clusters() -> Iterator[Callable[[int], Client]]:
    opened: list[Any] = []

    def start(workers: int) -> Client:
        cluster = LocalCluster(n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=None)
        opened.extend([client := Client(cluster), cluster])
        return client

    yield start
    for each in opened:
        each.close()


@pytest.mark.slow
def test_any_number_of_workers_gives_the_same_bits(made: Any, clusters: Callable[[int], Client]) -> None:
    features = [
        *FEATURES,
        {"columns": ["n"], "transform": "sklearn.preprocessing.StandardScaler", "fit": "incremental"},
    ]
    here = fitted(made, 12, features)
    for workers in (1, 3):
        there = fitted(made, 12, features, client=clusters(workers))
        assert there.plan.files() == here.plan.files()
        assert (there.target, there.rows, there.checks) == (here.target, here.rows, here.checks)
