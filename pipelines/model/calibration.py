"""How raw scores become calibrated probabilities: curves that are plain numbers, fitted elsewhere, applied anywhere."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Literal

import numpy as np
from pydantic import Field
from scipy.special import expit, logit

from pipelines.errors import UsageError
from pipelines.model.arrays import Scores

_CLIP = 1e-12  # log-odds of ±27.6: beyond it a float64 logit says nothing that a calibration set could have shown


@dataclass(frozen=True)
class SigmoidCurve:
    """Platt scaling on the log-odds: ``p' = expit(slope · logit(p) + intercept)``, p clipped to [1e-12, 1 − 1e-12]."""

    slope: float
    intercept: float
    kind: Literal["sigmoid"] = "sigmoid"

    def apply(self, scores: Scores) -> Scores:
        """Map probabilities of shape (rows,) to calibrated ones; NaN stays NaN."""
        odds = logit(np.clip(scores, _CLIP, 1 - _CLIP))
        return np.asarray(expit(self.slope * odds + self.intercept), np.float64)


@dataclass(frozen=True)
class IsotonicCurve:
    """A monotone curve through knots: linear between them, flat outside."""

    x: tuple[float, ...]
    y: tuple[float, ...]
    kind: Literal["isotonic"] = "isotonic"

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y) or not self.x or any(b <= a for a, b in pairwise(self.x)):
            raise UsageError(
                "an isotonic curve needs as many x as y, and x strictly increasing",
                found=f"{len(self.x)} x and {len(self.y)} y",
            )

    def apply(self, scores: Scores) -> Scores:
        """Map probabilities of shape (rows,) to calibrated ones; NaN stays NaN."""
        return np.interp(scores, self.x, self.y)


Curve = Annotated[SigmoidCurve | IsotonicCurve, Field(discriminator="kind")]


@dataclass(frozen=True)
class Calibrator:
    """One curve per score column: one for a binary model, else one per class (against the rest, then normalised)."""

    curves: tuple[Curve, ...]

    @property
    def kind(self) -> str:
        """``"sigmoid"`` or ``"isotonic"``."""
        return self.curves[0].kind

    def apply(self, scores: Scores) -> Scores:
        """Calibrate scores of shape (rows,) or (rows, classes); the shape stays, rows of several classes sum to one."""
        columns = scores.reshape(len(scores), -1)
        if columns.shape[1] != len(self.curves):
            raise UsageError(
                "the calibrator does not fit the model",
                expected=f"{columns.shape[1]} curves (score columns)",
                found=f"{len(self.curves)}",
            )
        if len(self.curves) == 1:
            return self.curves[0].apply(columns[:, 0]).reshape(scores.shape)
        mapped = np.stack([curve.apply(columns[:, i]) for i, curve in enumerate(self.curves)], axis=1)
        return _normalised(mapped)


def _normalised(columns: Scores) -> Scores:
    # Added column by column: np.sum over axis 1 adds in an order that may depend on the number of rows.
    total = columns[:, 0].copy()
    for i in range(1, columns.shape[1]):
        total += columns[:, i]
    uniform = np.full_like(columns, 1 / columns.shape[1])
    return np.divide(columns, total[:, None], out=uniform, where=(total > 0)[:, None] | np.isnan(total)[:, None])
