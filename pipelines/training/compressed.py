"""Products with sparse rows that add to what is there, by SciPy's kernels: its public functions take fresh memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import _sparsetools, csr_matrix

from pipelines.training.gang.context import Array


class Compressed:
    """Rows in CSR form with their values in float64, as the kernels want them.

    Parameters
    ----------
    X : csr_matrix, shape (rows, features)
    start, stop : int, optional
        Take these rows only; a matrix of them would cost more than a product with a hundred.
    columns : ndarray of int32, shape (stored values,), optional
        Other numbers for the columns, below `features`.
    features : int, optional
    """

    def __init__(
        self,
        X: Any,
        start: int = 0,
        stop: int | None = None,
        *,
        columns: Array | None = None,
        features: int | None = None,
    ) -> None:
        indptr, stop = X.indptr, X.shape[0] if stop is None else stop
        first, last = indptr[start], indptr[stop]
        self.rows = stop - start
        self.values = X.data[first:last].astype(np.float64)
        self._indptr = indptr[start : stop + 1] - first if first else indptr[start : stop + 1]
        self._columns = (X.indices if columns is None else columns)[first:last]
        self._features = X.shape[1] if features is None else features

    def add_product(self, weights: Array, scores: Array) -> None:
        """Add ``X @ weights`` to `scores`; contiguous float64 of shapes (features,) and (rows,)."""
        _sparsetools.csr_matvec(self.rows, self._features, self._indptr, self._columns, self.values, weights, scores)

    def add_transposed(self, factors: Array, sums: Array) -> None:
        """Add ``X.T @ factors`` to `sums`, whose other elements are not touched; shapes (rows,) and (features,)."""
        # Rows of CSR are columns of the transposed matrix in CSC.
        _sparsetools.csc_matvec(self._features, self.rows, self._indptr, self._columns, self.values, factors, sums)

    def matrix(self) -> Any:
        """Return the rows as a ``csr_matrix`` of float64, which shares their memory."""
        return csr_matrix((self.values, self._columns, self._indptr), (self.rows, self._features), copy=False)

    def scaled(self, factors: Array) -> Any:
        """Return the rows as a ``csr_matrix`` of float64, each multiplied by its factor."""
        values = self.values * np.repeat(factors, np.diff(self._indptr))
        return csr_matrix((values, self._columns, self._indptr), (self.rows, self._features), copy=False)
