"""Gradients of a model whose columns are spread over ranks: scores are added up, residuals go back to all.

Every rank computes what its column blocks add to the scores of a run of rows. The rows are shared out: each rank adds
up the scores of its share, block by block in the order of the blocks, takes the loss there, and gives everyone the
residuals. That is an all-reduce with the loss in its middle: the bytes are the same, and no rank takes the loss of all
rows. Each block's gradient stays where the block is. Between two ranks of a block each, everyone gets everything
instead and takes the loss itself: as many bytes in one hop; 1 MiB of scores took 6.2 ms, loss and all, against 10.6.

Rows are worked on in pages, chunks (what is exchanged at once: some pages) and tiles (whose losses are taken
together), cut in the same way whoever hosts what; tiles are added up in their order. So neither the number of ranks nor
the dealing of blocks changes a bit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from pipelines.training.batches import LaneStream
from pipelines.training.blocks import Block, Resident, Stored
from pipelines.training.gang import Collective
from pipelines.training.gang.context import Array
from pipelines.training.objectives import Loss, Sharpening
from pipelines.training.passes import Workspace, as_matrix, pull_back, scores_of
from pipelines.training.strategies.model_parallel_space import BlockSpace, in_order

CHUNK_VALUES = 1 << 17
"""Scores that are exchanged at once, at least: 1 MiB, against which the two hops of an exchange are small."""
_TILE_VALUES = 1 << 12
_FEW_BLOCKS = 2
"""Up to so many blocks everyone adds up all rows."""


@dataclass(frozen=True)
class Layout:
    """Where a model's weights are, as one rank sees it.

    A block's weights are a matrix (outputs, width + 1), whose last column are the intercepts; those of all blocks but
    the first are fixed at zero. A rank's vectors hold its blocks' matrices one behind the other.

    Parameters
    ----------
    hosts : tuple of tuple of int
        For each rank its blocks, ascending.
    widths : dict of int to int
        Features of this rank's blocks, in their order.
    outputs : int
    """

    hosts: tuple[tuple[int, ...], ...]
    widths: dict[int, int]
    outputs: int

    @property
    def segments(self) -> dict[int, slice]:
        """Where each of this rank's blocks is in a vector."""
        found, start = {}, 0
        for number, width in self.widths.items():
            stop = start + self.outputs * (width + 1)
            found[number] = slice(start, stop)
            start = stop
        return found

    @property
    def size(self) -> int:
        """Length of this rank's vectors."""
        return sum(self.outputs * (width + 1) for width in self.widths.values())

    def matrix(self, vector: Array, number: int) -> Array:
        """See a block's weights as a matrix."""
        return vector[self.segments[number]].reshape(self.outputs, self.widths[number] + 1)

    def marked(self, *, features: bool) -> Array:
        """Mark features, or else the intercepts of the first block: bool, shape (size,)."""
        found = np.zeros(self.size, bool)
        for number in self.widths:
            if features:
                self.matrix(found, number)[:, :-1] = True
            elif number == 0:
                self.matrix(found, number)[:, -1] = True
        return found


class Summed(NamedTuple):
    """Over some rows: the weighted losses, the weights, and the gradient of the losses in a rank's blocks."""

    loss: float
    weight: float
    gradient: Array


class _Taken(NamedTuple):
    """Of some rows: each tile's loss and weight, shape (tiles, 2), and residuals, shape (outputs, rows)."""

    sums: Array
    residuals: Array


