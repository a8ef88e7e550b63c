"""A fit whose ranks are killed, stopped or slowed, in any phase, ends in the same bits as the undisturbed one."""

from __future__ import annotations

import io
import os
import random
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import Client, LocalCluster

from pipelines.data.config import DataConfig
from pipelines.data.dataset import open_dataset
from pipelines.data.shards import plan_shards
from pipelines.data.source import make_source
from pipelines.data.split import SplitConfig
from pipelines.data.splitting import fit_split
from pipelines.errors import InterruptedRunError, TrainingError, UsageError
from pipelines.features import FeatureConfig, LabelConfig, fit_features
from pipelines.training import Deadlines, Progress, TrainConfig, TrainingData
from pipelines.training.fit import Fit, fit
from pipelines.training.gang import Strikes, Struck
from pipelines.training.gang.chaos import Fault
from pipelines.training.happenings import Happening
from tests.faults.injecting import PHASES, Injector

pytestmark = pytest.mark.slow

# Small batches and many epochs: long enough to be disturbed in the middle.
BATCHES = {"C": 1.0, "learning_rate": 0.05, "batch_rows": 100, "epochs": 6}
SOLVERS: dict[str, dict[str, Any]] = {
    "momentum": {**BATCHES, "solver": "momentum"},
    "sgd": {**BATCHES, "solver": "sgd"},
    "adam": {**BATCHES, "solver": "adam"},
    "newton": {"C": 1.0, "solver": "newton", "tol": 1e-10},
    "lbfgs": {"C": 1.0, "solver": "lbfgs", "tol": 1e-10},
    "owlqn": {"l1": 1e-3, "solver": "owlqn", "tol": 1e-9},
}
LANE_ROWS = [2 * rows for rows in (333, 333, 334, 333, 333, 334)]
CONFIG = TrainConfig(
    estimator="logistic_regression",
    checkpoint={"every": "20 steps", "keep": 3},
    lanes=6,
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> TrainingData:
    folder = tmp_path_factory.mktemp("fit") / "data"
    folder.mkdir()
    rng = np.random.default_rng(0)
    X = rng.normal(size=(4000, 5))
    label = (rng.random(4000) < 1 / (1 + np.exp(-X @ [1.0, -2.0, 0.5, 0.0, 1.5]))).astype(int)
    columns = {f"x{j}": X[:, j] for j in range(5)}
    pq.write_table(pa.table({**columns, "label": label}), folder / "a.parquet", row_group_size=500)
    dataset = open_dataset(str(folder))
    source = make_source(dataset, DataConfig(source=str(folder)))
    plan = plan_shards(dataset, list(columns), shards=12)
    split = fit_split(SplitConfig(validation=0, test=0), source, plan.shards, None)
    fitted = fit_features(
        [FeatureConfig(columns=list(columns))], LabelConfig(column="label"), source, plan.shards, split
    )
    return TrainingData(source, plan, split, fitted.plan, fitted.target, None, fitted.rows)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        yield client


def train(
    data: TrainingData, solver: str, strategy: Any = "synchronous", stragglers: str = "keep", **options: Any
) -> Fit:
    words = {"params": SOLVERS[solver], "strategy": strategy, "stragglers": stragglers}
    config = TrainConfig.model_validate({**CONFIG.model_dump(), **words})
    return fit(config, data, **{"client": None, "ranks": 2, **options})


@pytest.fixture(scope="module")
def calm(data: TrainingData) -> dict[str, Fit]:
    return {solver: train(data, solver, ranks=1) for solver in SOLVERS}


@pytest.fixture(scope="module")
def undisturbed(calm: dict[str, Fit]) -> dict[str, np.ndarray]:
    return {solver: coefficients(found) for solver, found in calm.items()}


def coefficients(found: Fit) -> np.ndarray:
    return np.load(io.BytesIO(found.files["coef.npy"]))


PLACES = [
    ("start", 1), ("load", 1), ("load", 2), ("step", 1), ("step", 30), ("collective", 1), ("collective", 40),
    ("close", 1),
]  # fmt: skip


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(("phase", "nth"), PLACES)
def test_a_rank_that_is_killed_in_any_phase_costs_neither_the_fit_nor_a_bit(
    data: TrainingData, undisturbed: dict[str, np.ndarray], injector: Injector, phase: str, nth: int, rank: int
) -> None:
    injector.plan([(phase, nth, rank, "kill")])
    found = train(data, "momentum")
    assert injector.struck == 1
    assert coefficients(found).tobytes() == undisturbed["momentum"].tobytes()
    assert [loss["rank"] for loss in found.summary["gang"]["losses"]] == [rank]


@pytest.mark.parametrize(("phase", "nth"), [("share", 1), ("checkpoint", 1), ("checkpoint", 2), ("checkpoint", 7)])
def test_a_leader_that_is_killed_while_it_saves_costs_nothing_either(
    data: TrainingData,
    undisturbed: dict[str, np.ndarray],
    injector: Injector,
    tmp_path: Path,
    phase: str,
    nth: int,
) -> None:
    faults = [(phase, nth, 0, "kill")]
    if phase == "share":  # which happens every half second: a slow training has one
        faults.insert(0, ("step", 1, 1, "slow"))
    injector.plan(faults)
    found = train(data, "momentum", checkpoint_url=str(tmp_path / "checkpoints"))
    assert injector.struck == len(faults)
    assert coefficients(found).tobytes() == undisturbed["momentum"].tobytes()


def test_a_leader_that_is_lost_costs_no_more_than_what_came_after_the_last_shared_state(
    data: TrainingData, undisturbed: dict[str, np.ndarray], injector: Injector
) -> None:
    injector.plan([("step", 1, 1, "slow"), ("step", 150, 0, "kill")])
    found = train(data, "momentum")
    history = found.summary["gang"]
    [resumption] = history["resumptions"]
    assert 0 < resumption["lost_steps"] < 149
    assert resumption["step"] + resumption["lost_steps"] == 149
    assert history["lost_steps"] == resumption["lost_steps"]
    assert coefficients(found).tobytes() == undisturbed["momentum"].tobytes()


def test_a_follower_that_is_lost_costs_no_step(
    data: TrainingData, undisturbed: dict[str, np.ndarray], injector: Injector
) -> None:
    injector.plan([("step", 100, 1, "kill")])
    found = train(data, "momentum")
    assert [each["lost_steps"] for each in found.summary["gang"]["resumptions"]] == [0]
    assert coefficients(found).tobytes() == undisturbed["momentum"].tobytes()


@pytest.mark.parametrize("solver", ["newton", "lbfgs", "owlqn", "sgd", "adam"])
def test_every_solver_goes_on_to_the_same_bits_all_the_way(
    data: TrainingData, calm: dict[str, Fit], injector: Injector, solver: str
) -> None:
    injector.plan([("step", 3, 0, "kill"), ("step", 5, 1, "kill"), ("collective", 4, 2, "kill")])
    found = train(data, solver, ranks=3)
    assert injector.struck >= 2
    assert coefficients(found).tobytes() == coefficients(calm[solver]).tobytes()
    assert found.summary["certificate"] == calm[solver].summary["certificate"]
    assert found.summary["certificate"]["digests"]


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("what", ["kill", "stop"])
def test_an_asynchronous_training_loses_no_part_and_does_none_twice(
    data: TrainingData, injector: Injector, victim: int, what: str
) -> None:
    injector.plan([("part", 1, 1 - victim, "slow"), ("part", 40, victim, what)])
    strategy = {"name": "asynchronous", "staleness": 4}
    found = train(data, "momentum", strategy=strategy, deadlines=Deadlines(silence_s=2.0))
    assert injector.struck == 2
    assert len(found.summary["gang"]["losses"]) == 1
    parts = sum(max(1, round(rows / 100)) for rows in LANE_ROWS)
    assert found.summary["updates"] == found.summary["n_iter"] == 6 * parts
    plain = train(data, "momentum", strategy=strategy)
    # A cosine schedule ends near the minimum, whatever the order of mini-batches was.
    assert found.summary["loss"] == pytest.approx(plain.summary["loss"], rel=0.01)


def test_a_slow_ranks_shards_are_dealt_to_others_if_asked_for(
    data: TrainingData, undisturbed: dict[str, np.ndarray], injector: Injector
) -> None:
    injector.plan([("step", 1, 1, "slow")])
    found = train(data, "momentum", stragglers="deal", ranks=2)
    history = found.summary["gang"]
    assert history["formations"] == 2
    assert history["losses"] == []
    assert history["stragglers"]["1"] > 2
    assert coefficients(found).tobytes() == undisturbed["momentum"].tobytes()


@pytest.mark.parametrize("strategy", ["synchronous", {"name": "asynchronous", "staleness": 4}])
def test_a_training_that_diverges_ends_with_that_and_is_not_tried_again(
    data: TrainingData, injector: Injector, strategy: Any
) -> None:
    injector.plan([("part", 1, 0, "slow")])  # so that it is the other rank's update that goes too far
    params = {**BATCHES, "solver": "sgd", "learning_rate": 1e9, "schedule": "constant"}
    config = TrainConfig.model_validate({**CONFIG.model_dump(), "params": params, "strategy": strategy})
    told: list[Happening] = []
    with pytest.raises(TrainingError, match="diverged"):
        fit(config, data, client=None, ranks=2, happened=told.append)
    assert [each.what for each in told if each.what in ("formation", "loss")] == ["formation"]


@pytest.mark.parametrize("victim", [0, 1])
def test_without_staleness_a_loss_costs_no_bit(
    data: TrainingData, undisturbed: dict[str, np.ndarray], injector: Injector, victim: int
) -> None:
    injector.plan([("part", 100, victim, "kill")])
    found = train(data, "momentum", strategy={"name": "asynchronous", "staleness": 0})
    assert injector.struck == 1
    # Rank 0 has left at once, and was not given up for staying.
    assert [loss["rank"] for loss in found.summary["gang"]["losses"]] == [victim]
    assert coefficients(found).tobytes() == undisturbed["momentum"].tobytes()


def history_of(seed: int) -> tuple[str, int, list[tuple[str, int, int, str]]]:
    """Draw a solver, a number of ranks, and what happens to them."""
    rng = random.Random(seed)
    ranks = rng.randint(1, 3)
    faults = []
    for _ in range(rng.randint(1, 4)):
        phase = rng.choice(PHASES)
        nth = 1 if phase in ("start", "close") else rng.choice([1, 2, 3, 5, 8, 13, 40, 100])
        faults.append((phase, nth, rng.randrange(ranks), rng.choice(["kill", "kill", "kill", "stop", "slow"])))
    return rng.choice(sorted(SOLVERS)), ranks, faults


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[] if seed < 8 else [pytest.mark.soak]) for seed in range(108)]
)
def test_any_history_of_faults_ends_in_the_same_bits(
    data: TrainingData, undisturbed: dict[str, np.ndarray], injector: Injector, tmp_path: Path, seed: int
) -> None:
    solver, ranks, faults = history_of(seed)
    injector.plan(faults)
    url = str(tmp_path / "checkpoints") if seed % 2 else None
    found = train(data, solver, ranks=ranks, checkpoint_url=url, deadlines=Deadlines(silence_s=2.0))
    assert coefficients(found).tobytes() == undisturbed[solver].tobytes(), (solver, ranks, faults)


