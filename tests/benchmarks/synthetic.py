"""A large dataset for benchmarks: float32 features and a binary label that hangs on them, as Parquet files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROW_GROUP_ROWS = 262_144
ROW_GROUPS_PER_FILE = 4


def make(path: str | Path, rows: int = 5_000_000, features: int = 28, seed: int = 7) -> str:
    """Write the dataset into a folder, unless it is there already.

    Columns ``f00``, ``f01``, … float32, standard normal, without dictionaries; ``label`` int8, 1 with the
    probability of a logistic model whose weights fall off from feature to feature.

    Parameters
    ----------
    path : str or Path
        Folder to keep such datasets in; this one gets a folder of its own there.
    rows, features, seed : int

    Returns
    -------
    str
        The dataset's folder.
    """
    folder = Path(path) / f"synthetic-{rows}x{features}-{seed}"
    done = folder / "_SUCCESS"
    if done.exists():
        return str(folder)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    names = [f"f{i:02d}" for i in range(features)]
    schema = pa.schema([*((name, pa.float32()) for name in names), ("label", pa.int8())])
    for start in range(0, rows, ROW_GROUP_ROWS * ROW_GROUPS_PER_FILE):
        number = start // (ROW_GROUP_ROWS * ROW_GROUPS_PER_FILE)
        stop = min(rows, start + ROW_GROUP_ROWS * ROW_GROUPS_PER_FILE)
        # Noise has no use for dictionaries; everything else as pyarrow does it by default (snappy).
        with pq.ParquetWriter(folder / f"part-{number:05d}.parquet", schema, use_dictionary=["label"]) as writer:
            for first in range(start, stop, ROW_GROUP_ROWS):
                count = min(stop, first + ROW_GROUP_ROWS) - first
                writer.write_table(block(first, count, features, seed, schema), row_group_size=ROW_GROUP_ROWS)
    done.write_text(json.dumps({"rows": rows, "features": features, "seed": seed}))
    return str(folder)


def weights(features: int) -> np.ndarray:
    """The true weights of the labels' logistic model."""
    return np.array([(-1) ** i * 1.2 / (1 + i) for i in range(features)])


def block(first: int, count: int, features: int, seed: int, schema: pa.Schema) -> pa.Table:
    """Make the rows ``first : first + count``; `first` is a multiple of `ROW_GROUP_ROWS`."""
    generator = np.random.default_rng([seed, first])
    columns = generator.standard_normal((features, count), dtype=np.float32)
    odds = weights(features).astype(np.float32) @ columns - 0.3
    label = (generator.random(count, dtype=np.float32) < 1 / (1 + np.exp(-odds))).astype(np.int8)
    return pa.table([*columns, label], schema=schema)
