"""A function is mapped over shards in their order, whatever happens to workers, and its failures name the data."""

from __future__ import annotations

import os
import sys
import time
import types
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import cloudpickle
import dask
import numpy as np
import pyarrow as pa
import pytest
from distributed import Client, LocalCluster

from pipelines.data.dataset import Dataset, open_dataset
from pipelines.data.mapping import MapProgress, group_shards, map_shards
from pipelines.data.reader import read_batches
from pipelines.data.shards import Shard, ShardPlan, plan_shards
from pipelines.data.source import Source, make_source
from pipelines.data.split import SplitConfig
from pipelines.data.splitting import count_parts, fit_split
from pipelines.data.writer import write_shards
from pipelines.errors import DataError, DeadlineError, MutiraoError, UserCodeError

Write = Callable[..., Dataset]
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers can't import tests


def total(shard: Shard, source: Source) -> int:
    return sum(sum(read.batch["id"].to_pylist()) for read in read_batches(source, [shard], ["id"], threads=0))


def fail_at_three(shard: Shard) -> int:
    if shard.index == 3:
        raise ZeroDivisionError("three")
    return shard.index


def refuse(shard: Shard) -> int:
    raise DataError("not this one", on=shard.paths[0])


def die_once(shard: Shard, folder: str) -> int:
    """Kill the worker at some shards, the first time."""
    mark = Path(folder, str(shard.index))
    if shard.index % 5 == 2 and not mark.exists():
        mark.touch()
        os._exit(1)
    return shard.index


def die(shard: Shard) -> int:
    if shard.index == 1:
        os._exit(1)
    return shard.index


def sleep_at(shard: Shard, index: int) -> int:
    if shard.index == index:
        time.sleep(60)
    return shard.index


def count_of(shard: Shard, large: bytes) -> int:
    return len(large) + shard.index


def note(shard: Shard, folder: str) -> int:
    Path(folder, str(shard.index)).touch()
    return shard.index


def doubled(shard: Shard, source: Source, folder: str) -> Iterator[pa.RecordBatch]:
    for read in read_batches(source, [shard], ["id"], threads=0):
        yield pa.record_batch({"twice": pa.array(read.batch["id"].to_numpy() * 2)})
    die_once(shard, folder)


@pytest.fixture
def data(write: Write) -> tuple[Source, ShardPlan]:
    held = {f"part-{i}.parquet": pa.table({"id": np.arange(1000 * i, 1000 * (i + 1))}) for i in range(4)}
    dataset = write(held, row_group_size=300)
    return make_source(dataset), plan_shards(dataset, ["id"], shards=12)


def test_inline_results_come_in_order_with_progress(data: tuple[Source, ShardPlan]) -> None:
    source, plan = data
    seen: list[MapProgress] = []
    results = list(map_shards(None, total, plan.shards, source, on_done=seen.append))
    assert [at for at, _ in results] == list(range(len(plan.shards)))
    assert sum(value for _, value in results) == sum(range(4000))
    assert (seen[-1].shards, seen[-1].rows, seen[-1].bytes) == (len(plan.shards), 4000, plan.bytes)
    assert (seen[-1].shards_total, seen[-1].rows_total, seen[-1].bytes_total) == (len(plan.shards), 4000, plan.bytes)


def test_what_the_users_function_raises_names_the_shards_files(data: tuple[Source, ShardPlan]) -> None:
    _, plan = data
    with pytest.raises(UserCodeError) as error:
        list(map_shards(None, fail_at_three, plan.shards))
    text = str(error.value)
    assert f"{plan.shards[3].paths[0]}" in text
    assert "fail_at_three failed on shard 3" in text
    assert "ZeroDivisionError: three" in text
    assert "test_reader_mapping.py:" in text


def test_tasks_hold_neighbours_and_do_not_part_row_groups_if_it_can_be_helped(write: Write) -> None:
    dataset = write({f"p{i}.parquet": pa.table({"id": np.arange(4000)}) for i in range(3)}, row_group_size=1000)
    shards = plan_shards(dataset, ["id"], shards=48).shards
    target = sum(shard.bytes for shard in shards) // 13
    groups = group_shards(shards, target)
    assert [at for group in groups for at in group] == list(range(len(shards)))
    parted = sum(
        shards[one[-1]].slices[-1].row_group == shards[other[0]].slices[0].row_group
        and shards[one[-1]].paths[-1] == shards[other[0]].paths[0]
        for one, other in pairwise(groups)
    )
    assert parted <= 2
    assert len(groups) >= 8


# --- on a cluster ----------------------------------------------------------------------------------------------------


@contextmanager
def two_workers() -> Iterator[Client]:
    with (
        dask.config.set({"distributed.deploy.lost-worker-timeout": "120s"}),
        LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with two_workers() as client:
        yield client


@pytest.fixture
def mortal() -> Iterator[Client]:
    """A cluster whose workers will be killed."""
    with two_workers() as client:
        yield client


@pytest.mark.slow
def test_a_cluster_gives_the_same_in_the_same_order(client: Client, data: tuple[Source, ShardPlan]) -> None:
    source, plan = data
    seen: list[MapProgress] = []
    found = list(map_shards(client, total, plan.shards, source, on_done=seen.append))
    assert found == list(map_shards(None, total, plan.shards, source))
    assert seen[-1].rows == 4000


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["stratified", "time"])
def test_a_split_fitted_on_a_cluster_is_the_same(client: Client, data: tuple[Source, ShardPlan], kind: str) -> None:
    source, plan = data
    derived = replace(source, derive=(("hundred", "floor(id / 100)"),))
    config = SplitConfig.model_validate({"kind": kind, "by": "hundred"})
    split = fit_split(config, derived, plan.shards, client)
    assert split == fit_split(config, derived, plan.shards)
    counts = count_parts(split, derived, plan.shards, client)
    assert counts == count_parts(split, derived, plan.shards) == {"train": 2800, "validation": 400, "test": 800}