def test_a_fit_goes_on_after_a_rank_of_a_worker_was_killed(
    client: Client, data: TrainingData, undisturbed: dict[str, np.ndarray], injector: Injector
) -> None:
    injector.plan([("step", 50, 1, "kill"), ("step", 80, 0, "kill")])
    told = {name: os.environ[name] for name in ("MUTIRAO_CODE_PATH", "MUTIRAO_TEST_FAULTS")}
    # os.environ's own method would travel with a copy of this process's variables, and set those
    client.run(lambda values: os.environ.update(values), told)
    found = train(data, "momentum", client=client)
    assert injector.struck == 2
    assert coefficients(found).tobytes() == undisturbed["momentum"].tobytes()


def test_a_fit_goes_on_after_it_was_stopped(
    data: TrainingData, undisturbed: dict[str, np.ndarray], tmp_path: Path
) -> None:
    url, stop = str(tmp_path / "checkpoints"), threading.Event()

    def report(progress: Progress) -> None:
        if progress.unit == "step" and progress.done > 30:
            stop.set()

    with pytest.raises(InterruptedRunError):
        train(data, "momentum", checkpoint_url=url, report=report, stop=stop)
    again = train(data, "momentum", checkpoint_url=url, ranks=1)
    assert again.summary["resumed_from"] > 30
    assert coefficients(again).tobytes() == undisturbed["momentum"].tobytes()


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_gang_on_a_cluster_gives_what_children_of_this_process_give(
    client: Client, data: TrainingData, undisturbed: dict[str, np.ndarray], ranks: int
) -> None:
    found = train(data, "momentum", client=client, ranks=ranks)
    assert coefficients(found).tobytes() == undisturbed["momentum"].tobytes()