class ScoreExchange:
    """From what each block adds to the scores to the residuals of all. Called by all ranks together.

    Parameters
    ----------
    collective : Collective
    hosts : sequence of sequence of int
        For each rank its blocks.
    loss : Loss
    """

    def __init__(self, collective: Collective, hosts: Sequence[Sequence[int]], loss: Loss) -> None:
        self._collective, self._loss = collective, loss
        self._counts = [len(own) for own in hosts]
        places = [(number, rank, at) for rank, own in enumerate(hosts) for at, number in enumerate(own)]
        self._order = [(rank, at) for _, rank, at in sorted(places)]
        self._tile = max(64, _TILE_VALUES // loss.outputs)
        self._width = 0.0
        self.seconds = 0.0

    @property
    def width(self) -> float:
        """How far a loss's kink is smoothed; says nothing for losses without one. The same on all ranks."""
        return self._width

    @width.setter
    def width(self, width: float) -> None:
        self._width = width
        if isinstance(self._loss, Sharpening):
            self._loss = self._loss.sharpened(width)

    def take(self, partials: Array, y: Array, weight: Array | None) -> _Taken:
        """Add up scores, take the loss.

        Parameters
        ----------
        partials : ndarray, shape (own blocks, outputs, rows)
            Residuals come back in its precision; scores are added in float64.
        y : ndarray, shape (rows,), or (rows, labels) where there are several
        weight : ndarray, shape (rows,), or None
        """
        began = time.perf_counter()
        ranks, rows = self._collective.size, partials.shape[2]
        cuts = [*range(0, rows, self._tile), rows]
        tiles = len(cuts) - 1
        firsts = [tiles * rank // ranks for rank in range(ranks + 1)]
        bounds = [cuts[first] for first in firsts]
        if ranks == 1:
            found = self._losses([partials], cuts, y, weight)
        elif len(self._order) <= _FEW_BLOCKS:
            payloads = self._collective.allgather(partials.tobytes())
            everyones = [np.frombuffer(each, partials.dtype).reshape(-1, *partials.shape[1:]) for each in payloads]
            found = self._losses(everyones, cuts, y, weight)
        else:
            given = [partials[:, :, start:stop].tobytes() for start, stop in pairwise(bounds)]
            taken = self._collective.alltoall(given)
            first, last = firsts[self._collective.rank : self._collective.rank + 2]
            own = slice(cuts[first], cuts[last])
            shape = (self._loss.outputs, own.stop - own.start)
            parts = [
                np.frombuffer(payload, partials.dtype).reshape(count, *shape)
                for payload, count in zip(taken, self._counts, strict=True)
            ]
            inner = [cut - own.start for cut in cuts[first : last + 1]]
            mine = self._losses(parts, inner, y[own], None if weight is None else weight[own])
            found = self._shared(mine, firsts, bounds)
        self.seconds += time.perf_counter() - began
        return found

    def _losses(self, parts: Sequence[Array], cuts: Sequence[int], y: Array, weight: Array | None) -> _Taken:
        """Add the blocks' shares in the blocks' order, and take the loss of each tile."""
        rank, at = self._order[0]
        scores = parts[rank][at].astype(np.float64)
        for rank, at in self._order[1:]:
            scores += parts[rank][at]
        sums = np.empty((len(cuts) - 1, 2))
        residuals = np.empty(scores.shape, parts[0].dtype)
        for tile, (start, stop) in enumerate(pairwise(cuts)):
            own = None if weight is None else weight[start:stop]
            loss, found = self._loss.evaluate(np.ascontiguousarray(scores[:, start:stop]), y[start:stop], own)
            sums[tile] = loss, stop - start if own is None else own.sum(dtype=np.float64)
            residuals[:, start:stop] = found
        return _Taken(sums, residuals)

    def _shared(self, mine: _Taken, firsts: Sequence[int], bounds: Sequence[int]) -> _Taken:
        """Give everyone everyone's."""
        payloads = self._collective.allgather(mine.sums.tobytes() + mine.residuals.tobytes())
        residuals = np.empty((self._loss.outputs, bounds[-1]), mine.residuals.dtype)
        sums = []
        for payload, (first, last), (start, stop) in zip(payloads, pairwise(firsts), pairwise(bounds), strict=True):
            count = 2 * (last - first)
            sums.append(np.frombuffer(payload, np.float64, count).reshape(-1, 2))
            values = np.frombuffer(payload, residuals.dtype, offset=8 * count)
            residuals[:, start:stop] = values.reshape(self._loss.outputs, stop - start)
        return _Taken(np.concatenate(sums), residuals)


class ColumnPasses:
    """A rank's column blocks, ready to be computed on, together with the other ranks.

    Threads take whole blocks, so that their number changes no bit.

    Parameters
    ----------
    layout : Layout
    pages : mapping of int to sequence of Stored
        This rank's blocks, in the order of `layout`; pages have the same rows in all of them.
    exchange : ScoreExchange
    labels : int
        Of each row.
    class_weight : ndarray of float64, shape (classes,), optional
    threads : int
    look : callable
        Called before each chunk; what it raises ends the pass.
    """

    def __init__(
        self,
        layout: Layout,
        pages: Mapping[int, Sequence[Stored]],
        exchange: ScoreExchange,
        *,
        labels: int = 1,
        class_weight: Array | None = None,
        threads: int = 1,
        look: Callable[[], object] = bool,
    ) -> None:
        self._layout, self._pages, self._exchange, self._labels = layout, pages, exchange, labels
        self._class_weight, self._look = class_weight, look
        self._threads = max(1, min(threads, len(pages)))
        self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="pass") if self._threads > 1 else None
        self._spaces = {number: Workspace() for number in pages}
        self.rows = sum(page.rows for page in next(iter(pages.values())))

    def gradient(self, weights: Array, *, fine: bool = True) -> Summed:
        """Go over all rows; in float64 throughout if `fine`, else in float32 but for sums."""
        return self._over(self._pages, weights, fine)

    def batch(
        self, weights: Array, streams: Mapping[int, Sequence[LaneStream]], epoch: int, step: int, steps: int
    ) -> Summed:
        """Go over one mini-batch, coarsely.

        Parameters
        ----------
        streams : mapping of int to sequence of LaneStream
            For each block, over the same rows: a batch takes its share of every stream.
        """
        parts: dict[int, list[Stored]] = {
            number: [Resident(part) for stream in own for part in stream.take(epoch, step, steps)]
            for number, own in streams.items()
        }
        return self._over(parts, weights, fine=False)

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown()

    def _over(self, pages: Mapping[int, Sequence[Stored]], weights: Array, fine: bool) -> Summed:
        gradient = np.zeros(self._layout.size)
        sums = []
        for chunk in _chunks(next(iter(pages.values())), self._layout.outputs):
            self._look()
            sums.append(self._chunk({number: own[chunk] for number, own in pages.items()}, weights, fine, gradient))
        both = np.concatenate(sums) if sums else np.zeros((0, 2))
        return Summed(in_order(both[:, 0]), in_order(both[:, 1]), gradient)

    def _chunk(self, pages: Mapping[int, Sequence[Stored]], weights: Array, fine: bool, gradient: Array) -> Array:
        numbers = list(pages)
        first = pages[numbers[0]]
        ends = np.cumsum([0, *(page.rows for page in first)])
        rows = int(ends[-1])
        partials = np.empty((len(pages), self._layout.outputs, rows), np.float64 if fine else np.float32)
        y = np.empty(rows if self._labels == 1 else (rows, self._labels), np.float32)
        weight = np.empty(rows)
        weighted = self._class_weight is not None

        def add_scores(at: int) -> None:
            nonlocal weighted
            number = numbers[at]
            own, space = self._layout.matrix(weights, number), self._spaces[number]
            for stored, start, stop in zip(pages[number], ends, ends[1:], strict=False):
                page = stored.fetch(space.disk)
                partials[at, :, start:stop] = scores_of(as_matrix(page, space, fine), own)
                if at == 0:
                    y[start:stop] = page.y
                    weighted |= page.weight is not None
                    weight[start:stop] = self._weight(page)

        def add_gradient(at: int) -> None:
            number = numbers[at]
            own, space = self._layout.matrix(gradient, number), self._spaces[number]
            for stored, start, stop in zip(pages[number], ends, ends[1:], strict=False):
                page = stored.fetch(space.disk)
                pull_back(as_matrix(page, space, fine), taken.residuals[:, start:stop], own)

        self._share(add_scores, len(numbers))
        taken = self._exchange.take(partials, y, weight if weighted else None)
        self._share(add_gradient, len(numbers))
        return taken.sums

    def _weight(self, page: Block) -> Array | float:
        if self._class_weight is None:
            return 1.0 if page.weight is None else page.weight
        weight: Array = self._class_weight[page.y.astype(np.intp)]
        return weight if page.weight is None else weight * page.weight

    def _share(self, work: Callable[[int], object], count: int) -> None:
        if self._pool is None:
            for at in range(count):
                work(at)
        else:
            list(self._pool.map(work, range(count)))


def _chunks(pages: Sequence[Stored], outputs: int) -> list[slice]:
    """Cut pages into runs of at least `CHUNK_VALUES` scores."""
    found, first, values = [], 0, 0
    for at, page in enumerate(pages, 1):
        values += page.rows * outputs
        if values >= CHUNK_VALUES or at == len(pages):
            found.append(slice(first, at))
            first, values = at, 0
    return found


class ColumnObjective:
    """A rank's part of the objective: the mean of weighted losses + l2/2·‖w‖². An `Oracle` whose vectors are parts.

    Values are the same on all ranks, gradients are those of the rank's blocks. All ranks call it together.

    Parameters
    ----------
    passes : ColumnPasses
    layout : Layout
    space : BlockSpace
    streams : mapping of int to sequence of LaneStream
        See `ColumnPasses.batch`.
    l2, l1 : float
    fit_intercept : bool
    diagonal : ndarray, shape (layout.size,)
        A rough upper bound of the second derivatives of the mean loss.
    coarse_pays, steps_per_epoch
        See `Oracle` and `BatchOracle`.
    on_rows : callable
        Called after every evaluation with the share of the training rows that it went over.
    """

    sample_stride = 1

    def __init__(
        self,
        passes: ColumnPasses,
        layout: Layout,
        space: BlockSpace,
        streams: Mapping[int, Sequence[LaneStream]],
        *,
        l2: float,
        l1: float,
        fit_intercept: bool,
        diagonal: Array,
        coarse_pays: bool,
        steps_per_epoch: int,
        on_rows: Callable[[float], None],
    ) -> None:
        self._passes, self._space, self._streams, self._l2, self.l1 = passes, space, streams, l2, l1
        self.size = layout.size
        self.penalised = layout.marked(features=True)
        free = self.penalised | layout.marked(features=False) if fit_intercept else self.penalised
        self._fixed = ~free
        self.diagonal = diagonal + np.where(self.penalised, l2, 0.0)
        self.coarse_pays, self.steps_per_epoch = coarse_pays, steps_per_epoch
        self._on_rows = on_rows

    def gradient(self, weights: Array, *, fine: bool = True, stride: int = 1) -> tuple[float, Array]:
        """See `Oracle.gradient`; there are no samples."""
        assert stride == 1
        found = self._mean(weights, self._passes.gradient(weights, fine=fine))
        self._on_rows(1.0)
        return found

    def batch(self, weights: Array, epoch: int, step: int) -> tuple[float, Array]:
        """See `BatchOracle.batch`."""
        found = self._mean(weights, self._passes.batch(weights, self._streams, epoch, step, self.steps_per_epoch))
        self._on_rows(1.0 / self.steps_per_epoch)
        return found

    def _mean(self, weights: Array, summed: Summed) -> tuple[float, Array]:
        total = max(summed.weight, 1e-300)
        inner = np.where(self.penalised, weights, 0.0)
        gradient = summed.gradient / total + self._l2 * inner
        gradient[self._fixed] = 0.0
        return summed.loss / total + 0.5 * self._l2 * self._space.dots([(inner, inner)])[0], gradient
