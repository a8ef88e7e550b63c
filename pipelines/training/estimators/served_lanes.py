"""Which batch comes next? A rank's lanes in turn, each from where it stopped, as far as the epochs go."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_matrix, vstack

from pipelines.errors import DataError
from pipelines.training.batches import LaneStream
from pipelines.training.blocks import Block, Buffer, SparseBlock, Stored
from pipelines.training.gang.context import Array


def count_batches(rows: int, batch_rows: int) -> int:
    """Count a lane's batches in an epoch, of about equal size."""
    return -(-rows // batch_rows)


@dataclass(frozen=True, eq=False)
class LaneBatch:
    """A batch of a lane; `number` counts over all epochs, `batches` are those of one."""

    lane: int
    number: int
    batches: int
    block: SparseBlock


def batches(
    lanes: Mapping[int, Sequence[Stored]],
    positions: Mapping[int, tuple[int, Sequence[int]]],
    *,
    batch_rows: int,
    epochs: int,
    seed: int,
    class_weight: Array | None = None,
) -> Iterator[LaneBatch]:
    """Yield a rank's batches: one of every lane in turn, each lane's rows once an epoch in `LaneStream`'s order.

    Parameters
    ----------
    lanes : mapping of int to sequence of Stored
    positions : mapping of int to (int, sequence of int)
        Of each lane the first batch that is to be done, and those behind it that are done.
    batch_rows, epochs, seed : int
    class_weight : ndarray, shape (classes,), optional
        Times the rows' weights, by their class.
    """
    streams = {lane: LaneStream(lane, blocks, seed) for lane, blocks in lanes.items()}
    counts = {lane: count_batches(stream.rows, batch_rows) for lane, stream in streams.items()}
    at = {lane: positions[lane][0] for lane in streams}
    done = {lane: set(positions[lane][1]) for lane in streams}
    while going := [lane for lane in streams if at[lane] < epochs * counts[lane]]:
        # The lane that is furthest behind, so that all are in the same epoch, also when some came from another rank.
        for lane in _behind(going, at, counts):
            number, at[lane] = at[lane], at[lane] + 1
            if number not in done[lane]:
                epoch, step = divmod(number, counts[lane])
                block = _joined(list(streams[lane].take(epoch, step, counts[lane])))
                yield LaneBatch(lane, number, counts[lane], _weighted(block, class_weight))


def _behind(going: Sequence[int], at: Mapping[int, int], counts: Mapping[int, int]) -> list[int]:
    """Return the lanes of the earliest epoch."""
    first = min(at[lane] // counts[lane] for lane in going)
    return [lane for lane in going if at[lane] // counts[lane] == first]


def _joined(parts: Sequence[Block]) -> SparseBlock:
    found = [part if isinstance(part, SparseBlock) else _sparse(part) for part in parts]
    if len(found) == 1:
        return found[0]
    weights = [part.weight for part in found if part.weight is not None]
    return SparseBlock(
        vstack([part.X for part in found], format="csr"),
        np.concatenate([part.y for part in found]),
        np.concatenate(weights) if weights else None,
    )


def _sparse(block: Block) -> SparseBlock:
    return SparseBlock(csr_matrix(np.ascontiguousarray(block.X.T)), block.y, block.weight)


def _weighted(block: SparseBlock, class_weight: Array | None) -> SparseBlock:
    if class_weight is None:
        return block
    factors = class_weight[block.y.astype(np.intp)].astype(np.float32)
    return SparseBlock(block.X, block.y, factors if block.weight is None else factors * block.weight)


def measure_labels(blocks: Sequence[Stored], features: int, classes: int, labels: int = 1) -> Array:
    """Sum what `Moments` needs of one lane but for the features, whose sums would be as large as the model.

    Raises
    ------
    DataError
        A feature is missing or not finite.
    """
    total = np.zeros(2 + 2 * labels + classes)
    buffer = Buffer()
    for stored in blocks:
        block = stored.fetch(buffer)
        values = block.X.data if isinstance(block, SparseBlock) else block.X
        if not np.isfinite(values).all():
            raise DataError(
                "features are missing or not finite in training rows",
                expected="finite numbers: linear models know no missing values",
                remedy="Set impute: mean (or median, most_frequent, a constant) for their columns.",
            )
        y = block.y.astype(np.float64).reshape(len(block.y), labels)
        weight = np.ones(len(y)) if block.weight is None else block.weight.astype(np.float64)
        codes = block.y.astype(np.intp) if classes else np.empty(0, np.intp)
        shares = np.bincount(codes, weights=weight if classes else None, minlength=classes)
        total += np.concatenate([np.array([len(y), weight.sum()]), weight @ y, weight @ (y * y), shares])
    return total