@pytest.mark.parametrize("count", [2, 5])
def test_trainings_on_one_cluster_of_four_workers_all_finish(
    data: TrainingData, undisturbed: dict[str, np.ndarray], count: int
) -> None:
    found: dict[int, Any] = {}

    def go(number: int, client: Client) -> None:
        try:
            found[number] = coefficients(train(data, "momentum", client=client, ranks=2)).tobytes()
        except Exception as error:  # noqa: BLE001 - a thread's boundary: the test compares it
            found[number] = error

    with (
        LocalCluster(n_workers=4, threads_per_worker=1, processes=True, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        threads = [threading.Thread(target=go, args=(number, client)) for number in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(200)
    assert found == dict.fromkeys(range(count), undisturbed["momentum"].tobytes())


def told_of(data: TrainingData, tmp_path: Path, break_it: Callable[[Path], None]) -> tuple[Fit, list[str]]:
    """Train with checkpoints at a place that something is done to before; returns what was told, too."""
    folder, told = tmp_path / "checkpoints", list[str]()
    break_it(folder)

    def happened(happening: Happening) -> None:
        if happening.what == "notice":
            told.append(happening.text)

    return train(data, "momentum", checkpoint_url=str(folder), happened=happened), told


def test_a_store_that_can_not_be_written_is_told_and_ends_nothing(
    data: TrainingData, calm: dict[str, Fit], tmp_path: Path
) -> None:
    def break_it(folder: Path) -> None:
        train(data, "momentum", checkpoint_url=str(folder))
        [own] = folder.glob("linear-*")
        for name in ("states", "commits"):
            shutil.rmtree(own / name)
        (own / "states").write_text("not a folder")

    found, told = told_of(data, tmp_path, break_it)
    assert found.summary["certificate"] == calm["momentum"].summary["certificate"]
    assert found.summary["checkpoints"] == 0
    assert any("the checkpoint of step" in text and "was not saved" in text for text in told)


def test_a_torn_checkpoint_is_passed_over_and_told(data: TrainingData, calm: dict[str, Fit], tmp_path: Path) -> None:
    def break_it(folder: Path) -> None:
        train(data, "momentum", checkpoint_url=str(folder))
        newest = min(folder.glob("linear-*/states/*"))
        newest.write_bytes(newest.read_bytes()[:-1])

    found, told = told_of(data, tmp_path, break_it)
    assert found.summary["certificate"] == calm["momentum"].summary["certificate"]
    assert len(told) == 1
    assert "is not what was saved and is passed over" in told[0]


def test_a_resumed_training_refuses_the_checkpoints_of_another(data: TrainingData, tmp_path: Path) -> None:
    url = str(tmp_path / "checkpoints")
    train(data, "momentum", checkpoint_url=url)
    with pytest.raises(UsageError, match=r'config\.params\.solver: "momentum" → "sgd"'):
        train(data, "sgd", checkpoint_url=url, resuming=True)
    assert train(data, "momentum", checkpoint_url=url, resuming=True).summary["resumed_from"] > 0


def test_a_slowed_rank_is_not_taken_for_a_stopped_one(data: TrainingData, calm: dict[str, Fit]) -> None:
    struck: list[Struck] = []
    slow = [Fault(number, "slow", 1, draw, 20.0) for number, draw in ((1, 0.0), (2, 0.9))]
    found = train(data, "momentum", strikes=Strikes(slow, struck.append), deadlines=Deadlines(silence_s=1.0))
    assert {each.rank for each in struck} == {0, 1}
    assert found.summary["gang"]["losses"] == []
    assert found.summary["certificate"] == calm["momentum"].summary["certificate"]


def test_a_stopped_rank_is_lost_by_its_silence_and_a_killed_one_at_once(
    data: TrainingData, calm: dict[str, Fit]
) -> None:
    struck: list[Struck] = []
    # the stopped rank has been slowed before, which lets it go on now and then, but no longer
    faults = [Fault(1, "slow", 1, 0.9, 2.0), Fault(2, "stop", 4, 0.9), Fault(3, "kill", 4, 0.0)]
    found = train(data, "momentum", strikes=Strikes(faults, struck.append), deadlines=Deadlines(silence_s=1.0))
    assert [(each.fault.harm, each.rank) for each in struck[:2]] == [("slow", 1), ("stop", 1)]
    assert len(struck) == 3
    assert sorted(loss["cause"] for loss in found.summary["gang"]["losses"]) == ["killed", "silent"]
    assert found.summary["certificate"] == calm["momentum"].summary["certificate"]
