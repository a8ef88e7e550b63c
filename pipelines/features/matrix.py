"""How are a batch's output columns put together: one column-major matrix, or CSR when most of it is zeros?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.sparse import csr_matrix, hstack, vstack

from pipelines.features.apply import Applied, AppliedCodes
from pipelines.features.columns import Columns
from pipelines.features.foreign import AppliedForeign

SPARSE_BELOW = 0.1
"""CSR below this density. A stored value takes 8 bytes against 4 for each dense one and about five times the time of a
dense one in a product, so CSR wins clearly below a tenth, and a little above it nothing is lost."""

SPARSE_FROM = 32
"""CSR from as many output columns: below, a dense row is two cache lines."""


def choose_sparse(stored: float, columns: int) -> tuple[bool, float]:
    """Decide on CSR from the expected number of stored values in a row; gives the density too."""
    density = stored / columns if columns else 1.0
    return density < SPARSE_BELOW and columns >= SPARSE_FROM, density


def empty_matrix(rows: int, columns: int) -> np.ndarray:
    """A column-major float32 matrix, not initialised."""
    return np.empty((rows, columns), np.float32, order="F")


def sparse_matrix(steps: Sequence[Applied], columns: Columns) -> csr_matrix:
    """Apply steps to a batch and lay the results out as CSR; zeros that are not one-hot are stored.

    Returns
    -------
    csr_matrix of float32, shape (rows, features), with sorted indices of int32
    """
    blocks: list[csr_matrix] = []
    run: list[Applied] = []
    for step in steps:
        if isinstance(step, AppliedForeign) and step.sparse:
            blocks += [_entries(run, columns)] * bool(run) + [csr_matrix(step.matrix(columns))]
            run = []
        else:
            run.append(step)
    blocks += [_entries(run, columns)] * bool(run)
    return blocks[0] if len(blocks) == 1 else csr_matrix(hstack(blocks, format="csr"))


def stack(blocks: Sequence[csr_matrix], columns: int) -> csr_matrix:
    """Put CSR matrices below each other."""
    if not blocks:
        return csr_matrix(np.empty((0, columns), np.float32))
    return blocks[0] if len(blocks) == 1 else csr_matrix(vstack(blocks, format="csr"))


def _entries(steps: Sequence[Applied], columns: Columns) -> csr_matrix:
    """CSR of steps that store the same number of values in every row, but for one-hot steps without a code."""
    hot = [isinstance(step, AppliedCodes) and step.layout == "one_hot" for step in steps]
    count = sum(1 if is_hot else step.width for step, is_hot in zip(steps, hot, strict=True))
    values = np.ones((columns.rows, count), np.float32)
    places = np.empty((columns.rows, count), np.int32)
    absent = False
    first = entry = 0
    for step, is_hot in zip(steps, hot, strict=True):
        if is_hot and isinstance(step, AppliedCodes):
            codes = step.codes(columns)
            none = codes < 0
            absent |= bool(none.any())
            places[:, entry] = np.where(none, -1, codes + first)
            entry += 1
        else:
            block = empty_matrix(columns.rows, step.width)
            step.write(columns, block)
            values[:, entry : entry + step.width] = block
            places[:, entry : entry + step.width] = np.arange(first, first + step.width)
            entry += step.width
        first += step.width
    ends = np.full(columns.rows, count, np.int32)
    data, indices = values.ravel(), places.ravel()
    if absent:
        there = indices >= 0
        data, indices, ends = data[there], indices[there], np.count_nonzero(places >= 0, axis=1)
    pointers = np.concatenate([[0], np.cumsum(ends)]).astype(np.int32)
    return csr_matrix((data, indices, pointers), shape=(columns.rows, first))
