"""What do ranks cost, losses and slow ranks? Synchronous over ranks, back from a kill, asynchronous with a slow rank.

Fits run as children of this process (no Dask), without reading unless it is said. A rank is slowed by stopping its
process for two thirds of the time, in turns of 30 ms.
"""

from __future__ import annotations

import os
import signal
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from pipelines.training import Progress, TrainConfig, TrainingData
from pipelines.training.fit import fit
from tests.benchmarks.linear import training_data
from tests.benchmarks.synthetic import make

FEATURES = 28
SLOWED = 3
_RANK = "pipelines.training.gang.rank"


def run(workdir: Path, quick: bool) -> list[dict[str, Any]]:
    """Measure; `workdir` keeps the data."""
    rows, runs = (200_000, 1) if quick else (5_000_000, 3)
    large = training_data(make(workdir, rows=rows))
    small = training_data(make(workdir, rows=200_000 if quick else 1_000_000))
    return [_over_ranks(large, rows, runs), _recovery(large, rows, runs), *_slow_rank(small, runs, quick)]


def _over_ranks(data: TrainingData, rows: int, runs: int) -> dict[str, Any]:
    config = TrainConfig(estimator="logistic_regression", params={"l2": 1e-6})
    ours = [fit(config, data, client=None, ranks=2, threads=1).summary["fit_s"] for _ in range(runs)]
    one = [fit(config, data, client=None, ranks=1, threads=2).summary["fit_s"] for _ in range(runs)]
    return _row(f"synchronous, {rows:,} × {FEATURES}: 2 ranks against 1 of 2 threads, s", ours, one, "≤ 1.1", "")


def _recovery(data: TrainingData, rows: int, runs: int) -> dict[str, Any]:
    """Seconds from a kill to the next step, reading of the lost lanes and the notice included."""
    params = {"solver": "sgd", "batch_rows": rows // 100, "epochs": 12, "tol": 0.0}
    config = TrainConfig(estimator="logistic_regression", params=params)
    seconds, noted = [], {}
    for _ in range(runs):
        killed: list[float] = []
        back: list[float] = []

        def report(progress: Progress, killed: list[float] = killed, back: list[float] = back) -> None:
            if progress.unit == "step" and progress.done > 50 and not killed:
                killed.append(time.monotonic())
                os.kill(_ranks()[1], signal.SIGKILL)
            elif progress.unit == "step" and killed and len(back) < 2:
                # The first word after the kill may have been on its way.
                back.append(time.monotonic())

        found = fit(config, data, client=None, ranks=2, threads=1, report=report)
        noted = found.summary["gang"]
        seconds.append(back[-1] - killed[0])
    note = f"apart: {noted['waits_s']} s without a formation, {noted['lost_steps']} steps done again"
    return _row("a rank of two is killed: s until steps go on, its lanes read again", seconds, [5.0], "≤ 1", note)


def _slow_rank(data: TrainingData, runs: int, quick: bool) -> list[dict[str, Any]]:
    params = {"solver": "sgd", "batch_rows": 4096, "epochs": 3 if quick else 12, "tol": 0.0, "learning_rate": 0.3}

    def train(strategy: Any) -> tuple[float, float, dict[str, Any]]:
        config = TrainConfig(estimator="logistic_regression", params=params, strategy=strategy)
        begun = threading.Event()

        def report(progress: Progress) -> None:
            if progress.unit == "step":
                begun.set()

        with _slowed(begun):
            summary = fit(config, data, client=None, ranks=2, threads=1, report=report).summary
        assert summary["gang"]["formations"] == 1, summary["gang"]
        return params["epochs"] * summary["rows"] / summary["fit_s"], summary["loss"], summary

    ours = [train({"name": "asynchronous", "staleness": 4}) for _ in range(runs)]
    peer = [train("synchronous") for _ in range(runs)]
    rates, others = [each[0] for each in ours], [each[0] for each in peer]
    last = ours[-1][2]
    note = f"updates by rank {last['units_by_rank']}, staleness {last['staleness']}"
    losses = statistics.median(each[1] for each in ours), statistics.median(each[1] for each in peer)
    return [
        _row("one rank of two slowed 3 ×: asynchronous (4) against synchronous, rows/s", rates, others, "≥ 1.5", note),
        _row("the same: training loss", [losses[0]], [losses[1]], "≤ 1.01", ""),
    ]


@contextmanager
def _slowed(begun: threading.Event) -> Iterator[None]:
    """Slow the second rank from its first step on."""
    over = threading.Event()

    def slow() -> None:
        begun.wait(300)
        ranks = _ranks()
        while not over.is_set() and len(ranks) > 1:
            try:
                os.kill(ranks[1], signal.SIGSTOP)
                over.wait(0.03 * (SLOWED - 1) / SLOWED)
                os.kill(ranks[1], signal.SIGCONT)
            except ProcessLookupError:
                return
            over.wait(0.03 / SLOWED)

    thread = threading.Thread(target=slow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _ranks() -> list[int]:
    """Process ids of the ranks, in the order of their start."""
    children = psutil.Process().children()
    return sorted(child.pid for child in children if _RANK in " ".join(child.cmdline()))


def _row(what: str, ours: list[float], peer: list[float], target: str, note: str) -> dict[str, Any]:
    a, b = statistics.median(ours), statistics.median(peer)
    limit = float(target[2:])
    met = a / b <= limit if target.startswith("≤") else a / b >= limit
    return {
        "what": what,
        "ours": a,
        "peer": b,
        "ratio": a / b,
        "target": target,
        "met": met,
        "runs": len(ours),
        "note": note,
    }
