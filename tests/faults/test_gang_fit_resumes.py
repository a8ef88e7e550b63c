"""A fit whose ranks are killed, stopped or slowed, in any phase, ends in the same bits as the undisturbed one."""

from __future__ import annotations

import io
import json
import os
import random
import threading
from collections.abc import Iterator, Sequence
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
from pipelines.errors import InterruptedRunError
from pipelines.features import FeatureConfig, LabelConfig, fit_features
from pipelines.training import Deadlines, Progress, TrainConfig, TrainingData
from pipelines.training.estimators import linear
from pipelines.training.fit import Fit, fit

pytestmark = pytest.mark.slow

PHASES = ("start", "load", "step", "collective", "share", "checkpoint", "close")
PROGRAMS = Path(__file__).parents[1] / "unit" / "training"
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
def undisturbed(data: TrainingData) -> dict[str, np.ndarray]:
    return {solver: coefficients(train(data, solver, ranks=1)) for solver in SOLVERS}


def coefficients(found: Fit) -> np.ndarray:
    return np.load(io.BytesIO(found.files["coef.npy"]))


class Injector:
    """Builds faults into the ranks' program."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder, self._patch = folder, monkeypatch
        monkeypatch.setattr(linear, "PROGRAM", "chaos_programs:program")
        monkeypatch.setenv("MUTIRAO_CODE_PATH", str(PROGRAMS))

    def plan(self, faults: Sequence[tuple[str, int, int, str]]) -> None:
        """Let rank r do something at the n-th time that it comes by a phase: (phase, n, r, what)."""
        self.flags = [self._folder / f"struck-{number}" for number in range(len(faults))]
        named = [
            {"phase": phase, "nth": nth, "rank": rank, "what": what, "flag": str(flag)}
            for (phase, nth, rank, what), flag in zip(faults, self.flags, strict=True)
        ]
        self._patch.setenv("MUTIRAO_TEST_FAULTS", json.dumps(named))

    @property
    def struck(self) -> int:
        """How many of them have happened."""
        return sum(flag.exists() for flag in self.flags)


@pytest.fixture
def injector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Injector:
    return Injector(tmp_path, monkeypatch)


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
def test_every_solver_goes_on_to_the_same_bits(
    data: TrainingData, undisturbed: dict[str, np.ndarray], injector: Injector, solver: str
) -> None:
    injector.plan([("step", 3, 0, "kill"), ("step", 5, 1, "kill"), ("collective", 4, 2, "kill")])
    found = train(data, solver, ranks=3)
    assert injector.struck >= 2
    assert coefficients(found).tobytes() == undisturbed[solver].tobytes()


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


@pytest.mark.parametrize("victim", [0, 1])
def test_without_staleness_a_loss_costs_no_bit(
    data: TrainingData, undisturbed: dict[str, np.ndarray], injector: Injector, victim: int
) -> None:
    injector.plan([("part", 100, victim, "kill")])
    found = train(data, "momentum", strategy={"name": "asynchronous", "staleness": 0})
    assert injector.struck == 1
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
    "seed", [pytest.param(seed, marks=[] if seed < 8 else [pytest.mark.soak]) for seed in range(100)]
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
    client.run(os.environ.update, {name: os.environ[name] for name in ("MUTIRAO_CODE_PATH",)})
    injector.plan([("step", 50, 1, "kill"), ("step", 80, 0, "kill")])
    client.run(os.environ.update, {"MUTIRAO_TEST_FAULTS": os.environ["MUTIRAO_TEST_FAULTS"]})
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
