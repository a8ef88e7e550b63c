"""How do shards become XGBoost's bins? Blocks of transformed rows, kept or read again, through one iterator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xgboost as xgb
from scipy.sparse import csr_matrix

from pipelines.training.data import Rows, TrainingData, read_rows
from pipelines.training.gang.context import Array

BLOCK_ROWS = 131_072
"""Rows that XGBoost is given at a time: its sketch costs a third more CPU in blocks of 16,384 (measured, 5 M × 28)."""

PASSES = 5
"""How often XGBoost goes through the rows to bin them (as counted with version 3.2)."""


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

    def read(self) -> Iterator[Rows]:
        """Stream the rows in the order of the manifest, in blocks."""
        shards = self.data.shards.shards
        for rows in read_rows(self.data, shards, self.name, batch_rows=BLOCK_ROWS, threads=self.threads):
            yield self._weighted(rows)

    def _weighted(self, rows: Rows) -> Rows:
        if self.factors is None:
            return rows
        by_class = self.factors[rows.y.astype(np.int64)].astype(np.float32)
        return Rows(rows.X, rows.y, by_class if rows.weight is None else by_class * rows.weight)


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


def kept_blocks(part: Part, on_rows: Callable[[int], None] | None = None) -> list[Rows]:
    """Read a part once and keep it: float32, one copy, as the plan's transform wrote it."""
    blocks, rows = [], 0
    for block in part.read():
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
