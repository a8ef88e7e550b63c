"""XGBoost predictors: a UBJSON model that holds exactly the rounds to be used."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import xgboost as xgb
from scipy import sparse

from pipelines.errors import CorruptArtifactError
from pipelines.model.arrays import Matrix, Scores
from pipelines.model.predictors import required

_FILE = "model.ubj"


class XGBoostPredictor:
    """A booster, used with all the rounds it holds (early-stopped models were sliced before they were stored).

    Parameters
    ----------
    model : bytes
        The model as XGBoost writes it in UBJSON.

    Notes
    -----
    ``inplace_predict`` takes no lock and may be called from several threads as long as nothing else touches the
    booster; nothing does. It adds the trees of a row in order, so batch boundaries do not show.
    """

    kind = "xgboost"
    python_only = False
    probabilistic = True
    tolerance = 1e-5  # float32 sums of trees

    def __init__(self, model: bytes) -> None:
        self._model = bytes(model)
        try:
            self._booster = xgb.Booster(model_file=bytearray(model))
        except (xgb.core.XGBoostError, ValueError) as error:
            raise CorruptArtifactError(
                f"{_FILE} can't be read by XGBoost {xgb.__version__}",
                found=_reason(error),
                remedy="A model written by a newer XGBoost needs at least that version.",
            ) from error
        self.n_features: int = self._booster.num_features()
        self._booster.inplace_predict(np.zeros((1, self.n_features), np.float32))  # configures the booster once

    @classmethod
    def from_files(cls, files: Mapping[str, bytes], n_features: int, n_outputs: int) -> XGBoostPredictor:
        """Rebuild from ``model.ubj``; `n_outputs` is checked against what the booster gives."""
        predictor = cls(required(files, _FILE))
        shape = predictor.scores(np.full((2, predictor.n_features), np.nan, np.float32)).shape[1:]
        outputs = shape[0] if shape else 1
        if (predictor.n_features, outputs) != (n_features, n_outputs):
            raise CorruptArtifactError(
                f"{_FILE} does not fit its feature plan and target",
                expected=f"{n_features} features, {n_outputs} outputs",
                found=f"{predictor.n_features} features, {outputs} outputs",
            )
        return predictor

    def files(self) -> dict[str, bytes]:
        """Give ``model.ubj``."""
        return {_FILE: self._model}

    def scores(self, X: Matrix) -> Scores:
        """Score a matrix (rows, features), dense or CSR (an entry that is absent is missing, as in training)."""
        if X.shape[0] == 0:
            probe = np.asarray(self._booster.inplace_predict(np.zeros((1, self.n_features), np.float32)))
            return np.empty((0, *probe.shape[1:]), np.float64)
        X = X if sparse.issparse(X) else np.asarray(X, np.float32)
        return np.asarray(self._booster.inplace_predict(X), np.float64)

    def importance(self) -> Scores:
        """Mean gain of the splits on each feature; 0 for one that is never used."""
        gains = np.zeros(self.n_features)
        for name, gain in self._booster.copy().get_score(importance_type="gain").items():
            gains[int(name[1:])] = gain  # the booster holds no names, so XGBoost says f0, f1, …
        return gains

    def describe(self) -> dict[str, Any]:
        """Give rounds, trees, objective and size."""
        config = self._booster.copy().save_config()
        objective = re.search(r'"objective":\s*\{[^{}]*"name":\s*"([^"]+)"', config)
        return {
            "rounds": self._booster.num_boosted_rounds(),
            "objective": objective.group(1) if objective else "",
            "bytes": len(self._model),
        }


def _reason(error: Exception) -> str:
    """First telling line of XGBoost's message, which otherwise carries a stack of native frames."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
