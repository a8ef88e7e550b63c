"""A fit whose ranks were killed goes on from its last checkpoint, and ends where the undisturbed one ends."""

from __future__ import annotations

import io
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
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
from pipelines.errors import GangError, InterruptedRunError
from pipelines.features import FeatureConfig, LabelConfig, fit_features
from pipelines.training import Progress, TrainConfig, TrainingData
from pipelines.training.fit import Fit, fit

pytestmark = pytest.mark.slow

# Small batches and many epochs: long enough to be killed in the middle.
CONFIG = TrainConfig(
    estimator="logistic_regression",
    params={"C": 1.0, "solver": "momentum", "learning_rate": 0.05, "batch_rows": 100, "epochs": 12},
    checkpoint={"every": "20 steps", "keep": 3},
    lanes=4,
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
    plan = plan_shards(dataset, list(columns), shards=8)
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


@pytest.fixture(scope="module")
def undisturbed(data: TrainingData) -> np.ndarray:
    return coefficients(fit(CONFIG, data, client=None, ranks=2))


def coefficients(found: Fit) -> np.ndarray:
    return np.load(io.BytesIO(found.files["coef.npy"]))


def ranks_below(pids: list[int]) -> list[int]:
    """Process ids of the ranks that these processes have started."""
    children = [child for pid in pids for child in psutil.Process(pid).children(recursive=True)]
    return [child.pid for child in children if "pipelines.training.gang.rank" in " ".join(child.cmdline())]


def kill_one_rank_at(step: int, pids: list[int], victim: int) -> Any:
    """Make a report function that kills a rank once the training has come to `step`."""
    killed: list[int] = []

    def report(progress: Progress) -> None:
        if progress.unit == "step" and progress.done >= step and not killed:
            killed.append(sorted(ranks_below(pids))[victim])
            os.kill(killed[0], signal.SIGKILL)

    return report


@pytest.mark.parametrize("victim", [0, 1])
def test_a_fit_goes_on_after_a_rank_was_killed(
    client: Client, data: TrainingData, undisturbed: np.ndarray, tmp_path: Path, victim: int
) -> None:
    workers = list(client.run(os.getpid).values())
    url = str(tmp_path / "checkpoints")
    began = time.monotonic()
    with pytest.raises(GangError, match="SIGKILL"):
        fit(CONFIG, data, client=client, ranks=2, checkpoint_url=url, report=kill_one_rank_at(50, workers, victim))
    assert time.monotonic() - began < 60
    assert ranks_below(workers) == []
    again = fit(CONFIG, data, client=client, ranks=1, checkpoint_url=url)
    assert again.summary["resumed_from"] >= 40
    # Not only the same optimum: the same bits, on another number of ranks.
    assert coefficients(again).tobytes() == undisturbed.tobytes()


def test_a_fit_goes_on_after_it_was_stopped(data: TrainingData, undisturbed: np.ndarray, tmp_path: Path) -> None:
    url, stop = str(tmp_path / "checkpoints"), threading.Event()

    def report(progress: Progress) -> None:
        if progress.unit == "step" and progress.done > 30:
            stop.set()

    with pytest.raises(InterruptedRunError):
        fit(CONFIG, data, client=None, ranks=2, checkpoint_url=url, report=report, stop=stop)
    again = fit(CONFIG, data, client=None, ranks=2, checkpoint_url=url)
    assert again.summary["resumed_from"] > 30
    assert coefficients(again).tobytes() == undisturbed.tobytes()


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_gang_on_a_cluster_gives_what_children_of_this_process_give(
    client: Client, data: TrainingData, undisturbed: np.ndarray, ranks: int
) -> None:
    assert coefficients(fit(CONFIG, data, client=client, ranks=ranks)).tobytes() == undisturbed.tobytes()
