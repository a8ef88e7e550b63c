"""Parquet to a column-major float32 matrix, against a pyarrow scan; its memory; what checks and parted row groups cost.

Both read the same files, warm, with as many threads, into a matrix that is there and was touched. The peer copies every
column of every scanned batch; ours decodes ahead, within a cap on bytes. Each runs in processes of its own, which take
turns: in one process they would spoil each other's allocator (the scan's time doubles when it must fault its 900 MB in
again).
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.dataset as ds

from pipelines.data.checks import Checks
from pipelines.data.dataset import open_dataset
from pipelines.data.mapping import map_shards
from pipelines.data.matrix import read_matrix
from pipelines.data.reader import MAX_BYTES_IN_FLIGHT, read_batches
from pipelines.data.shards import Shard, ShardPlan, default_shards, plan_shards
from pipelines.data.source import Source, make_source
from tests.benchmarks import synthetic


def run(workdir: Path, quick: bool) -> list[dict[str, Any]]:
    """Measure reading.

    Parameters
    ----------
    workdir : Path
        Files are made here, and used again by the next run.
    quick : bool
        200,000 rows instead of five million.
    """
    rows, processes, runs = (200_000, 1, 3) if quick else (5_000_000, 3, 3)
    folder = synthetic.make(workdir, rows)
    small = synthetic.make(workdir, 1000)
    found: dict[str, list[dict[str, Any]]] = {"ours": [], "peer": []}
    for _ in range(processes):
        for who, measured in found.items():
            measured.append(_child(who, folder, small, runs))
    ours, peer = (statistics.median(second for each in found[who] for second in each["seconds"]) for who in found)
    memory = {who: max(each["peak"] for each in found[who]) for who in found}
    source, plan, _ = _opened(folder)
    threads = os.cpu_count() or 1
    note = f"{rows:,} × 28 float32, {threads} threads, warm cache, {len(plan.shards)} shards"
    once, parted = _in_turn(lambda: _read(source, plan.shards), lambda: _read_parted(source, plan.shards), 3)
    plain, checked = _in_turn(lambda: _read(source, plan.shards), lambda: _check(source, plan.shards), 3)
    cap = MAX_BYTES_IN_FLIGHT
    return [
        {
            "what": "Parquet to float32 matrix, rate",
            "ours": f"{ours:.3f} s",
            "peer": f"{peer:.3f} s",
            "ratio": peer / ours,
            "target": "≥ 0.9",
            "met": peer / ours >= 0.9,
            "runs": processes * runs,
            "note": f"{note}; peer: pyarrow dataset scan",
        },
        {
            "what": "peak memory beside the matrix, of the cap",
            "ours": f"{memory['ours'] >> 20} MiB",
            "peer": f"{cap >> 20} MiB",
            "ratio": memory["ours"] / cap,
            "target": "≤ 1.2",
            "met": memory["ours"] <= 1.2 * cap,
            "runs": processes,
            "note": f"growth of the process's peak RSS; the pyarrow scan's is {memory['peer'] >> 20} MiB",
        },
        {
            "what": "every shard read by itself, as a map does",
            "ours": f"{parted:.3f} s",
            "peer": f"{once:.3f} s",
            "ratio": parted / once,
            "target": None,
            "met": None,
            "runs": 3,
            "note": f"{len(plan.shards)} shards of {_row_groups(plan.shards)} row groups; peer: ours in one go",
        },
        {
            "what": "reading with row-level checks of every column",
            "ours": f"{checked:.3f} s",
            "peer": f"{plain:.3f} s",
            "ratio": checked / plain,
            "target": None,
            "met": None,
            "runs": 3,
            "note": "checks run in the caller's thread; peer: reading alone",
        },
    ]


def scan_into(folder: str, columns: list[str], out: np.ndarray) -> None:
    """Copy a pyarrow scan into a matrix: the peer."""
    at = 0
    for batch in ds.dataset(folder).scanner(columns=columns, batch_size=65_536).to_batches():
        for number, column in enumerate(batch.columns):
            out[at : at + batch.num_rows, number] = column.to_numpy()
        at += batch.num_rows


def _opened(folder: str) -> tuple[Source, ShardPlan, list[str]]:
    dataset = open_dataset(folder)
    columns = [name for name in dataset.schema.names if name != "label"]
    return (
        make_source(dataset),
        plan_shards(dataset, columns, shards=default_shards(dataset, columns, max_workers=2)),
        columns,
    )


def _read(source: Source, shards: tuple[Shard, ...]) -> None:
    for _ in read_batches(source, shards, source.arrow_schema.names):
        pass


def _read_one(shard: Shard, source: Source) -> int:
    return sum(read.batch.num_rows for read in read_batches(source, [shard], source.arrow_schema.names))


def _read_parted(source: Source, shards: tuple[Shard, ...]) -> None:
    for _ in map_shards(None, _read_one, shards, source):
        pass


def _check(source: Source, shards: tuple[Shard, ...]) -> None:
    checks = Checks(source.arrow_schema)
    for read in read_batches(source, shards, source.arrow_schema.names):
        checks.update(read.batch)


def _row_groups(shards: tuple[Shard, ...]) -> int:
    return len({(piece.file.path, piece.row_group) for shard in shards for piece in shard.slices})


def _in_turn(ours: Callable[[], object], peer: Callable[[], object], runs: int) -> tuple[float, float]:
    """Median seconds of both, each run of one followed by one of the other; a first pair warms the caches."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(runs + 1):
        for function, measured in zip((ours, peer), seconds, strict=True):
            start = time.perf_counter()
            function()
            measured.append(time.perf_counter() - start)
    return statistics.median(seconds[0][1:]), statistics.median(seconds[1][1:])


def _child(who: str, folder: str, small: str, runs: int) -> dict[str, Any]:
    """Run one of the two in a process of its own."""
    command = [sys.executable, "-m", "tests.benchmarks.reading", who, folder, small, str(runs)]
    result: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return result


def _measure(who: str, folder: str, small: str, runs: str) -> dict[str, Any]:
    """Seconds of each run after the first, and the growth of the peak RSS over what the process had with its matrix."""
    _fill(who, small, 1)
    return _fill(who, folder, 1 + int(runs))


def _fill(who: str, folder: str, runs: int) -> dict[str, Any]:
    source, plan, columns = _opened(folder)
    out = np.full((plan.rows, len(columns)), 1.0, np.float32, order="F")
    before, seconds = _peak_rss(), []
    for _ in range(runs):
        start = time.perf_counter()
        if who == "ours":
            read_matrix(source, plan.shards, columns, out=out, threads=os.cpu_count())
        else:
            scan_into(folder, columns, out)
        seconds.append(time.perf_counter() - start)
    return {"seconds": seconds[1:], "peak": _peak_rss() - before}


def _peak_rss() -> int:
    """The process's own peak; `ru_maxrss` would begin at the parent's."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


if __name__ == "__main__":
    print(json.dumps(_measure(*sys.argv[1:])))
