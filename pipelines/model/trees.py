"""XGBoost predictors: a UBJSON model that holds exactly the rounds to be used."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import xgboost as xgb
from scipy import sparse

from pipelines.codec import canonical, digest
from pipelines.errors import CorruptArtifactError, UsageError
from pipelines.model.arrays import Matrix, Scores
from pipelines.model.predictors import required

_FILE, _FACTS = "model.ubj", "xgboost.json"


class XGBoostPredictor:
    """A booster, used with all the rounds it holds (early-stopped models were sliced before they were stored).

    Parameters
    ----------
    model : bytes
        The model as XGBoost writes it in UBJSON. Give only bytes that are known to be whole: XGBoost aborts the process
        over damaged ones. `from_files` makes sure of it.
    version : str
        XGBoost's, when it was written.

    Notes
    -----
    ``inplace_predict`` takes no lock and may be called from several threads as long as nothing else touches the
    booster; nothing does. It adds the trees of a row in order, so batch boundaries do not show.
    """

    kind = "xgboost"
    python_only = False
    probabilistic = True
    tolerance = 1e-5  # float32 sums of trees

    def __init__(self, model: bytes, version: str = xgb.__version__) -> None:
        self._model, self._version = bytes(model), version
        try:
            self._booster = xgb.Booster(model_file=bytearray(model))
        except (xgb.core.XGBoostError, ValueError) as error:
            raise CorruptArtifactError(
                f"{_FILE}, written by XGBoost {version}, can't be read by XGBoost {xgb.__version__}",
                found=_reason(error),
            ) from error
        self.n_features: int = self._booster.num_features()
        self._booster.inplace_predict(np.zeros((1, self.n_features), np.float32))  # configures the booster once

    @classmethod
    def from_files(cls, files: Mapping[str, bytes], n_features: int, n_outputs: int) -> XGBoostPredictor:
        """Rebuild from ``model.ubj`` and ``xgboost.json`` (its SHA-256, and the version that wrote it).

        Raises
        ------
        CorruptArtifactError
            Not the bytes that were written, or not for so many features and outputs.
        UsageError
            A newer XGBoost wrote it.
        """
        model = required(files, _FILE)
        predictor = cls(model, _checked_version(required(files, _FACTS), model))
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
        """Give ``model.ubj`` and ``xgboost.json``."""
        facts = {"schema": 1, "sha256": digest(self._model), "version": self._version}
        return {_FILE: self._model, _FACTS: canonical(facts)}

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


def _checked_version(facts: bytes, model: bytes) -> str:
    try:
        expected, version = str(json.loads(facts)["sha256"]), str(json.loads(facts)["version"])
        newer = _minor(version) > _minor(xgb.__version__)
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptArtifactError(f"{_FACTS} can't be read", found=str(error)) from error
    if (found := digest(model)) != expected:
        raise CorruptArtifactError(f"{_FILE} is not the file that was written", expected=expected, found=found)
    if newer:
        raise UsageError(
            "the model was written by a newer XGBoost",
            expected=f"at most {xgb.__version__}, which is installed here",
            found=version,
            remedy=f"Install xgboost>={version}.",
        )
    return version


def _minor(version: str) -> tuple[int, int]:
    major, minor, *_ = version.split(".")
    return int(major), int(minor)


def _reason(error: Exception) -> str:
    """First telling line of XGBoost's message, which otherwise carries a stack of native frames."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
