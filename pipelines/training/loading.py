"""A rank's lanes out of its shards: transformed in place, within the rank's memory, and measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import psutil
import pyarrow as pa

from pipelines.data.shards import Shard
from pipelines.errors import DataError, TrainingError
from pipelines.training.blocks import Block, BlockStore, Buffer, SparseBlock, Stored, block_rows
from pipelines.training.compressed import Compressed
from pipelines.training.data import MAX_BYTES_IN_FLIGHT, TrainingData, read_labelled
from pipelines.training.filling import DenseFiller, SparseFiller
from pipelines.training.gang.context import Array

_READING_BYTES = 64 << 20
"""What decoding and transforming took beyond twice the bytes in flight, seen with 28 float columns, and a margin."""
_LEAST_FREE_BYTES = 96 << 20


@dataclass(frozen=True)
class Room:
    """How a rank's memory is shared out: blocks that stay in memory, and bytes in flight while reading."""

    blocks_bytes: int | None
    in_flight_bytes: int


def plan_room(memory_bytes: int | None, held_bytes: int, features: int, threads: int) -> Room:
    """Share out what a rank may use beyond what it holds already.

    Raises
    ------
    TrainingError
        There is not even enough to read with.
    """
    if memory_bytes is None:
        return Room(None, MAX_BYTES_IN_FLIGHT)
    free = memory_bytes - held_bytes
    if free < _LEAST_FREE_BYTES:
        raise TrainingError(
            "a worker's memory is too small for a rank",
            expected=f"at least {_LEAST_FREE_BYTES >> 20} MiB beyond what the processes hold",
            found=f"{max(free, 0) >> 20} MiB of {memory_bytes >> 20} MiB",
            remedy="Give the workers more memory.",
        )
    # Decoding holds a batch beside what is in flight; passes hold a block on disk and in float64 for each thread.
    in_flight = min(MAX_BYTES_IN_FLIGHT, free // 8)
    per_thread = 4 * block_rows(features) * max(features, 1) * 4
    blocks = free - 2 * in_flight - threads * per_thread - _READING_BYTES
    return Room(max(blocks, 0), in_flight)


def load_lane(
    data: TrainingData,
    shards: Sequence[Shard],
    store: BlockStore,
    in_flight_bytes: int,
    *,
    threads: int,
    on_rows: Callable[[int], None],
) -> list[Stored]:
    """Read the training rows of a lane's shards into blocks.

    Parameters
    ----------
    on_rows : callable
        Called with the number of rows so far, after every batch.
    """
    rows = 0
    filler = _Sparse(data, store) if data.features.sparse else _Dense(data, store)
    reads = read_labelled(data, shards, "train", max_bytes_in_flight=in_flight_bytes, threads=threads)
    with closing(reads):
        for each in reads:
            filler.add(each.batch, each.y, each.weight)
            rows += each.batch.num_rows
            on_rows(rows)
    return filler.finish()


class _Dense:
    """Batches into dense blocks, each value written once, to where it stays."""

    def __init__(self, data: TrainingData, store: BlockStore) -> None:
        self._features = data.features
        self._filler = DenseFiller(store, len(data.features.names), data.sample_weight is not None, data.labels)

    def add(self, batch: pa.RecordBatch, y: Array, weight: Array | None) -> None:
        start = 0
        while start < batch.num_rows:
            count = min(self._filler.room, batch.num_rows - start)
            stop = start + count
            self._features.transform(batch.slice(start, count), out=self._filler.space(count))
            self._filler.added(y[start:stop], None if weight is None else weight[start:stop])
            start = stop

    def finish(self) -> list[Stored]:
        self._filler.finish()
        return self._filler.blocks


class _Sparse:
    """Batches into sparse blocks."""

    def __init__(self, data: TrainingData, store: BlockStore) -> None:
        self._features, self._filler = data.features, SparseFiller(store)

    def add(self, batch: pa.RecordBatch, y: Array, weight: Array | None) -> None:
        self._filler.add(self._features.transform(batch), y, weight)

    def finish(self) -> list[Stored]:
        self._filler.finish()
        return self._filler.blocks


@dataclass(frozen=True, eq=False)
class Moments:
    """What was seen of the training rows.

    Parameters
    ----------
    rows : int
    weight : float
        Sum of the sample weights.
    y, y2 : ndarray of float64, shape (labels,)
        Weighted sums of the encoded labels and of their squares.
    classes : ndarray of float64, shape (classes,)
        Weight of each class; empty for regression.
    x, x2 : ndarray of float64, shape (features,)
        Weighted sums of the features and of their squares.
    """

    rows: int
    weight: float
    y: Array
    y2: Array
    classes: Array
    x: Array
    x2: Array

    @classmethod
    def of(cls, vector: Array, classes: int, labels: int = 1) -> Moments:
        """Read them off the sum of `measure`'s vectors."""
        ends = np.cumsum([2, labels, labels, classes])
        head, y, y2, shares, sums = np.split(vector, ends)
        half = len(sums) // 2
        return cls(int(head[0]), float(head[1]), y, y2, shares, sums[:half], sums[half:])

    @property
    def std(self) -> Array:
        """Weighted standard deviations of the features, shape (features,)."""
        mean = self.x / max(self.weight, 1e-300)
        return np.sqrt(np.maximum(self.x2 / max(self.weight, 1e-300) - mean**2, 0))


def moments_size(features: int, classes: int, labels: int = 1) -> int:
    """Length of `measure`'s vectors."""
    return 2 + 2 * labels + classes + 2 * features


def measure(blocks: Sequence[Stored], features: int, classes: int, labels: int = 1) -> Array:
    """Sum what `Moments` needs over one lane's blocks; a vector that can be added up."""
    total: Array = np.zeros(moments_size(features, classes, labels))
    head, x, x2 = np.split(total, [len(total) - 2 * features, len(total) - features])
    buffer = Buffer()
    for stored in blocks:
        block = stored.fetch(buffer)
        y = block.y.astype(np.float64).reshape(len(block.y), labels)
        weight = np.ones(len(y)) if block.weight is None else block.weight.astype(np.float64)
        codes = block.y.astype(np.intp) if classes else np.empty(0, np.intp)
        shares = np.bincount(codes, weights=weight if classes else None, minlength=classes)
        head += np.concatenate([np.array([len(y), weight.sum()]), weight @ y, weight @ (y * y), shares])
        _add_features(block, weight, x, x2)
    return total


def _add_features(block: Block, weight: Array, x: Array, x2: Array) -> None:
    if isinstance(block, SparseBlock):
        X = Compressed(block.X)
        X.add_transposed(weight, x)
        np.square(X.values, out=X.values)
        X.add_transposed(weight, x2)
        return
    values = block.X.astype(np.float64)
    x += values @ weight
    x2 += np.square(values, out=values) @ weight


def check_finite(moments: Moments, names: Sequence[str]) -> None:
    """Refuse features that hold NaN or infinities, with their names.

    Raises
    ------
    DataError
    """
    bad = np.flatnonzero(~np.isfinite(moments.x2))
    if len(bad):
        listed = ", ".join(names[place] for place in bad[:5]) + (" …" if len(bad) > 5 else "")
        raise DataError(
            "features are missing or not finite in training rows",
            on=f"feature {listed}",
            expected="finite numbers: linear models know no missing values",
            remedy="Set impute: mean (or median, most_frequent, a constant) for these columns.",
        )


def own_rss_bytes() -> int:
    """Resident bytes of this process."""
    return int(psutil.Process().memory_info().rss)
