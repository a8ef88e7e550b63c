"""What is computed in one pass over a rank's rows: per lane, block by block, while the block is in the cache.

Threads take whole lanes, and a lane's blocks are added in their order, so that results do not depend on the number of
threads; BLAS itself runs on one. Sums over blocks are in float64 always. A *fine* pass computes in float64 throughout
(from float32 data); a coarse one computes each block in float32, which is twice as fast and wrong by about 1e-7 of the
gradient's scale.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from pipelines.training.batches import LaneStream
from pipelines.training.blocks import Block, Buffer, DenseBlock, SparseBlock, Stored
from pipelines.training.compressed import Compressed
from pipelines.training.gang.context import Array
from pipelines.training.objectives import Loss, Sharpening

HEAD = 2
"""A gradient pass's vector begins with the sum of the losses and the sum of the weights."""


class Workspace:
    """One thread's memory for one block."""

    def __init__(self) -> None:
        self.disk, self.double = Buffer(), Buffer()

    def doubled(self, X: Array) -> Array:
        """Return a block's values in float64, in space that is used again."""
        space = self.double.take(X.size * 8).view(np.float64).reshape(X.shape)
        np.copyto(space, X)
        return space


class Passes:
    """A rank's lanes, ready to be computed on.

    Parameters
    ----------
    lanes : mapping of int to sequence of Stored
        Blocks by lane number, in the order of lanes.
    features : int
    loss : Loss
    class_weight : ndarray of float64, shape (classes,), optional
        Multiplies the weights of rows, by their encoded label.
    threads : int
    look : callable
        Called before each lane, and by who takes many steps in one pass; what it raises ends the pass.
    """

    def __init__(
        self,
        lanes: Mapping[int, Sequence[Stored]],
        features: int,
        loss: Loss,
        *,
        class_weight: Array | None = None,
        threads: int = 1,
        look: Callable[[], object] = bool,
    ) -> None:
        self.look = look
        self.lanes, self.features, self.loss, self._class_weight = dict(lanes), features, loss, class_weight
        self._threads = max(1, min(threads, len(self.lanes)))
        self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="pass") if self._threads > 1 else None
        self._spaces = [Workspace() for _ in range(self._threads)]

    @property
    def size(self) -> int:
        """Weights of all outputs, intercepts included."""
        return self.loss.outputs * (self.features + 1)

    def gradient(self, weights: Array, *, fine: bool = True, stride: int = 1) -> Array:
        """Sum losses, weights and the losses' gradients, lane by lane.

        Parameters
        ----------
        weights : ndarray of float64, shape (outputs, features + 1)
            The last column is the intercept.
        fine : bool
            In float64 throughout.
        stride : int
            Take every `stride`-th block only.

        Returns
        -------
        ndarray of float64, shape (lanes, HEAD + outputs · (features + 1))
        """

        def add(block: Block, space: Workspace, total: Array) -> None:
            weight = self._weight(block.y, block.weight)
            self._add_gradient(as_matrix(block, space, fine), block.y, weight, weights, total)

        return self._over_lanes(add, HEAD + self.size, stride)

    def hessian(self, weights: Array, *, fine: bool = True, stride: int = 1) -> Array:
        """Sum weights and the losses' second derivatives, lane by lane, each output for itself.

        Returns
        -------
        ndarray of float64, shape (lanes, HEAD + outputs · (features + 1)(features + 2)/2)
            The first element is unused; after the head come the outputs' lower triangles, row by row.
        """
        width, outputs = self.features + 1, self.loss.outputs

        def add(block: Block, space: Workspace, total: Array) -> None:
            weight = self._weight(block.y, block.weight)
            X = as_matrix(block, space, fine)
            d = self.loss.curvature(scores_of(X, weights), block.y, weight)
            total[1] += total_weight(block.y, weight)
            for one, square in zip(d, total[HEAD:].reshape(outputs, width, width), strict=True):
                _add_gram(X, one, square)

        whole = self._over_lanes(add, HEAD + outputs * width**2, stride)
        squares = whole[:, HEAD:].reshape(len(whole), outputs, width**2)[:, :, lower_triangle(width)]
        return np.concatenate([whole[:, :HEAD], squares.reshape(len(whole), -1)], axis=1)

    def batch(self, weights: Array, streams: Mapping[int, LaneStream], epoch: int, step: int, steps: int) -> Array:
        """Do `gradient`'s work for one mini-batch, coarsely: a share of every lane.

        Parameters
        ----------
        streams : mapping of int to LaneStream
            By lane number, for all lanes.
        """
        totals = np.zeros((len(self.lanes), HEAD + self.size))

        def work(at: int, number: int, space: Workspace) -> None:
            self.part(weights, streams[number], epoch, step, steps, totals[at])

        self._share(work)
        return totals

    def part(self, weights: Array, stream: LaneStream, epoch: int, step: int, steps: int, total: Array) -> None:
        """Add one lane's part of a mini-batch to `total`, shape (HEAD + outputs · (features + 1),)."""
        for X, y, weight in self._parts(stream, epoch, step, steps):
            self._add_gradient(X, y, weight, weights, total)

    def step(self, weights: Array, stream: LaneStream, epoch: int, step: int, steps: int, rate: float) -> Array:
        """Take one step of plain descent along one lane's part of a sparse mini-batch, in place.

        Only the weights of the rows' own features, and the intercepts, are read and written.

        Parameters
        ----------
        weights : ndarray of float64, shape (outputs, features + 1)
        rate : float
            The step size, for the mean of the losses.

        Returns
        -------
        ndarray of float64, shape (HEAD,)
            Sums of the losses and of the weights of rows.
        """
        head, taken = np.zeros(HEAD), []
        for X, y, weight in self._parts(stream, epoch, step, steps):
            loss, residuals = self.loss.evaluate(scores_of(X, weights), y, weight)
            head += loss, total_weight(y, weight)
            taken.append((X, residuals))
        for X, residuals in taken:
            pull_back(X, residuals * (-rate / max(head[1], 1e-300)), weights)
        return head

    def each(self, streams: Mapping[int, LaneStream], size: int, work: Callable[[LaneStream, Array], object]) -> Array:
        """Let every lane work for itself, in parallel: ``work(stream, total)`` fills the lane's vector.

        Returns
        -------
        ndarray of float64, shape (lanes, size)
        """
        totals = np.zeros((len(self.lanes), size))

        def one(at: int, number: int, space: Workspace) -> None:
            work(streams[number], totals[at])

        self._share(one)
        return totals

    def sharpen(self, width: float) -> None:
        """Compute with a loss's kink smoothed so far from now on; nothing for losses without one."""
        if isinstance(self.loss, Sharpening):
            self.loss = self.loss.sharpened(width)

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown()

    def _parts(
        self, stream: LaneStream, epoch: int, step: int, steps: int
    ) -> Iterator[tuple[Array | Compressed, Array, Array | None]]:
        """Yield one lane's part of a mini-batch: rows, labels and weights."""
        for block, start, stop in stream.parts(epoch, step, steps):
            sparse = isinstance(block, SparseBlock)
            X = Compressed(block.X, start, stop) if sparse else block.X[:, start:stop]
            y, weight = block.y[start:stop], None if block.weight is None else block.weight[start:stop]
            yield X, y, self._weight(y, weight)

    def _weight(self, y: Array, weight: Array | None) -> Array | None:
        if self._class_weight is None:
            return weight
        factor = self._class_weight[y.astype(np.intp)]
        return factor if weight is None else factor * weight

    def _add_gradient(
        self, X: Array | Compressed, y: Array, weight: Array | None, weights: Array, total: Array
    ) -> None:
        loss, residuals = self.loss.evaluate(scores_of(X, weights), y, weight)
        total[:HEAD] += loss, total_weight(y, weight)
        pull_back(X, residuals, total[HEAD:].reshape(weights.shape))

    def _over_lanes(self, add: Callable[[Block, Workspace, Array], None], size: int, stride: int) -> Array:
        totals = np.zeros((len(self.lanes), size))

        def work(at: int, number: int, space: Workspace) -> None:
            for stored in self.lanes[number][-7 * number % stride :: stride]:
                add(stored.fetch(space.disk), space, totals[at])

        self._share(work)
        return totals

    def _share(self, work: Callable[[int, int, Workspace], object]) -> None:
        """Call ``work(place, lane number, workspace)`` for every lane, in parallel."""
        numbers = list(self.lanes)

        def some(thread: int) -> None:
            for at in range(thread, len(numbers), self._threads):
                self.look()
                work(at, numbers[at], self._spaces[thread])

        if self._pool is None:
            some(0)
        else:
            list(self._pool.map(some, range(self._threads)))


