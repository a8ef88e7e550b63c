"""How does a rank hold its lanes' rows? In aligned blocks that fit the cache, in memory or, beyond its share, on disk.

A dense block is column-major: one contiguous run of `rows` values per feature. So a batch is transformed straight into
its place, and a pass over a block reads every byte once, while score, residual and transposed product are computed from
the cache. How many rows a block has hangs on the number of features only: the arithmetic does not change with the
number of ranks, with threads, or with where the block is kept.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from scipy.sparse import csr_matrix, vstack

from pipelines.errors import StorageError
from pipelines.training.gang.context import Array

BLOCK_VALUES = 1 << 18
"""Values of a block, 1 MiB of float32: below it Python's share of a pass grows, above it the cache is left."""
ALIGN = 64
_SLAB_BYTES = 32 << 20


def block_rows(features: int) -> int:
    """Rows of a dense block: a multiple of 64, at least 64."""
    return min(max(BLOCK_VALUES // max(features, 1) // 64 * 64, 64), 1 << 16)


def align(count: int) -> int:
    """Round up to the alignment of blocks."""
    return -(-count // ALIGN) * ALIGN


@dataclass(frozen=True, eq=False)
class DenseBlock:
    """Rows of one lane.

    X : ndarray of float32, shape (features, rows), each feature's values contiguous
    y : ndarray of float32, shape (rows,)
    weight : ndarray of float32, shape (rows,), or None
    """

    X: Array
    y: Array
    weight: Array | None

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.y)


@dataclass(frozen=True, eq=False)
class SparseBlock:
    """Rows of one lane in compressed form (CSR: float32 values, int32 indices).

    X : csr_matrix, shape (rows, features)
    """

    X: Any
    y: Array
    weight: Array | None

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.y)


Block = DenseBlock | SparseBlock


class Buffer:
    """Aligned space of one thread that grows with what is asked for; each request takes the place of the one before."""

    def __init__(self) -> None:
        self._space = np.empty(0, np.uint8)

    def take(self, size: int) -> Array:
        """Return `size` aligned bytes (uint8)."""
        if len(self._space) < size:
            self._space = _aligned(size)
        return self._space[:size]


class Stored(Protocol):
    """A block, wherever it is kept."""

    @property
    def rows(self) -> int: ...

    def fetch(self, buffer: Buffer) -> Block:
        """Bring it into memory; `buffer` may be used for it until the next call with the same one."""
        ...


@dataclass(frozen=True, eq=False)
class Resident:
    """A block in memory."""

    block: Block

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.block.rows

    def fetch(self, buffer: Buffer) -> Block:
        """See `Stored.fetch`: it is there already."""
        return self.block


@dataclass(frozen=True)
class _Piece:
    offset: int
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class OnDisk:
    """A block in a file: its arrays one behind the other."""

    descriptor: int
    offset: int
    size: int
    pieces: tuple[_Piece, ...]
    rows: int
    features: int

    def fetch(self, buffer: Buffer) -> Block:
        """See `Stored.fetch`: read into `buffer`."""
        space = buffer.take(self.size)
        done = 0
        while done < self.size:
            count = os.preadv(self.descriptor, [space[done:].data], self.offset + done)
            if count == 0:
                raise StorageError("the file of spilled rows has lost its end", on="the worker's scratch folder")
            done += count
        return _assemble([_view(space, piece) for piece in self.pieces], self.rows, self.features)


class BlockStore:
    """Keeps blocks: in memory up to a budget, then in a file in the worker's scratch folder.

    The file has no name once it is open, so that it vanishes with the process, whatever happens. Owned by one thread
    while it is filled; afterwards blocks may be fetched from several threads, each with its own buffer.

    Parameters
    ----------
    folder : Path
    budget_bytes : int or None
        What may be kept in memory; None: everything.
    """

    def __init__(self, folder: Path, budget_bytes: int | None) -> None:
        self._folder, self._budget = folder, budget_bytes
        self._descriptor: int | None = None
        self._slab = np.empty(0, np.uint8)
        self.memory_bytes = 0
        self.disk_bytes = 0

    def __enter__(self) -> BlockStore:
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)

    def reserve(self, size: int) -> Array | None:
        """Take aligned space (uint8) for a block that will be filled in place; None when there is no room in memory."""
        if self._budget is not None and self.memory_bytes + size > self._budget:
            return None
        self.memory_bytes += size
        if len(self._slab) < size:  # large allocations get large pages, and few of them
            self._slab = _aligned(max(_SLAB_BYTES, size))
        space, self._slab = self._slab[:size], self._slab[size:]
        return space

    def keep(self, block: Block) -> Stored:
        """Take in a copy of a block."""
        arrays = _arrays(block)
        space = self.reserve(sum(align(array.nbytes) for array in arrays))
        if space is None:
            return self._spill(arrays, block)
        start, copies = 0, []
        for array in arrays:
            copies.append(_view(space, _Piece(start, array.dtype.str, array.shape)))
            copies[-1][...] = array
            start += align(array.nbytes)
        return Resident(_assemble(copies, block.rows, _features(block)))

    def _spill(self, arrays: list[Array], block: Block) -> OnDisk:
        if self._descriptor is None:
            self._descriptor = _nameless_file(self._folder)
        begin, pieces = self.disk_bytes, []
        for array in arrays:
            pieces.append(_Piece(self.disk_bytes - begin, array.dtype.str, array.shape))
            data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
            _write(self._descriptor, data, self.disk_bytes, self._folder)
            self.disk_bytes += align(array.nbytes)
        size = pieces[-1].offset + arrays[-1].nbytes
        return OnDisk(self._descriptor, begin, size, tuple(pieces), block.rows, _features(block))


