"""Linear predictors: a few float64 numbers, summed feature by feature so that no batch boundary shows."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import expit

from pipelines.codec import canonical
from pipelines.errors import CorruptArtifactError
from pipelines.model.arrays import Matrix, Scores, row_blocks
from pipelines.model.predictors import required

_BLOCK = 8_192  # rows: a column of the block and its float64 accumulator stay in the first-level caches


@dataclass(frozen=True, eq=False)
class LinearPredictor:
    """``link(X · coefᵀ + intercept)``.

    Parameters
    ----------
    coef : ndarray of float64, shape (outputs, features)
        In the units of the feature plan's output columns.
    intercept : ndarray of float64, shape (outputs,)
    link : str
        ``identity``, ``log`` (predictions are e^z), ``logistic`` (one output), ``softmax``, or ``margin``: a support
        vector machine's margins, squashed into 0 … 1, which keep their order and the decision.
    std : ndarray of float64, shape (features,), optional
        Spread of each feature over the training rows; importance is ``|coef · std|``.
    """

    coef: Scores
    intercept: Scores
    link: str
    std: Scores | None = None

    kind = "linear"
    python_only = False
    tolerance = 1e-9

    @property
    def probabilistic(self) -> bool:
        """Whether a classifier's scores are probabilities: margins are not."""
        return self.link != "margin"

    @classmethod
    def from_files(cls, files: Mapping[str, bytes], n_features: int, n_outputs: int) -> LinearPredictor:
        """Rebuild from ``linear.json``, ``coef.npy``, ``intercept.npy`` and perhaps ``std.npy``."""
        link = read_link(required(files, "linear.json"))
        coef = read_array(files, "coef.npy", (n_outputs, n_features))
        intercept = read_array(files, "intercept.npy", (n_outputs,))
        std = read_array(files, "std.npy", (n_features,)) if "std.npy" in files else None
        return cls(coef, intercept, link, std)

    def files(self) -> dict[str, bytes]:
        """Give the files that `from_files` reads."""
        files = {
            "linear.json": canonical({"schema": 1, "link": self.link}),
            "coef.npy": npy_bytes(self.coef),
            "intercept.npy": npy_bytes(self.intercept),
        }
        return files if self.std is None else files | {"std.npy": npy_bytes(self.std)}

    def scores(self, X: Matrix) -> Scores:
        """Score a matrix (rows, features), dense or CSR; a row's scores do not depend on the rows beside it."""
        margins = np.empty((X.shape[0], len(self.coef)))
        for block in row_blocks(X.shape[0], _BLOCK):
            self._margins(X[block], margins[block])
        return mapped(margins, self.link)

    def _margins(self, X: Matrix, out: Scores) -> None:
        if not isinstance(X, np.ndarray):
            entries = X.astype(np.float64)
            for k, weights in enumerate(self.coef):  # scipy adds a row's entries one after the other
                out[:, k] = entries @ weights + self.intercept[k]
            return
        # Not a BLAS call: its order of addition changes with the shape of the batch. One column at a time, every row
        # adds its features in the plan's order, whatever the batch.
        total, term = np.empty(len(X)), np.empty(len(X))
        for k, weights in enumerate(self.coef):
            total[:] = self.intercept[k]
            for j, weight in enumerate(weights):
                np.multiply(X[:, j], weight, out=term, dtype=np.float64)
                total += term
            out[:, k] = total

    def importance(self) -> Scores:
        """``|coef · std|`` per feature, the mean over outputs; NaN when the spread was not recorded."""
        if self.std is None:
            return np.full(self.coef.shape[1], np.nan)
        return np.asarray(np.mean(np.abs(self.coef * self.std), axis=0), np.float64)

    def describe(self) -> dict[str, Any]:
        """Give the link, the number of weights and how many are not zero."""
        return {"link": self.link, "weights": int(self.coef.size), "nonzero": int(np.count_nonzero(self.coef))}


def mapped(margins: Scores, link: str) -> Scores:
    """Turn margins, shape (rows, outputs), into scores: one output's as shape (rows,)."""
    found = _LINKS[link](margins)
    return found[:, 0] if found.shape[1] == 1 else found


def _softmax(margins: Scores) -> Scores:
    top = margins[:, 0].copy()
    for k in range(1, margins.shape[1]):
        np.maximum(top, margins[:, k], out=top)
    exps = np.exp(margins - top[:, None])
    total = exps[:, 0].copy()
    for k in range(1, exps.shape[1]):  # column by column: the order of np.sum(axis=1) may change with the shape
        total += exps[:, k]
    return np.asarray(exps / total[:, None], np.float64)


def _exponential(margins: Scores) -> Scores:
    with np.errstate(over="ignore"):  # beyond 1e308 a prediction is infinite, and so it is said
        return np.asarray(np.exp(margins), np.float64)


def _squashed(margins: Scores) -> Scores:
    return np.asarray(expit(margins), np.float64) if margins.shape[1] == 1 else _softmax(margins)


_LINKS: dict[str, Callable[[Scores], Scores]] = {
    "identity": lambda margins: margins,
    "log": _exponential,
    "margin": _squashed,
    "logistic": lambda margins: np.asarray(expit(margins), np.float64),
    "softmax": _softmax,
}


def read_link(text: bytes) -> str:
    """Read ``linear.json``. Raises `CorruptArtifactError`."""
    try:
        link = json.loads(text)["link"]
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptArtifactError("linear.json can't be read", found=str(error)) from error
    if link not in _LINKS:
        raise CorruptArtifactError("linear.json names an unknown link", expected=", ".join(_LINKS), found=repr(link))
    return str(link)


def npy_bytes(array: np.ndarray) -> bytes:
    """Write an array in the .npy format."""
    buffer = io.BytesIO()
    np.save(buffer, np.ascontiguousarray(array), allow_pickle=False)
    return buffer.getvalue()


def read_array(
    files: Mapping[str, bytes], name: str, shape: tuple[int | None, ...], dtype: Any = np.float64
) -> np.ndarray:
    """Read an array of a shape (None: any length) and type. Raises `CorruptArtifactError`."""
    data = required(files, name)
    try:
        array = np.load(io.BytesIO(data), allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise CorruptArtifactError(f"{name} can't be read", found=str(error)) from error
    if len(array.shape) != len(shape) or any(b not in (None, a) for a, b in zip(array.shape, shape, strict=True)):
        raise CorruptArtifactError(f"{name} has the wrong shape", expected=str(shape), found=str(array.shape))
    return np.asarray(array, dtype)