def lower_triangle(size: int) -> Array:
    """Places of a square matrix's lower triangle among its elements, row by row."""
    rows, columns = np.tril_indices(size)
    return rows * size + columns


def total_weight(y: Array, weight: Array | None) -> float:
    """Sum the weights of rows."""
    return float(len(y)) if weight is None else float(weight.sum(dtype=np.float64))


def as_matrix(block: Block, space: Workspace, fine: bool) -> Array | Compressed:
    """Bring a block's values into the form that is computed with."""
    if isinstance(block, SparseBlock):
        return Compressed(block.X)
    assert isinstance(block, DenseBlock)
    return space.doubled(block.X) if fine else block.X


def scores_of(X: Array | Compressed, weights: Array) -> Array:
    """Scores of all rows, shape (outputs, rows)."""
    if isinstance(X, Compressed):
        scores = np.repeat(weights[:, -1:], X.rows, axis=1)
        for row, own in zip(weights, scores, strict=True):
            X.add_product(np.ascontiguousarray(row[:-1]), own)
        return scores
    inner = weights[:, :-1].astype(X.dtype, copy=False)
    found: Array = inner @ X
    found += weights[:, -1:].astype(X.dtype, copy=False)
    return found


def pull_back(X: Array | Compressed, residuals: Array, gradient: Array) -> None:
    """Add the residuals times the rows to `gradient`, shape (outputs, features + 1)."""
    if isinstance(X, Compressed):
        for row, own in zip(residuals, gradient, strict=True):
            X.add_transposed(np.ascontiguousarray(row, dtype=np.float64), own[:-1])
    else:
        gradient[:, :-1] += residuals @ X.T
    gradient[:, -1] += residuals.sum(axis=1, dtype=np.float64)


def _add_gram(X: Array | Compressed, d: Array, total: Array) -> None:
    """Add the rows' outer products, weighted with `d` and bordered by the intercept, to `total`."""
    if isinstance(X, Compressed):
        scaled = X.scaled(d)
        total[:-1, :-1] += (X.matrix().T @ scaled).toarray()
        total[-1, :-1] += np.asarray(scaled.sum(axis=0)).ravel()
    else:
        d = d.astype(X.dtype, copy=False)
        scaled = X * np.sqrt(d)
        total[:-1, :-1] += scaled @ scaled.T
        total[-1, :-1] += X @ d
    total[-1, -1] += d.sum(dtype=np.float64)
