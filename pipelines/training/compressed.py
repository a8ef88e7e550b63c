"""Products with sparse rows that add to what is there, by SciPy's kernels: its public functions take fresh memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import _sparsetools

from pipelines.training.gang.context import Array


class Compressed:
    """Rows in CSR form with their values in float64, as the kernels want them.

    Parameters
    ----------
    X : csr_matrix, shape (rows, features)
    columns : ndarray of int32, shape (stored values,), optional
        Other numbers for the columns, below `features`; `X` keeps its own.
    features : int, optional
    """

    def __init__(self, X: Any, columns: Array | None = None, features: int | None = None) -> None:
        self.X = X
        self.values = X.data.astype(np.float64)
        self._columns = X.indices if columns is None else columns
        self._features = X.shape[1] if features is None else features

    def add_product(self, weights: Array, scores: Array) -> None:
        """Add ``X @ weights`` to `scores`; contiguous float64 of shapes (features,) and (rows,)."""
        rows = self.X.shape[0]
        _sparsetools.csr_matvec(rows, self._features, self.X.indptr, self._columns, self.values, weights, scores)

    def add_transposed(self, factors: Array, sums: Array) -> None:
        """Add ``X.T @ factors`` to `sums`, whose other elements are not touched; shapes (rows,) and (features,)."""
        rows = self.X.shape[0]
        # Rows of CSR are columns of the transposed matrix in CSC.
        _sparsetools.csc_matvec(self._features, rows, self.X.indptr, self._columns, self.values, factors, sums)
