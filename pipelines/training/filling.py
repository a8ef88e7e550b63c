"""How do batches become blocks? A lane's rows are written once, to where they stay."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy.sparse import vstack

from pipelines.training.blocks import (
    BLOCK_VALUES,
    BlockStore,
    DenseBlock,
    Piece,
    Resident,
    SparseBlock,
    Stored,
    align,
    aligned,
    block_rows,
    view,
)
from pipelines.training.gang.context import Array


class DenseFiller:
    """Collects a lane's rows into dense blocks, in place where there is room in memory.

    Use ``space(n)`` for where the next rows' values go (at most `room`), then ``added(y, weight)``. A block has `rows`
    rows, as many as fit the cache by default.
    """

    def __init__(
        self, store: BlockStore, features: int, weighted: bool, labels: int = 1, rows: int | None = None
    ) -> None:
        self._store, self._features, self._weighted, self._labels = store, features, weighted, labels
        self._rows = rows or block_rows(features)
        self._staging: DenseBlock | None = None
        self._filled = 0
        self._in_place = False
        self._open = self._begin()
        self.blocks: list[Stored] = []

    @property
    def room(self) -> int:
        """Rows that the open block still takes; never 0."""
        return self._rows - self._filled

    def space(self, rows: int) -> Array:
        """Where the next `rows` rows go: float32, shape (rows, features), columns contiguous."""
        return self._open.X[:, self._filled : self._filled + rows].T

    def added(self, y: Array, weight: Array | None) -> None:
        """Note that the space for ``len(y)`` rows was filled."""
        stop = self._filled + len(y)
        self._open.y[self._filled : stop] = y
        if self._open.weight is not None:
            self._open.weight[self._filled : stop] = 1.0 if weight is None else weight
        self._filled = stop
        if not self.room:
            self._full()

    def finish(self) -> None:
        """Keep the last block, cut to its rows. Nothing may be added afterwards."""
        n = self._filled
        if n:
            weight = None if self._open.weight is None else self._open.weight[:n]
            last = DenseBlock(self._open.X[:, :n], self._open.y[:n], weight)
            if self._in_place:
                # The copy takes the place of what was reserved; only the last slab's tail stays unused.
                self._store.memory_bytes -= self._size
            self.blocks.append(self._store.keep(last))

    @property
    def _size(self) -> int:
        return align(self._features * self._rows * 4) + (self._labels + self._weighted) * align(self._rows * 4)

    def _begin(self) -> DenseBlock:
        space = self._store.reserve(self._size)
        self._in_place = space is not None
        if space is None:
            if self._staging is None:
                self._staging = self._cut(aligned(self._size))
            return self._staging
        return self._cut(space)

    def _cut(self, space: Array) -> DenseBlock:
        n, width = self._rows, self._features
        start = align(width * n * 4)
        X = view(space, Piece(0, "<f4", (width, n)))
        y = view(space, Piece(start, "<f4", (n,) if self._labels == 1 else (n, self._labels)))
        after = start + self._labels * align(n * 4)
        return DenseBlock(X, y, view(space, Piece(after, "<f4", (n,))) if self._weighted else None)

    def _full(self) -> None:
        self.blocks.append(Resident(self._open) if self._in_place else self._store.keep(self._open))
        self._filled = 0
        self._open = self._begin()


class SparseFiller:
    """Collects a lane's rows in CSR form into blocks of about `BLOCK_VALUES` stored values."""

    def __init__(self, store: BlockStore) -> None:
        self._store = store
        self._held: list[tuple[Any, Array, Array | None]] = []
        self._values = 0
        self.blocks: list[Stored] = []

    def add(self, X: Any, y: Array, weight: Array | None) -> None:
        """Take in a batch's rows."""
        self._held.append((X, y, weight))
        self._values += X.nnz
        if self._values >= BLOCK_VALUES:
            self.finish()

    def finish(self) -> None:
        """Keep what was taken in."""
        if not self._held:
            return
        X = vstack([each[0] for each in self._held], format="csr") if len(self._held) > 1 else self._held[0][0]
        y = np.concatenate([each[1] for each in self._held])
        weights = [each[2] for each in self._held if each[2] is not None]
        for block in sparse_blocks(X, y, np.concatenate(weights) if weights else None):
            self.blocks.append(self._store.keep(block))
        self._held, self._values = [], 0


def sparse_blocks(X: Any, y: Array, weight: Array | None) -> Iterator[SparseBlock]:
    """Cut rows in CSR form into blocks of about `BLOCK_VALUES` stored values."""
    start = 0
    while start < len(y):
        stop = int(np.searchsorted(X.indptr, X.indptr[start] + BLOCK_VALUES, side="right")) - 1
        stop = min(max(stop, start + 1), len(y))
        cut = weight[start:stop] if weight is not None else None
        yield SparseBlock(X[start:stop], y[start:stop], cut)
        start = stop
