"""What every predictor does, and which one a stored kind asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from pipelines.errors import CorruptArtifactError, NotFoundError
from pipelines.model.arrays import Matrix, Scores


class Predictor(Protocol):
    """A trained predictor: matrix in, scores out. Safe to call from several threads at once."""

    @property
    def kind(self) -> str:
        """``"linear"``, ``"xgboost"`` or ``"skops"``."""

    @property
    def python_only(self) -> bool:
        """Whether only Python with the estimator's own library can run it."""

    @property
    def probabilistic(self) -> bool:
        """Whether a classifier's scores are probabilities (else a decision function squashed into 0 … 1)."""

    @property
    def tolerance(self) -> float:
        """How far (relative, and absolute below one) the same model may predict apart on two machines."""

    def scores(self, X: Matrix) -> Scores:
        """Score a matrix of shape (rows, features): shape (rows,) for one output, (rows, classes) else."""

    def importance(self) -> Scores:
        """Importance per feature, shape (features,): NaN where the predictor knows none."""

    def files(self) -> dict[str, bytes]:
        """The predictor in plain formats, by file name; the same predictor gives the same bytes."""

    def describe(self) -> dict[str, Any]:
        """A few plain facts for people."""


def _linear(files: Mapping[str, bytes], n_features: int, n_outputs: int) -> Predictor:
    from pipelines.model.linear import LinearPredictor
    from pipelines.model.sparse_linear import SparseLinearPredictor

    if "keys.npy" in files:
        return SparseLinearPredictor.from_files(files, n_features, n_outputs)
    return LinearPredictor.from_files(files, n_features, n_outputs)


def _xgboost(files: Mapping[str, bytes], n_features: int, n_outputs: int) -> Predictor:
    from pipelines.model.trees import XGBoostPredictor

    return XGBoostPredictor.from_files(files, n_features, n_outputs)


def _skops(files: Mapping[str, bytes], n_features: int, n_outputs: int) -> Predictor:
    from pipelines.model.foreign import SkopsPredictor

    return SkopsPredictor.from_files(files, n_features, n_outputs)


_KINDS: dict[str, Callable[[Mapping[str, bytes], int, int], Predictor]] = {
    "linear": _linear,
    "xgboost": _xgboost,
    "skops": _skops,
}


def load_predictor(kind: str, files: Mapping[str, bytes], *, n_features: int, n_outputs: int) -> Predictor:
    """Build the predictor of `kind` from its files.

    Parameters
    ----------
    kind : str
        As recorded by the estimator that trained it.
    files : mapping of str to bytes
        Its files by name, without any prefix.
    n_features, n_outputs : int
        Columns that the feature plan makes; score columns that the target asks for (1 for binary and regression).

    Raises
    ------
    NotFoundError
        `kind` is none that this version knows.
    CorruptArtifactError
        The files are incomplete, unreadable or of another shape.
    """
    if kind not in _KINDS:
        raise NotFoundError.among("kind of predictor", kind, list(_KINDS))
    return _KINDS[kind](files, n_features, n_outputs)


def required(files: Mapping[str, bytes], name: str) -> bytes:
    """Give the file `name`, or say that the model lacks it."""
    if name not in files:
        raise CorruptArtifactError(f"the model lacks its file {name!r}", found=", ".join(sorted(files)) or "no files")
    return files[name]
