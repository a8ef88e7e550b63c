"""Opening a dataset of many files from its footers, against pyarrow reading the same footers with as many threads.

Ours lists the folder, reads and hashes every footer, takes the bytes of every column chunk, unifies the schemas and
makes the manifest. The peer is given the paths and only reads the metadata of each file. Both are measured in turn.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.data.dataset import load_dataset, open_dataset
from pipelines.storage import open_store

COLUMNS, ROW_GROUPS, ROWS, KINDS = 30, 2, 40, 16


def run(workdir: Path, quick: bool) -> list[dict[str, Any]]:
    """Measure planning, reopening from a saved manifest, refreshing and pruning.

    Parameters
    ----------
    workdir : Path
        Files are made here, and used again by the next run.
    quick : bool
        500 files instead of 10,000.
    """
    count, runs, threads = (500, 3, os.cpu_count() or 1) if quick else (10_000, 5, os.cpu_count() or 1)
    folder = make_files(workdir / f"footers-{count}", count)
    paths = sorted(str(path) for path in folder.glob("*.parquet"))
    store = open_store(str(workdir / "manifests"))
    ours, peer = _in_turn(lambda: open_dataset(str(folder), threads=threads), lambda: _peer(paths, threads), runs)
    dataset = open_dataset(str(folder), threads=threads)
    dataset.save(store, "planning.arrow")
    reopening, _ = _in_turn(lambda: load_dataset(store, "planning.arrow"), lambda: None, runs)
    refreshing, _ = _in_turn(lambda: load_dataset(store, "planning.arrow").refresh(), lambda: None, 3)
    pruning, _ = _in_turn(lambda: dataset.prune("column_00 > 0.5 and column_01 == 3"), lambda: None, 3)
    note = f"{count:,} files of {COLUMNS * ROW_GROUPS} column chunks, {threads} threads, warm cache"
    size = store.head("planning.arrow")
    return [
        _row("planning from footers", ours, peer, 2.0, runs, note),
        _row(
            "reopening a saved manifest",
            reopening,
            1.0,
            1.0,
            runs,
            f"peer: one second; {size.size if size else 0:,} bytes",
        ),
        _row("refreshing, nothing changed", refreshing, peer, None, 3, "one listing, no footer"),
        _row("pruning by statistics of two columns", pruning, peer, None, 3, "footers read again"),
    ]


def make_files(folder: Path, count: int) -> Path:
    """Write `count` files of one schema: copies of a few, whose numbers of rows differ."""
    if (folder / "_complete").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    numbers, names = np.random.default_rng(7), random.Random(7)
    kinds = [_file(folder / "kind", numbers, ROWS + kind) for kind in range(KINDS)]
    (folder / "kind").unlink()
    for i in range(count):
        (folder / f"part-{i:05d}.parquet").write_bytes(names.choice(kinds))
    (folder / "_complete").touch()
    return folder


def _file(path: Path, numbers: np.random.Generator, rows: int) -> bytes:
    columns: dict[str, Any] = {
        f"column_{i:02d}": numbers.integers(0, 1000, rows) if i % 3 else numbers.normal(size=rows).astype(np.float32)
        for i in range(COLUMNS - 2)
    }
    columns["name"] = [f"name {i % 20}" for i in range(rows)]
    columns["time"] = np.arange(rows).astype("datetime64[us]")
    pq.write_table(pa.table(columns), path, row_group_size=-(-rows // ROW_GROUPS))
    return path.read_bytes()


def _peer(paths: list[str], threads: int) -> list[pq.FileMetaData]:
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(pq.read_metadata, paths))


def _in_turn(ours: Callable[[], object], peer: Callable[[], object], runs: int) -> tuple[float, float]:
    """Median seconds of both, each run of one followed by one of the other; a first pair warms the caches."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(runs + 1):
        for function, measured in zip((ours, peer), seconds, strict=True):
            start = time.perf_counter()
            function()
            measured.append(time.perf_counter() - start)
    return statistics.median(seconds[0][1:]), statistics.median(seconds[1][1:])


def _row(what: str, ours: float, peer: float, target: float | None, runs: int, note: str) -> dict[str, Any]:
    ratio = ours / peer
    return {
        "what": what,
        "ours": f"{ours:.3f} s",
        "peer": f"{peer:.3f} s",
        "ours_s": ours,
        "peer_s": peer,
        "ratio": ratio,
        "target": None if target is None else f"≤ {target:g}",
        "met": None if target is None else ratio <= target,
        "runs": runs,
        "note": note,
    }