@pytest.mark.slow
def test_large_arguments_are_put_on_the_workers_once_and_again_when_they_are_lost(
    mortal: Client, data: tuple[Source, ShardPlan]
) -> None:
    _, plan = data
    results = map_shards(mortal, count_of, plan.shards, os.urandom(3 << 20), deadline_s=60)
    with closing(results):
        assert next(results) == (0, 3 << 20)
        mortal.restart()
        assert [value for _, value in results] == [(3 << 20) + at for at in range(1, len(plan.shards))]


@pytest.mark.slow
def test_lost_workers_are_made_up_for(mortal: Client, data: tuple[Source, ShardPlan], tmp_path: Path) -> None:
    _, plan = data
    found = list(map_shards(mortal, die_once, plan.shards, str(tmp_path), deadline_s=60))
    assert found == [(at, at) for at in range(len(plan.shards))]


@pytest.mark.slow
def test_rows_written_on_workers_that_die_are_written_once(
    mortal: Client, data: tuple[Source, ShardPlan], tmp_path: Path
) -> None:
    source, plan = data
    marks = tmp_path / "marks"
    marks.mkdir()
    url, schema = str(tmp_path / "out"), pa.schema([("twice", pa.int64())])
    write_shards(mortal, doubled, plan.shards, source, str(marks), url=url, schema=schema)
    dataset = open_dataset({"versioned": url})
    reads = read_batches(make_source(dataset), plan_shards(dataset, ["twice"], shards=3).shards, ["twice"])
    assert [i for read in reads for i in read.batch["twice"].to_pylist()] == [2 * i for i in range(4000)]


@pytest.mark.slow
def test_a_task_that_kills_every_worker_ends_with_its_files_and_the_remedy(
    mortal: Client, data: tuple[Source, ShardPlan]
) -> None:
    _, plan = data
    with pytest.raises(MutiraoError, match=r"workers were lost 1 times on shard.*ran out of memory"):
        list(map_shards(mortal, die, plan.shards, retries=0, deadline_s=60))


@pytest.mark.slow
def test_errors_of_workers_arrive_as_they_are(client: Client, data: tuple[Source, ShardPlan]) -> None:
    _, plan = data
    with pytest.raises(DataError, match=r"part-0.parquet: not this one"):
        list(map_shards(client, refuse, plan.shards))
    with pytest.raises(UserCodeError, match="fail_at_three failed on shard 3"):
        list(map_shards(client, fail_at_three, plan.shards))


@pytest.mark.slow
def test_a_function_that_workers_can_not_import_is_told(client: Client, data: tuple[Source, ShardPlan]) -> None:
    _, plan = data
    here_only = types.ModuleType("here_only")
    exec("def count(shard): return shard.rows", here_only.__dict__)
    sys.modules["here_only"] = here_only
    try:
        with pytest.raises(UserCodeError, match=r"count can't be loaded on a worker.*No module named 'here_only'"):
            list(map_shards(client, here_only.count, plan.shards))
    finally:
        del sys.modules["here_only"]
    assert len(client.nthreads()) == 2


@pytest.mark.slow
def test_a_deadline_names_the_first_missing_shard_and_where_it_is(
    mortal: Client, data: tuple[Source, ShardPlan]
) -> None:
    _, plan = data
    with pytest.raises(DeadlineError) as error:
        list(map_shards(mortal, sleep_at, plan.shards, 0, deadline_s=3))
    text = str(error.value)
    assert "within 3 s; the first one missing is shard 0" in text
    assert "it is with worker tcp://" in text


@pytest.mark.slow
def test_only_a_window_of_tasks_is_ahead_and_leaving_cancels_them(
    client: Client, data: tuple[Source, ShardPlan], tmp_path: Path
) -> None:
    _, plan = data
    with closing(map_shards(client, note, plan.shards, str(tmp_path))) as results:
        next(results)
        time.sleep(1)
        # Two tasks per thread beyond the one that was taken, each of one shard.
        assert len(list(tmp_path.iterdir())) <= 5 * max(
            len(group) for group in group_shards(plan.shards, plan.bytes // 16)
        )
    time.sleep(0.5)
    assert not client.processing() or not any(client.processing().values())


@pytest.mark.slow
def test_a_cluster_that_is_gone_is_told(data: tuple[Source, ShardPlan]) -> None:
    _, plan = data
    with LocalCluster(n_workers=1, threads_per_worker=1, processes=True, dashboard_address=":0") as cluster:
        client = Client(cluster)
        with closing(map_shards(client, sleep_at, plan.shards, 11, deadline_s=30)) as results:
            next(results)
            cluster.close()
            with pytest.raises(MutiraoError):
                list(results)
        client.close()
