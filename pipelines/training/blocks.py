"""How does a rank hold its lanes' rows? In aligned blocks that fit the cache, in memory or, beyond its share, on disk.

A dense block is column-major: one contiguous run of `rows` values per feature. So a batch is transformed straight into
its place, and a pass over a block reads every byte once, while score, residual and transposed product are computed from
the cache. How many rows a block has hangs on the number of features only: the arithmetic does not change with the
number of ranks, with threads, or with where the block is kept.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from scipy.sparse import csr_matrix

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
    y : ndarray of float32, shape (rows,), or (rows, labels) where there are several
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
            self._space = aligned(size)
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
class Piece:
    """Where an array lies in a space of bytes."""

    offset: int
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class OnDisk:
    """A block in a file: its arrays one behind the other."""

    descriptor: int
    offset: int
    size: int
    pieces: tuple[Piece, ...]
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
        return _assemble([view(space, piece) for piece in self.pieces], self.rows, self.features)


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
            self._slab = aligned(max(_SLAB_BYTES, size))
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
            copies.append(view(space, Piece(start, array.dtype.str, array.shape)))
            copies[-1][...] = array
            start += align(array.nbytes)
        return Resident(_assemble(copies, block.rows, _features(block)))

    def release(self, blocks: Sequence[Stored]) -> None:
        """Forget blocks: there is room for others in memory, whose pages go back with the slabs that they share."""
        for stored in blocks:
            if isinstance(stored, Resident):
                self.memory_bytes -= sum(align(array.nbytes) for array in _arrays(stored.block))

    def _spill(self, arrays: list[Array], block: Block) -> OnDisk:
        if self._descriptor is None:
            self._descriptor = _nameless_file(self._folder)
        begin, pieces = self.disk_bytes, []
        for array in arrays:
            pieces.append(Piece(self.disk_bytes - begin, array.dtype.str, array.shape))
            data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
            _write(self._descriptor, data, self.disk_bytes, self._folder)
            self.disk_bytes += align(array.nbytes)
        size = pieces[-1].offset + arrays[-1].nbytes
        return OnDisk(self._descriptor, begin, size, tuple(pieces), block.rows, _features(block))


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


def aligned(size: int) -> Array:
    """Allocate aligned space (uint8), not initialised."""
    space = np.empty(size + ALIGN, np.uint8)
    start = -space.ctypes.data % ALIGN
    return space[start : start + size]


def view(space: Array, piece: Piece) -> Array:
    """See a piece of a space as the array that it is."""
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
