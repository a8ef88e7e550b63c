"""Train what a spec's `train:` asks for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pipelines.errors import UsageError
from pipelines.training.config import TrainConfig
from pipelines.training.data import TrainingData
from pipelines.training.estimators.registry import FitRequest, learns_several, resolve
from pipelines.training.gang import Deadlines, Strikes
from pipelines.training.happenings import Happened, ignore

if TYPE_CHECKING:
    from distributed import Client


@dataclass(frozen=True)
class Progress:
    """How far a training is."""

    unit: str
    """``step``, ``epoch`` or ``round``; ``load`` while the data is read (then `done` and `total` are rows)."""
    done: int
    total: int | None
    metrics: dict[str, float] = field(default_factory=dict)
    rows_per_s: float = 0.0


@dataclass(frozen=True)
class Fit:
    """A trained predictor in plain formats, and what is worth knowing about how it came to be.

    `kind` says which predictor of `pipelines.model` reads `files` (``linear``, ``xgboost``, ``skops``); `summary` is
    JSON-able (n_iter, stop_reason, history, rows, best_iteration, …).
    """

    kind: str
    files: dict[str, bytes]
    summary: dict[str, Any]


def fit(
    config: TrainConfig,
    data: TrainingData,
    *,
    client: Client | None,
    ranks: int,
    min_ranks: int | None = None,
    max_ranks: int | None = None,
    threads: int = 1,
    memory_bytes: int | None = None,
    checkpoint_url: str | None = None,
    report: Callable[[Progress], None] | None = None,
    deadlines: Deadlines | None = None,
    stop: threading.Event | None = None,
    happened: Happened | None = None,
    resuming: bool = False,
    strikes: Strikes | None = None,
    trial: bool = False,
) -> Fit:
    """Train on `ranks` Dask workers; goes on from the last checkpoint in `checkpoint_url` of the same config and data.

    Parameters
    ----------
    config, data
        What to train, and on what.
    client : distributed.Client or None
        The cluster; None trains in child processes of this one.
    ranks, threads : int
        Ranks at the start (at most the workers there are), and threads of each.
    min_ranks, max_ranks : int, optional
        With how many ranks, at least, a training that survives losses goes on, and to how many it grows when there are
        more workers. Default: 1, and `ranks`.
    memory_bytes : int, optional
        Limit of each worker's process tree. Data that do not fit are kept on the worker's disk, block by block.
    checkpoint_url : str, optional
        Folder of an object store for checkpoints; None saves none.
    report : callable, optional
        Called in this thread with the progress.
    deadlines : Deadlines, optional
    stop : threading.Event, optional
        Set it to make the training save a checkpoint and leave: ``InterruptedRunError``.
    happened : callable, optional
        Called in this thread with every `Happening`: waits for workers, lost ranks, resumptions.
    resuming : bool
        Whether this goes on with a training that was interrupted: checkpoints of another spec, dataset or version are
        refused then, with the differences, instead of training from the beginning beside them.
    strikes : Strikes, optional
        Faults to inject on purpose, by trainers that survive losses.
    trial : bool
        Whether it is one of a search's trials: every step (round) is reported, so that trials can be compared step by
        step, and the workers do other tasks meanwhile.

    Raises
    ------
    TrainingError, DataError, UserCodeError, GangError, DeadlineError, InterruptedRunError
        See `run_gang`.
    UsageError
        The estimator does not learn such a label.
    """
    request = FitRequest(
        config=config,
        data=data,
        client=client,
        ranks=ranks,
        min_ranks=1 if min_ranks is None else min_ranks,
        max_ranks=ranks if max_ranks is None else max_ranks,
        threads=threads,
        memory_bytes=memory_bytes,
        checkpoint_url=checkpoint_url,
        report=report or _ignore,
        deadlines=deadlines or Deadlines(),
        stop=stop or threading.Event(),
        happened=happened or ignore,
        resuming=resuming,
        strikes=strikes,
        trial=trial,
    )
    estimator = resolve(config.estimator)
    if data.target.others and not learns_several(estimator):
        raise UsageError(
            f"{config.estimator} learns one label",
            found=f"{len(data.target.every)}: {', '.join(data.target.columns)}",
            remedy="Name one column, or use linear_regression.",
        )
    return estimator.fit(request)


def _ignore(progress: Progress) -> None:
    pass