class DenseFiller:
    """Collects a lane's rows into dense blocks, in place where there is room in memory.

    Use ``space(n)`` for where the next rows' values go (at most `room`), then ``added(y, weight)``.
    """

    def __init__(self, store: BlockStore, features: int, weighted: bool) -> None:
        self._store, self._features, self._weighted = store, features, weighted
        self._rows = block_rows(features)
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
        return align(self._features * self._rows * 4) + (1 + self._weighted) * align(self._rows * 4)

    def _begin(self) -> DenseBlock:
        space = self._store.reserve(self._size)
        self._in_place = space is not None
        if space is None:
            if self._staging is None:
                self._staging = self._cut(_aligned(self._size))
            return self._staging
        return self._cut(space)

    def _cut(self, space: Array) -> DenseBlock:
        n, width = self._rows, self._features
        start = align(width * n * 4)
        vectors = [_view(space, _Piece(start + at * align(n * 4), "<f4", (n,))) for at in range(1 + self._weighted)]
        X = _view(space, _Piece(0, "<f4", (width, n)))
        return DenseBlock(X, vectors[0], vectors[1] if self._weighted else None)

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


def _arrays(block: Block) -> list[Array]:
    weight = [] if block.weight is None else [block.weight]
    if isinstance(block, DenseBlock):
        return [block.X, block.y, *weight]
    X = block.X
    index = np.int32 if X.nnz < 2**31 and X.shape[1] < 2**31 else np.int64
    return [X.data, X.indices.astype(index, copy=False), X.indptr.astype(index, copy=False), block.y, *weight]


def _assemble(arrays: list[Array], rows: int, features: int) -> Block:
    if arrays[0].ndim == 2:
        return DenseBlock(arrays[0], arrays[1], arrays[2] if len(arrays) > 2 else None)
    data, indices, indptr, y = arrays[:4]
    X = csr_matrix((data, indices, indptr), shape=(rows, features), copy=False)
    return SparseBlock(X, y, arrays[4] if len(arrays) > 4 else None)


def _features(block: Block) -> int:
    return int(block.X.shape[1]) if isinstance(block, SparseBlock) else int(block.X.shape[0])


def _aligned(size: int) -> Array:
    space = np.empty(size + ALIGN, np.uint8)
    start = -space.ctypes.data % ALIGN
    return space[start : start + size]


def _view(space: Array, piece: _Piece) -> Array:
    dtype = np.dtype(piece.dtype)
    size = int(np.prod(piece.shape, dtype=np.int64)) * dtype.itemsize
    return space[piece.offset : piece.offset + size].view(dtype).reshape(piece.shape)


def _nameless_file(folder: Path) -> int:
    path = folder / "rows"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    path.unlink()
    return descriptor


def _write(descriptor: int, data: memoryview, offset: int, folder: Path) -> None:
    done = 0
    try:
        while done < len(data):
            done += os.pwrite(descriptor, data[done:], offset + done)
    except OSError as error:
        raise StorageError(
            f"rows that do not fit into memory could not be kept on the worker's disk ({error.strerror})",
            on=str(folder),
            remedy="Free space there, point Dask's local directory at a larger disk, or give the workers more memory.",
        ) from error
