"""What several tests of training need: meshes of collectives in threads, small datasets on disk."""

from __future__ import annotations

import io
import json
import os
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import threadpoolctl

from pipelines.data.config import DataConfig
from pipelines.data.dataset import open_dataset
from pipelines.data.shards import plan_shards
from pipelines.data.source import input_columns, make_source
from pipelines.data.split import SplitConfig
from pipelines.data.splitting import fit_split
from pipelines.features import FeatureConfig, LabelConfig, fit_features
from pipelines.training.config import TrainConfig
from pipelines.training.data import TrainingData
from pipelines.training.estimators import linear_rank
from pipelines.training.estimators.linear import assemble, make_dealer
from pipelines.training.estimators.registry import FitRequest, resolve
from pipelines.training.fit import Fit
from pipelines.training.gang import Deadlines, RankContext
from pipelines.training.gang.collective import PeerError, TcpCollective, listen

Program = Callable[[TcpCollective], Any]


@pytest.fixture
def programs_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ranks import this folder's modules, as they import a user's code."""
    monkeypatch.setenv("MUTIRAO_CODE_PATH", str(Path(__file__).parent))


class Mesh:
    """Runs one function per rank, each in a thread with its end of the collective."""

    def run(self, programs: Sequence[Program], *, step_s: float = 20.0) -> list[Any]:
        """Return what each returned, or the exception it raised."""
        token = os.urandom(16)
        listeners = [listen("127.0.0.1") for _ in programs]
        addresses = [("127.0.0.1", each.getsockname()[1]) for each in listeners]
        outcomes: list[Any] = [None] * len(programs)

        def live(rank: int) -> None:
            try:
                with TcpCollective(
                    rank, addresses, listeners[rank], token=token, step_s=step_s, start_s=10
                ) as collective:
                    outcomes[rank] = programs[rank](collective)
            except Exception as error:  # noqa: BLE001 - handed to the test
                outcomes[rank] = error

        threads = [threading.Thread(target=live, args=(rank,)) for rank in range(len(programs))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive(), "a rank hangs"
        return outcomes


@pytest.fixture
def mesh() -> Mesh:
    return Mesh()


class Maker:
    """Writes tables as datasets, and prepares them for training."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0

    def prepare(
        self,
        table: pa.Table,
        *,
        label: str | list[str] = "label",
        kind: Any = "auto",
        weight: str | None = None,
        features: Sequence[FeatureConfig] | None = None,
        split: SplitConfig | None = None,
        shards: int = 12,
        files: int = 3,
        sparse: bool | None = None,
        config: DataConfig | None = None,
        leave_out: Sequence[str] = (),
    ) -> TrainingData:
        """Turn a table into training data: `files` files of several row groups."""
        folder = self._folder / f"data-{self._count}"
        self._count += 1
        folder.mkdir()
        step = -(-table.num_rows // files)
        for number in range(files):
            part = table.slice(number * step, step)
            pq.write_table(part, folder / f"part-{number}.parquet", row_group_size=max(1, step // 3))
        dataset = open_dataset(str(folder))
        said = config or DataConfig(source=str(folder))
        source = make_source(dataset, said.model_copy(update={"source": str(folder)}))
        said_label = LabelConfig.model_validate({"column": label, "on_null": "drop", "kind": kind})
        names = [name for name in table.column_names if name not in (*said_label.columns, weight, *leave_out)]
        plan = plan_shards(dataset, input_columns(source, [*names, *said_label.columns]), shards=shards)
        fitted_split = fit_split(split or SplitConfig(validation=0.0, test=0.0), source, plan.shards, None)
        fitted = fit_features(
            list(features or [FeatureConfig(columns=names)]),
            said_label,
            source,
            plan.shards,
            fitted_split,
            sparse=sparse,
        )
        return TrainingData(source, plan, fitted_split, fitted.plan, fitted.target, weight, fitted.rows)


@pytest.fixture
def maker(tmp_path: Path) -> Maker:
    return Maker(tmp_path)


def classification(rows: int = 3000, seed: int = 0, classes: int = 2) -> pa.Table:
    """Make rows of four numbers, one category and a label that hangs on them."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 4)) * [1.0, 2.0, 0.5, 3.0] + [0.0, 5.0, 0.0, -1.0]
    colour = rng.integers(0, 5, rows)
    scores = x @ rng.normal(size=(4, classes)) * 0.5 + rng.normal(size=(5, classes))[colour]
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    label = (rng.random((rows, 1)) > np.cumsum(shares, axis=1)).sum(axis=1)
    columns = {f"x{j}": x[:, j] for j in range(4)}
    colours = pa.array(["red", "green", "blue", "grey", "pink"]).take(pa.array(colour))
    return pa.table({**columns, "colour": colours, "label": label, "importance": rng.uniform(0.1, 3.0, rows)})


@pytest.fixture
def make_classification() -> Callable[..., pa.Table]:
    return classification


class Trainer:
    """Fits linear models by the ranks' own program, each rank in a thread: what a gang does, without its processes."""

    def __init__(self, mesh: Mesh, folder: Path) -> None:
        self._mesh, self._folder = mesh, folder
        self.messages: list[dict[str, Any]] = []

    def has_stepped(self) -> bool:
        """Whether a step was reported since `messages` was cleared."""
        return any(message["unit"] == "step" for message in self.messages)

    def fit(
        self,
        data: TrainingData,
        params: dict[str, Any],
        *,
        ranks: int = 2,
        threads: int = 1,
        memory_bytes: int | None = None,
        checkpoint_url: str | None = None,
        stop: Callable[[], bool] | None = None,
        holds: Sequence[Sequence[int]] | None = None,
        estimator: str = "",
        **config: Any,
    ) -> Fit:
        """Train; `stop` says whether ranks are asked to leave, `holds` which lanes each rank has for a start."""
        usual = "linear_regression" if data.target.kind == "regression" else "logistic_regression"
        name = estimator or usual
        request = FitRequest(
            config=TrainConfig(estimator=name, params=params, **config),
            data=data,
            client=None,
            ranks=ranks,
            min_ranks=1,
            max_ranks=ranks,
            threads=threads,
            memory_bytes=memory_bytes,
            checkpoint_url=checkpoint_url,
            report=lambda progress: None,
            deadlines=Deadlines(),
            stop=threading.Event(),
        )
        resolve(name).check(request.config)
        dealer = make_dealer(request)
        arguments = dealer.arguments(holds or [()] * dealer.ranks)

        def live(own: dict[str, Any]) -> Program:
            def program(collective: TcpCollective) -> bytes:
                with tempfile.TemporaryDirectory(dir=self._folder) as scratch:
                    context = RankContext(
                        rank=collective.rank,
                        size=collective.size,
                        collective=collective,
                        arguments=json.loads(json.dumps(own)),
                        threads=threads,
                        memory_bytes=memory_bytes,
                        host="127.0.0.1",
                        scratch=Path(scratch),
                        report=self.messages.append,
                        stop_requested=stop or (lambda: False),
                    )
                    with context.kept.resources:
                        return linear_rank.program(context)

            return program

        with threadpoolctl.threadpool_limits(1):
            outcomes = self._mesh.run([live(own) for own in arguments])
        for outcome in outcomes:
            if isinstance(outcome, BaseException) and not isinstance(outcome, PeerError):
                raise outcome
        return assemble(outcomes, 0.0)


@pytest.fixture
def trainer(mesh: Mesh, tmp_path: Path) -> Trainer:
    return Trainer(mesh, tmp_path)


def weights_of(fit: Fit) -> tuple[np.ndarray, np.ndarray]:
    """Read coefficients (outputs, features) and intercepts (outputs,) off a fit."""
    coef, intercept = (np.load(io.BytesIO(fit.files[name])) for name in ("coef.npy", "intercept.npy"))
    return coef, intercept


@pytest.fixture
def read_weights() -> Callable[[Fit], tuple[np.ndarray, np.ndarray]]:
    return weights_of
