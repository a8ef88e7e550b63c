"""Exact AUC and average precision of many rows: the time of both passes, and the memory of each process.

Two processes spill the scores of their blocks as tasks of an evaluation do, one ranks them; scikit-learn gets the same
rows at once. Peaks are the kernel's own (VmHWM), read by each process of itself.
"""

from __future__ import annotations

import json
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.evaluation.external import ordered_streams
from pipelines.evaluation.groups import group_rows
from pipelines.evaluation.ranks import rank
from pipelines.evaluation.scratch import scratch_folder
from pipelines.evaluation.spill import Run, RunWriter, Stream
from pipelines.evaluation.state import State
from pipelines.evaluation.terms import Question, Rows
from pipelines.storage import Location

BLOCK = 1 << 18  # as ScoringJob
WORKERS = 2
LIMIT_MIB = 256


def run(workdir: Path, quick: bool) -> list[dict[str, Any]]:
    """Measure 100 M rows, a fifth of them with weights (scikit-learn takes 8 GB for the first); quick: 5 M rows."""
    most = 5_000_000 if quick else 100_000_000
    runs = 1 if quick else 3
    scratch = str(workdir / "metrics-scratch")
    table = []
    for weighted, rows in ((False, most), (True, most // 5)):
        ours = [_ours(rows, weighted, scratch) for _ in range(runs)]
        peer = _alone(_sklearn, rows, weighted)
        difference = max(abs(ours[0][name] - peer[name]) for name in ("auc", "average_precision"))
        seconds = statistics.median(each["seconds"] for each in ours)
        spill, merge = (max(each[f"{phase}_mib"] for each in ours) for phase in ("spill", "merge"))
        peak = max(spill, merge)
        what = f"exact AUC and average precision, {rows / 1e6:.0f} M rows{', weighted' if weighted else ''}"
        table += [
            {
                "what": f"{what}: seconds", "ours": seconds, "peer": peer["seconds"],
                "ratio": peer["seconds"] / seconds, "target": "", "runs": runs,
                "note": f"peer: scikit-learn (once); differ by {difference:.1e}; "
                f"spill {ours[0]['spill_s']:.1f} s on {WORKERS} processes, merge {ours[0]['merge_s']:.1f} s",
            },
            {
                "what": f"{what}: MiB a process", "ours": peak, "peer": peer["mib"],
                "ratio": peer["mib"] / peak, "target": f"≤ {LIMIT_MIB}",
                "met": bool(peak <= LIMIT_MIB and difference <= 1e-9), "runs": runs,
                "note": f"peak of the whole process with its imports; spill {spill:.0f}, merge {merge:.0f}",
            },
        ]  # fmt: skip
    return [*table, _one_pass(5_000_000, 3)]


def _ours(rows: int, weighted: bool, scratch: str) -> dict[str, float]:
    context = multiprocessing.get_context("spawn")
    with scratch_folder(scratch) as folder, ProcessPoolExecutor(WORKERS, mp_context=context) as pool:
        shares = [pool.submit(_spill, folder, rows, weighted, worker) for worker in range(WORKERS)]
        spilled = [share.result() for share in shares]
        spill_s = max(seconds for _, seconds, _ in spilled)
        blocks = [run for _, run in sorted(pair for runs, _, _ in spilled for pair in runs)]
        found = _alone(_merge, folder, blocks)
    return {
        "seconds": spill_s + found["seconds"],
        "spill_s": spill_s,
        "merge_s": found["seconds"],
        "spill_mib": max(mib for _, _, mib in spilled),
        "merge_mib": found["mib"],
        "auc": found["auc"],
        "average_precision": found["average_precision"],
    }


def _spill(folder: Location, rows: int, weighted: bool, worker: int) -> tuple[list[tuple[int, Run]], float, float]:
    runs, seconds = [], 0.0
    with RunWriter(folder) as writer:
        for block in range(worker, -(-rows // BLOCK), WORKERS):
            scores, positive, weight = _block(block, rows, weighted)
            started = time.perf_counter()
            runs.append((block, writer.write([(Stream("test"), group_rows(scores, positive, weight))])))
            seconds += time.perf_counter() - started
    return runs, seconds, _memory("VmHWM")


def _merge(folder: Location, runs: list[Run]) -> dict[str, float]:
    started = time.perf_counter()
    ((_, found),) = [(stream, rank(groups)) for stream, groups in ordered_streams(folder, runs)]
    return {
        "auc": found.auc() or 0.0,
        "average_precision": found.average_precision() or 0.0,
        "seconds": time.perf_counter() - started,
        "mib": _memory("VmHWM"),
    }


def _sklearn(rows: int, weighted: bool) -> dict[str, float]:
    from sklearn.metrics import average_precision_score, roc_auc_score

    blocks = list(_blocks(rows, weighted))
    scores, positive = (np.concatenate([block[i] for block in blocks]) for i in (0, 1))
    weight = np.concatenate([block[2] for block in blocks]) if weighted else None
    del blocks
    started = time.perf_counter()
    auc = roc_auc_score(positive, scores, sample_weight=weight)
    precision = average_precision_score(positive, scores, sample_weight=weight)
    seconds = time.perf_counter() - started
    return {"auc": auc, "average_precision": precision, "seconds": seconds, "mib": _memory("VmHWM")}


def _one_pass(rows: int, runs: int) -> dict[str, Any]:
    """Measure all metrics that are sums (log loss, Brier, accuracy, calibration, …) against two of scikit-learn's."""
    from sklearn.metrics import brier_score_loss, log_loss

    blocks = list(_blocks(rows, False))
    scores, positive = (np.concatenate([block[i] for block in blocks]) for i in (0, 1))

    def ours() -> None:
        state = State()
        for s, y, _ in blocks:
            state.update(Question("binary", 2), Rows(y.astype(np.intp), s), {})

    def peer() -> None:
        log_loss(positive, scores)
        brier_score_loss(positive, scores)

    mine, theirs = (statistics.median(_timed(function) for _ in range(runs)) for function in (ours, peer))
    return {
        "what": f"all metrics that are sums, {rows / 1e6:.0f} M rows, one process: seconds",
        "ours": mine, "peer": theirs, "ratio": theirs / mine, "target": "", "runs": runs,
        "note": "peer: scikit-learn's log_loss and brier_score_loss alone",
    }  # fmt: skip


def _timed(function: Callable[[], None]) -> float:
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def _blocks(rows: int, weighted: bool) -> Iterator[tuple[Any, Any, Any]]:
    return (_block(block, rows, weighted) for block in range(-(-rows // BLOCK)))


def _block(block: int, rows: int, weighted: bool) -> tuple[Any, Any, Any]:
    """Scores of a model of a rare event, a quarter of them with ties, with their labels and weights."""
    rng = np.random.default_rng([7, block])
    n = min(BLOCK, rows - block * BLOCK)
    scores = rng.random(n) ** 3
    scores[: n // 4] = scores[: n // 4].round(4)
    positive = rng.random(n) < scores
    return scores, positive, rng.uniform(0.2, 5.0, n) if weighted else None


def _alone(function: Callable[..., dict[str, float]], *args: Any) -> dict[str, float]:
    """Run a function in a fresh process."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *args).result()


def _memory(field: str) -> float:
    """A figure of /proc/self/status in MiB; VmHWM is the peak of this process alone, unlike ru_maxrss after a fork."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


if __name__ == "__main__":
    print(json.dumps(run(Path("/tmp"), quick=True), indent=1))
