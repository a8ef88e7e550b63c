"""How do shards become XGBoost's bins? Blocks of transformed rows, kept or read again, through one iterator.

XGBoost goes through the rows twice to bin them, and two times more where it makes its own sketch, so they are kept, as
float32, while it does, unless they would not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import xgboost as xgb
from scipy.sparse import csr_matrix

from pipelines.training.data import Labelled, Rows, TrainingData, read_labelled
from pipelines.training.estimators.boosting_cuts import CutSample
from pipelines.training.gang.context import Array

BLOCK_ROWS = 131_072
"""Rows that XGBoost is given at a time: its sketch costs a third more CPU in blocks of 16,384 (measured, 5 M × 28)."""


@dataclass(frozen=True)
class Part:
    """The rows of one split on one rank, as often as they are asked for.

    Parameters
    ----------
    data : TrainingData
        Of this rank: its shards only.
    name : str
        ``train`` or ``validation``.
    factors : ndarray of float64, shape (classes,), optional
        Class weights.
    threads : int
        For reading.
    """

    data: TrainingData
    name: str
    factors: Array | None
    threads: int

    def read(self, sample: CutSample | None = None) -> Iterator[Rows]:
        """Stream the rows in the order of the manifest, in blocks of `BLOCK_ROWS`; only the last one is smaller.

        Dense rows are shown to `sample`.
        """
        batches = read_labelled(
            self.data, self.data.shards.shards, self.name, batch_rows=BLOCK_ROWS // 2, threads=self.threads,
            row_ids=sample is not None,
        )  # fmt: skip
        with closing(batches):
            yield from self._sparse(batches) if self.data.features.sparse else self._dense(batches, sample)

    def _dense(self, batches: Iterator[Labelled], sample: CutSample | None) -> Iterator[Rows]:
        """Transform batches, however small, straight into their place in a block."""
        plan, block = self.data.features, None
        for each in batches:
            start = 0
            while start < len(each.y):
                if block is None:
                    block = _Block(len(plan.names), weighted=each.weight is not None or self.factors is not None)
                count = min(len(each.y) - start, block.room)
                stop = start + count
                X, weight = block.X[block.rows : block.rows + count], self._weights(each, slice(start, stop))
                plan.transform(each.batch.slice(start, count), out=X)
                block.take(each.y[start:stop], weight)
                if sample is not None and each.rows is not None:
                    sample.update(replace(each.rows, rows=each.rows.rows[start:stop]), X, weight)
                start = stop
                if not block.room:
                    yield block.done()
                    block = None
        if block is not None:
            yield block.done()

    def _sparse(self, batches: Iterator[Labelled]) -> Iterator[Rows]:
        for each in batches:
            yield Rows(self.data.features.transform(each.batch), each.y, self._weights(each, slice(None)))

    def _weights(self, each: Labelled, rows: slice) -> Array | None:
        given = None if each.weight is None else each.weight[rows]
        if self.factors is None:
            return given
        by_class = self.factors[each.y[rows].astype(np.int64)].astype(np.float32)
        return by_class if given is None else by_class * given


class _Block:
    """A column-major block that is being filled. Pages that are never written take no memory."""

    def __init__(self, features: int, *, weighted: bool) -> None:
        self.X = np.empty((BLOCK_ROWS, features), np.float32, order="F")
        self._y = np.empty(BLOCK_ROWS, np.float32)
        self._weight = np.empty(BLOCK_ROWS, np.float32) if weighted else None
        self.rows = 0

    @property
    def room(self) -> int:
        return BLOCK_ROWS - self.rows

    def take(self, y: Array, weight: Array | None) -> None:
        place = slice(self.rows, self.rows + len(y))
        self._y[place] = y
        if self._weight is not None:
            self._weight[place] = weight
        self.rows += len(y)

    def done(self) -> Rows:
        weight = None if self._weight is None else self._weight[: self.rows]
        return Rows(self.X[: self.rows], self._y[: self.rows], weight)


class Feed(xgb.DataIter):
    """A part as XGBoost reads it; counts rows as they pass.

    A rank without rows gives one block of none, since every rank must take part in the sketch.

    Parameters
    ----------
    blocks : callable
        Gives the blocks anew for every pass: ``Part.read``, or a list's iterator.
    types : sequence of str
        XGBoost's feature types.
    sparse : bool
        Whether an empty block is CSR.
    on_rows : callable ``(rows so far in this pass, pass)``, optional
    """

    def __init__(
        self,
        blocks: Callable[[], Iterable[Rows]],
        types: Sequence[str],
        *,
        sparse: bool = False,
        on_rows: Callable[[int, int], None] | None = None,
    ) -> None:
        self._blocks, self._types, self._sparse = blocks, list(types), sparse
        self._on_rows = on_rows
        self._iterator: Iterator[Rows] | None = None
        self._given = 0
        self.rows, self.passes = 0, 0
        super().__init__(release_data=True)

    def reset(self) -> None:
        """Begin a pass."""
        close = getattr(self._iterator, "close", None)
        if close is not None:
            close()
        self._iterator, self._given, self.rows = None, 0, 0

    def next(self, input_data: Callable[..., Any]) -> bool:
        """Hand over the next block; XGBoost's word for it."""
        if self._iterator is None:
            self._iterator = iter(self._blocks())
            self.passes += 1
        rows = next(self._iterator, None)
        if rows is None:
            if self._given:
                return False
            rows = self._nothing()
        self._given += 1
        self.rows += len(rows.y)
        if self._on_rows is not None:
            self._on_rows(self.rows, self.passes)
        input_data(data=rows.X, label=rows.y, weight=rows.weight, feature_types=self._types)
        return True

    def _nothing(self) -> Rows:
        empty = np.empty((0, len(self._types)), np.float32, order="F")
        X = csr_matrix(empty) if self._sparse else empty
        return Rows(X, np.empty(0, np.float32), None)


def kept_blocks(
    part: Part, on_rows: Callable[[int], None] | None = None, sample: CutSample | None = None
) -> list[Rows]:
    """Read a part once and keep it: float32, one copy, as the plan's transform wrote it."""
    blocks, rows = [], 0
    for block in part.read(sample):
        blocks.append(block)
        rows += len(block.y)
        if on_rows is not None:
            on_rows(rows)
    return blocks


def cached_bytes(rows: int, features: int, max_bin: int = 256) -> int:
    """Bytes that `rows` need while they are binned from kept blocks."""
    return rows * 4 * features + binned_bytes(rows, features, max_bin)


def binned_bytes(rows: int, features: int, max_bin: int = 256) -> int:
    """Bytes that `rows` need while trees are grown.

    One byte per bin (two above 256 bins), and per row label, weight, gradient pair, prediction, margin and the row's
    place in the tree.
    """
    return rows * (features * (1 if max_bin <= 256 else 2) + 48)
