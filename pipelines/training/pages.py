"""How does a rank come by a column block? It reads the block's input columns only, of all rows, into pages.

A page has the same rows for every column block of a model, whoever reads it: pages are filled in the order of the
shards. Whether all ranks saw the same rows, with the same labels and weights, is told by a digest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from scipy.sparse import vstack

from pipelines.training.blocks import BlockStore, Buffer, SparseBlock, Stored
from pipelines.training.columns import ColumnBlock
from pipelines.training.data import TrainingData, read_labelled
from pipelines.training.filling import DenseFiller
from pipelines.training.gang.context import Array

_STAGED_VALUES = 1 << 20


def load_pages(
    data: TrainingData,
    block: ColumnBlock,
    store: BlockStore,
    page_rows: int,
    in_flight_bytes: int,
    *,
    threads: int,
    on_rows: Callable[[int], None],
) -> list[Stored]:
    """Read a column block of all training rows, in the order of the shards.

    Parameters
    ----------
    data : TrainingData
        Its features are not looked at.
    on_rows : callable
        Called with the number of rows so far, after every batch.
    """
    rows = 0
    own = replace(data, features=block.plan)
    filler: _Pages = (
        _SparsePages(block, store, page_rows) if block.plan.sparse else _DensePages(own, block, store, page_rows)
    )
    reads = read_labelled(own, data.shards.shards, "train", max_bytes_in_flight=in_flight_bytes, threads=threads)
    with closing(reads):
        for each in reads:
            filler.add(each.batch, each.y, each.weight)
            rows += each.batch.num_rows
            on_rows(rows)
    return filler.finish()


def digest_of(pages: Sequence[Stored]) -> bytes:
    """Tell rows by their labels and weights: two column blocks with equal digests have the same rows."""
    found, buffer, rows = hashlib.blake2b(digest_size=16), Buffer(), 0
    for stored in pages:
        page = stored.fetch(buffer)
        found.update(page.y.tobytes())
        if page.weight is not None:
            found.update(page.weight.tobytes())
        rows += page.rows
    found.update(rows.to_bytes(8, "little"))
    return found.digest()


class _Pages(Protocol):
    def add(self, batch: pa.RecordBatch, y: Array, weight: Array | None) -> None: ...

    def finish(self) -> list[Stored]: ...


class _DensePages:
    """Batches into dense pages, by way of some megabytes of transformed rows where pages are shorter than those.

    A plan works column by column, at some 50 µs of Python for each: page by page, 2,500 columns of 20,000 rows, in
    pages of 64 rows, would take 780,000 turns.
    """

    def __init__(self, data: TrainingData, block: ColumnBlock, store: BlockStore, page_rows: int) -> None:
        weighted = data.sample_weight is not None
        self._block, self._filler = block, DenseFiller(store, block.width, weighted, data.labels, page_rows)
        self._most = max(64, _STAGED_VALUES // len(block.plan.names))

    def add(self, batch: pa.RecordBatch, y: Array, weight: Array | None) -> None:
        block, filler, start = self._block, self._filler, 0
        while start < batch.num_rows:
            stop = min(start + self._most, batch.num_rows)
            own = None if weight is None else weight[start:stop]
            part = batch.slice(start, stop - start)
            if block.whole and part.num_rows <= filler.room:
                block.plan.transform(part, out=filler.space(part.num_rows))
                filler.added(y[start:stop], own)
            else:
                found = block.plan.transform(part)
                assert isinstance(found, np.ndarray)
                self._spread(found[:, block.skip : block.skip + block.width], y[start:stop], own)
            start = stop

    def _spread(self, X: Array, y: Array, weight: Array | None) -> None:
        """Copy rows to where they stay."""
        start = 0
        while start < len(y):
            stop = min(start + self._filler.room, len(y))
            self._filler.space(stop - start)[...] = X[start:stop]
            self._filler.added(y[start:stop], None if weight is None else weight[start:stop])
            start = stop

    def finish(self) -> list[Stored]:
        self._filler.finish()
        return self._filler.blocks


class _SparsePages:
    """Batches into pages in compressed form."""

    def __init__(self, block: ColumnBlock, store: BlockStore, page_rows: int) -> None:
        self._block, self._store, self._page_rows = block, store, page_rows
        self._held: list[tuple[Any, Array, Array | None]] = []
        self._rows = 0
        self._pages: list[Stored] = []

    def add(self, batch: pa.RecordBatch, y: Array, weight: Array | None) -> None:
        block, start = self._block, 0
        X = block.plan.transform(batch)
        if not block.whole:
            X = X[:, block.skip : block.skip + block.width]
        while start < len(y):
            stop = min(start + self._page_rows - self._rows, len(y))
            self._held.append((X[start:stop], y[start:stop], None if weight is None else weight[start:stop]))
            self._rows += stop - start
            if self._rows == self._page_rows:
                self._full()
            start = stop

    def finish(self) -> list[Stored]:
        if self._held:
            self._full()
        return self._pages

    def _full(self) -> None:
        X = vstack([each[0] for each in self._held], format="csr") if len(self._held) > 1 else self._held[0][0]
        y = np.concatenate([each[1] for each in self._held])
        weights = [each[2] for each in self._held if each[2] is not None]
        self._pages.append(self._store.keep(SparseBlock(X, y, np.concatenate(weights) if weights else None)))
        self._held, self._rows = [], 0
