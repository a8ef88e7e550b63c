"""A fit whose columns are spread over ranks outlives their loss, in any phase, and ends in the same bits."""

from __future__ import annotations

import io
import random
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.data.config import DataConfig
from pipelines.data.dataset import open_dataset
from pipelines.data.shards import plan_shards
from pipelines.data.source import make_source
from pipelines.data.split import SplitConfig
from pipelines.data.splitting import fit_split
from pipelines.errors import InterruptedRunError
from pipelines.features import FeatureConfig, LabelConfig, fit_features
from pipelines.training import Deadlines, Progress, TrainConfig, TrainingData
from pipelines.training.fit import Fit, fit
from tests.faults.injecting import PHASES, Injector

pytestmark = pytest.mark.slow

COLUMNS = 24
# Small batches and many epochs, and tolerances near the noise: long enough to be disturbed in the middle.
BATCHES = {"C": 1.0, "learning_rate": 0.05, "batch_rows": 100, "epochs": 6}
SOLVERS: dict[str, dict[str, Any]] = {
    "lbfgs": {"l2": 1e-5, "solver": "lbfgs", "tol": 1e-10},
    "owlqn": {"l1": 1e-3, "solver": "owlqn", "tol": 1e-9},
    "momentum": {**BATCHES, "solver": "momentum"},
    "adam": {**BATCHES, "solver": "adam"},
}
CONFIG = TrainConfig(
    estimator="logistic_regression",
    strategy={"name": "model_parallel", "blocks": 4},
    checkpoint={"every": "20 steps", "keep": 2},
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> TrainingData:
    folder = tmp_path_factory.mktemp("fit") / "data"
    folder.mkdir()
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3000, COLUMNS)) * np.logspace(-0.5, 0.5, COLUMNS)
    label = (rng.random(3000) < 1 / (1 + np.exp(-X @ rng.normal(size=COLUMNS)))).astype(int)
    columns = {f"x{j:02d}": X[:, j] for j in range(COLUMNS)}
    pq.write_table(pa.table({**columns, "label": label}), folder / "a.parquet", row_group_size=500)
    dataset = open_dataset(str(folder))
    source = make_source(dataset, DataConfig(source=str(folder)))
    plan = plan_shards(dataset, list(columns), shards=6)
    split = fit_split(SplitConfig(validation=0, test=0), source, plan.shards, None)
    features = [FeatureConfig(columns=list(columns), scale="none")]
    fitted = fit_features(features, LabelConfig(column="label"), source, plan.shards, split)
    return TrainingData(source, plan, split, fitted.plan, fitted.target, None, fitted.rows)


def train(data: TrainingData, solver: str, **options: Any) -> Fit:
    config = CONFIG.model_copy(update={"params": SOLVERS[solver]})
    return fit(config, data, **{"client": None, "ranks": 2, **options})


@pytest.fixture(scope="module")
def undisturbed(data: TrainingData) -> dict[str, bytes]:
    return {solver: coefficients(train(data, solver, ranks=1)) for solver in SOLVERS}


def coefficients(found: Fit) -> bytes:
    return np.load(io.BytesIO(found.files["coef.npy"])).tobytes()


PLACES = [("start", 1), ("load", 2), ("step", 30), ("collective", 40), ("close", 1)]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(("phase", "nth"), PLACES)
def test_a_rank_that_is_killed_in_any_phase_costs_neither_the_fit_nor_a_bit(
    data: TrainingData, undisturbed: dict[str, bytes], injector: Injector, phase: str, nth: int, rank: int
) -> None:
    injector.plan([(phase, nth, rank, "kill")])
    found = train(data, "momentum")
    assert injector.struck == 1
    assert coefficients(found) == undisturbed["momentum"]
    assert [loss["rank"] for loss in found.summary["gang"]["losses"]] == [rank]


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_loss_costs_no_more_than_what_came_after_the_last_sharing(
    data: TrainingData, undisturbed: dict[str, bytes], injector: Injector, lost: int
) -> None:
    # A slow rank lets half a second pass, at which parts are shared, well before the loss.
    injector.plan([("step", 1, 1, "slow"), ("step", 80, lost, "kill")])
    found = train(data, "momentum", ranks=3)
    assert injector.struck == 2
    [resumption] = found.summary["gang"]["resumptions"]
    assert 0 < resumption["step"] < 80
    assert resumption["step"] + resumption["lost_steps"] in (78, 79)
    assert not resumption["stored"]
    assert coefficients(found) == undisturbed["momentum"]


@pytest.mark.parametrize(("phase", "nth"), [("share", 1), ("checkpoint", 1), ("checkpoint", 4)])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_killed_while_it_saves_costs_nothing_either(
    data: TrainingData,
    undisturbed: dict[str, bytes],
    injector: Injector,
    tmp_path: Path,
    phase: str,
    nth: int,
    rank: int,
) -> None:
    faults = [(phase, nth, rank, "kill")]
    if phase == "share":
        faults.insert(0, ("step", 1, 1, "slow"))
    injector.plan(faults)
    found = train(data, "momentum", checkpoint_url=str(tmp_path / "checkpoints"))
    assert injector.struck == len(faults)
    assert coefficients(found) == undisturbed["momentum"]


@pytest.mark.parametrize("solver", ["lbfgs", "owlqn", "adam"])
def test_every_solver_goes_on_to_the_same_bits(
    data: TrainingData, undisturbed: dict[str, bytes], injector: Injector, solver: str
) -> None:
    injector.plan([("step", 3, 0, "kill"), ("step", 5, 1, "kill"), ("collective", 4, 2, "kill")])
    found = train(data, solver, ranks=3)
    assert injector.struck >= 2
    assert coefficients(found) == undisturbed[solver]


def history_of(seed: int) -> tuple[str, int, list[tuple[str, int, int, str]]]:
    """Draw a solver, a number of ranks, and what happens to them."""
    rng = random.Random(seed)
    ranks = rng.randint(1, 4)
    faults = []
    for _ in range(rng.randint(1, 4)):
        phase = rng.choice(PHASES)
        nth = 1 if phase in ("start", "close") else rng.choice([1, 2, 3, 5, 8, 13, 40, 100])
        faults.append((phase, nth, rng.randrange(ranks), rng.choice(["kill", "kill", "kill", "stop", "slow"])))
    return rng.choice(sorted(SOLVERS)), ranks, faults


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[] if seed < 4 else [pytest.mark.soak]) for seed in range(40)]
)
def test_any_history_of_faults_ends_in_the_same_bits(
    data: TrainingData, undisturbed: dict[str, bytes], injector: Injector, tmp_path: Path, seed: int
) -> None:
    solver, ranks, faults = history_of(seed)
    injector.plan(faults)
    url = str(tmp_path / "checkpoints") if seed % 2 else None
    found = train(data, solver, ranks=ranks, checkpoint_url=url, deadlines=Deadlines(silence_s=2.0))
    assert coefficients(found) == undisturbed[solver], (solver, ranks, faults)


def test_a_fit_goes_on_after_it_was_stopped(data: TrainingData, undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    url, stop = str(tmp_path / "checkpoints"), threading.Event()

    def report(progress: Progress) -> None:
        if progress.unit == "step" and progress.done > 5:
            stop.set()

    with pytest.raises(InterruptedRunError):
        train(data, "momentum", checkpoint_url=url, report=report, stop=stop)
    again = train(data, "momentum", checkpoint_url=url, ranks=1)
    assert again.summary["resumed_from"] > 5
    assert coefficients(again) == undisturbed["momentum"]
