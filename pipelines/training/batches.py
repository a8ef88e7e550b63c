"""Which rows make a mini-batch? All rows once an epoch, in an order that is a pure function of the seed.

In each epoch a lane visits its blocks in a new order, and each block's rows in a new order. A step takes the same share
of every lane, so that all lanes end an epoch together, whatever their sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from pipelines.data.order import epoch_order, permutation
from pipelines.training.blocks import Block, Buffer, DenseBlock, SparseBlock, Stored


class LaneStream:
    """A lane's rows in the order of an epoch, one shuffled block in memory at a time.

    Parameters
    ----------
    lane : int
    blocks : sequence of Stored
    seed : int
    """

    def __init__(self, lane: int, blocks: Sequence[Stored], seed: int) -> None:
        self._lane, self._blocks, self._seed = lane, blocks, seed
        self.rows = sum(block.rows for block in blocks)
        self._epoch = -1
        self._order = np.empty(0, np.int64)
        self._ends = np.empty(0, np.int64)
        self._place = -1
        self._shuffled: Block | None = None
        self._buffer = Buffer()

    def take(self, epoch: int, step: int, steps: int) -> Iterator[Block]:
        """Yield the rows of one step of `steps` of an epoch, as parts of shuffled blocks."""
        for block, start, stop in self.parts(epoch, step, steps):
            yield _cut(block, start, stop)

    def parts(self, epoch: int, step: int, steps: int) -> Iterator[tuple[Block, int, int]]:
        """Yield what `take` does as shuffled blocks, and which of their rows."""
        start, stop = self.rows * step // steps, self.rows * (step + 1) // steps
        self._begin(epoch)
        while start < stop:
            place = int(np.searchsorted(self._ends, start, side="right"))
            first = int(self._ends[place - 1]) if place else 0
            end = min(stop, int(self._ends[place]))
            yield self._at(place), start - first, end - first
            start = end

    def _begin(self, epoch: int) -> None:
        if epoch != self._epoch:
            self._epoch, self._place, self._shuffled = epoch, -1, None
            self._order = epoch_order(self._seed, epoch, self._lane, len(self._blocks))
            self._ends = np.cumsum([self._blocks[int(number)].rows for number in self._order])

    def _at(self, place: int) -> Block:
        if place != self._place or self._shuffled is None:
            number = int(self._order[place])
            block = self._blocks[number].fetch(self._buffer)
            self._shuffled = _permuted(
                block, permutation(block.rows, "rows", self._seed, self._epoch, self._lane, number)
            )
            self._place = place
        return self._shuffled


def _permuted(block: Block, order: np.ndarray) -> Block:
    weight = None if block.weight is None else block.weight[order]
    if isinstance(block, SparseBlock):
        return SparseBlock(block.X[order], block.y[order], weight)
    return DenseBlock(np.take(block.X, order, axis=1), block.y[order], weight)


def _cut(block: Block, start: int, stop: int) -> Block:
    weight = None if block.weight is None else block.weight[start:stop]
    if isinstance(block, SparseBlock):
        return SparseBlock(block.X[start:stop], block.y[start:stop], weight)
    return DenseBlock(block.X[:, start:stop], block.y[start:stop], weight)
