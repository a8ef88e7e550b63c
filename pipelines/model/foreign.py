"""Foreign predictors: scikit-learn estimators stored with skops, never as pickles."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import expit, softmax

from pipelines.codec import canonical
from pipelines.errors import CorruptArtifactError, UserCodeError
from pipelines.model.arrays import Matrix, Scores
from pipelines.model.predictors import required

_FILE, _FACTS = "estimator.skops", "foreign.json"


class SkopsPredictor:
    """A fitted scikit-learn estimator that was trained on class indices 0 … k−1 (classifiers) or values.

    Parameters
    ----------
    stored : bytes
        The estimator as skops writes it.
    trusted : sequence of str
        Types recorded when it was stored; a file that holds any other is refused before anything is built from it.
    name : str
        Import path of the class that the user asked for.
    n_features, n_outputs : int
        As the feature plan and target have it.
    """

    kind = "skops"
    python_only = True
    tolerance = 1e-5  # most compute in float32 when given float32

    def __init__(self, stored: bytes, trusted: Sequence[str], name: str, n_features: int, n_outputs: int) -> None:
        self._stored, self.trusted, self.name = bytes(stored), tuple(trusted), name
        self.n_features, self.n_outputs = n_features, n_outputs
        self._estimator = load_estimator(self._stored, self.trusted)

    @classmethod
    def from_files(cls, files: Mapping[str, bytes], n_features: int, n_outputs: int) -> SkopsPredictor:
        """Rebuild from ``estimator.skops`` and ``foreign.json``."""
        try:
            facts = json.loads(required(files, _FACTS))
            name, trusted = str(facts["class"]), [str(each) for each in facts["trusted"]]
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptArtifactError(f"{_FACTS} can't be read", found=str(error)) from error
        return cls(required(files, _FILE), trusted, name, n_features, n_outputs)

    @property
    def estimator(self) -> Any:
        """The fitted estimator itself."""
        return self._estimator

    @property
    def probabilistic(self) -> bool:
        """Whether the estimator has ``predict_proba`` (or is a regressor)."""
        return hasattr(self._estimator, "predict_proba") or not hasattr(self._estimator, "classes_")

    def files(self) -> dict[str, bytes]:
        """Give ``estimator.skops`` and ``foreign.json``."""
        return {
            _FILE: self._stored,
            _FACTS: canonical({"schema": 1, "class": self.name, "trusted": sorted(self.trusted)}),
        }

    def scores(self, X: Matrix) -> Scores:
        """Score a matrix (rows, features): probabilities, a squashed decision function, or values.

        Raises
        ------
        UserCodeError
            The estimator raised; the cause is attached.
        """
        if X.shape[0] == 0:
            return np.empty((0,) if self.n_outputs == 1 else (0, self.n_outputs))
        if not isinstance(X, np.ndarray) and not _takes_sparse(self._estimator):
            X = X.toarray()
        try:
            return self._scores(X)
        except Exception as error:  # the estimator is foreign code: whatever it raises is reported as its own
            raise UserCodeError(
                f"the estimator raised {type(error).__name__} while predicting: {error}",
                on=self.name,
                remedy="If it refuses missing values, impute them in `features:`.",
            ) from error

    def _scores(self, X: Matrix) -> Scores:
        estimator = self._estimator
        if not hasattr(estimator, "classes_"):
            return np.asarray(estimator.predict(X), np.float64).reshape(X.shape[0])
        if hasattr(estimator, "predict_proba"):
            columns = np.asarray(estimator.predict_proba(X), np.float64)
        else:
            columns = _squashed(np.asarray(estimator.decision_function(X), np.float64))
        return self._by_class(columns)

    def _by_class(self, columns: Scores) -> Scores:
        """Put the estimator's columns where the target has them: a class it never saw has probability 0."""
        seen = np.asarray(self._estimator.classes_).astype(np.int64)
        full = np.zeros((len(columns), max(2, self.n_outputs)))
        full[:, seen] = columns
        return full[:, 1].copy() if self.n_outputs == 1 else full

    def importance(self) -> Scores:
        """``feature_importances_`` or ``|coef_|`` where the estimator has them, else NaN."""
        found = getattr(self._estimator, "feature_importances_", None)
        if found is None and hasattr(self._estimator, "coef_"):
            coef = self._estimator.coef_
            dense = np.asarray(coef.toarray() if hasattr(coef, "toarray") else coef)
            found = np.abs(dense).reshape(-1, dense.shape[-1]).mean(axis=0)
        if found is None or np.size(found) != self.n_features:
            return np.full(self.n_features, np.nan)
        return np.asarray(found, np.float64)

    def describe(self) -> dict[str, Any]:
        """Give the class asked for, the class stored and the trusted types."""
        stored = type(self._estimator)
        return {
            "class": self.name,
            "stored_as": f"{stored.__module__}.{stored.__qualname__}",
            "trusted": sorted(self.trusted),
            "bytes": len(self._stored),
        }


def load_estimator(stored: bytes, trusted: Sequence[str]) -> Any:
    """Load an estimator from skops bytes, trusting exactly the types recorded beside it.

    Raises
    ------
    CorruptArtifactError
        The bytes are unreadable, or hold a type that was not recorded.
    """
    from skops import io as skops_io

    try:
        unknown = sorted(set(skops_io.get_untrusted_types(data=stored)) - set(trusted))
        if not unknown:
            return skops_io.loads(stored, trusted=list(trusted))
    except Exception as error:  # skops raises whatever zip, JSON and the classes' own loaders raise
        raise CorruptArtifactError(f"{_FILE} can't be read", found=f"{type(error).__name__}: {error}") from error
    raise CorruptArtifactError(
        f"{_FILE} holds types that were not recorded when it was stored",
        expected=", ".join(trusted) or "skops' own trusted types only",
        found=", ".join(unknown),
        remedy="Do not load it: it was changed after training.",
    )


def _takes_sparse(estimator: Any) -> bool:
    tags = getattr(estimator, "__sklearn_tags__", None)
    return tags is not None and bool(tags().input_tags.sparse)


def _squashed(decision: Scores) -> Scores:
    """Map a decision function to columns that sum to one and rank, and decide at 0.5, as it does."""
    if decision.ndim == 1:
        positive = np.asarray(expit(decision), np.float64)
        return np.stack([1 - positive, positive], axis=1)
    return np.asarray(softmax(decision, axis=1), np.float64)
