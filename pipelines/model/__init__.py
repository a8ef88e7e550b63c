"""Trained models as one value: feature plan, target, predictor, calibrator and threshold, in plain files."""

from pipelines.model.calibration import Calibrator, IsotonicCurve, SigmoidCurve
from pipelines.model.golden import Golden, GoldenRowsError, golden_rows
from pipelines.model.model import Model
from pipelines.model.store import load_model, save_model

__all__ = [
    "Calibrator",
    "Golden",
    "GoldenRowsError",
    "IsotonicCurve",
    "Model",
    "SigmoidCurve",
    "golden_rows",
    "load_model",
    "save_model",
]
