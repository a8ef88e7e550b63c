"""Linear predictors of very many features: the weights that are not zero, by their features' numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from pipelines.codec import canonical
from pipelines.errors import CorruptArtifactError
from pipelines.model.arrays import Matrix, Scores, row_blocks
from pipelines.model.linear import mapped, npy_bytes, read_array, read_link
from pipelines.model.predictors import required

_BLOCK = 8_192


@dataclass(frozen=True, eq=False)
class SparseLinearPredictor:
    """``link(X · Wᵀ + b)`` of one or several outputs.

    Of one output it takes 8 bytes for each weight that is not zero, and 8 more once it predicts.

    Parameters
    ----------
    keys : ndarray of int32, ascending
        Numbers of the features that have weights that are not zero.
    values : ndarray of float32, shape (keys,), or (keys, outputs) where there are several
        Their weights, in the units of the feature plan's output columns.
    intercept : ndarray of float64, shape (outputs,)
    link : str
        See `LinearPredictor`.
    features : int
        Columns of the feature plan.
    """

    keys: np.ndarray
    values: np.ndarray
    intercept: np.ndarray
    link: str
    features: int

    kind = "linear"
    python_only = False
    tolerance = 1e-9

    @property
    def probabilistic(self) -> bool:
        """Whether a classifier's scores are probabilities: margins are not."""
        return self.link != "margin"

    @classmethod
    def from_files(cls, files: Mapping[str, bytes], n_features: int, n_outputs: int) -> SparseLinearPredictor:
        """Rebuild from ``linear.json``, ``keys.npy``, ``values.npy`` and ``intercept.npy``."""
        link = read_link(required(files, "linear.json"))
        keys = read_array(files, "keys.npy", (None,), np.int32)
        shape = keys.shape if n_outputs == 1 else (*keys.shape, n_outputs)
        values = read_array(files, "values.npy", shape, np.float32)
        intercept = read_array(files, "intercept.npy", (n_outputs,))
        inside = not len(keys) or (keys[0] >= 0 and keys[-1] < n_features and bool((np.diff(keys) > 0).all()))
        if not inside:
            raise CorruptArtifactError(
                "keys.npy does not number the features of this model",
                expected=f"ascending numbers below {n_features}",
                found=f"{len(keys)} numbers",
            )
        return cls(keys, values, intercept, link, n_features)

    def files(self) -> dict[str, bytes]:
        """Give the files that `from_files` reads."""
        return {
            "linear.json": canonical({"schema": 1, "link": self.link}),
            "keys.npy": npy_bytes(self.keys),
            "values.npy": npy_bytes(self.values),
            "intercept.npy": npy_bytes(self.intercept),
        }

    def scores(self, X: Matrix) -> Scores:
        """Score a matrix (rows, features), dense or CSR; a row's scores do not depend on the rows beside it."""
        margins = np.empty((X.shape[0], len(self.intercept)))
        for block in row_blocks(X.shape[0], _BLOCK):
            margins[block] = self._margins(X[block])
        return mapped(margins, self.link)

    def importance(self) -> Scores:
        """NaN: the features' spread was not recorded."""
        return np.full(self.features, np.nan)

    def describe(self) -> dict[str, Any]:
        """Give the link, the number of weights and how many are not zero."""
        weights = self.features * len(self.intercept)
        return {"link": self.link, "weights": weights, "nonzero": int(np.count_nonzero(self.values))}

    @cached_property
    def _weights(self) -> np.ndarray:
        """The weights, shape (keys + 1, outputs), and a 0 behind them that stands for all others."""
        values = self.values.reshape(len(self.keys), len(self.intercept)).astype(np.float64)
        return np.concatenate([values, np.zeros((1, len(self.intercept)))])

    def _margins(self, X: Matrix) -> Scores:
        if isinstance(X, np.ndarray):
            total = np.repeat(self.intercept[None], len(X), axis=0)
            for key, weights in zip(self.keys, self._weights[:-1], strict=True):
                total += np.multiply(X[:, key, None], weights, dtype=np.float64)
            return total
        at = np.searchsorted(self.keys, X.indices).astype(np.int32)
        if len(self.keys):
            at[self.keys[np.minimum(at, len(self.keys) - 1)] != X.indices] = len(self.keys)
        shape = (X.shape[0], len(self.keys) + 1)
        entries = csr_matrix((X.data.astype(np.float64), at, X.indptr), shape=shape, copy=False)
        return np.asarray(entries @ self._weights + self.intercept, np.float64)  # a row's entries one after the other
