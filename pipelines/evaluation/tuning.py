"""Choose on the validation part what turns scores into decisions: a calibration curve and a threshold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipelines.evaluation.config import EvaluateConfig
from pipelines.evaluation.evaluate import EvaluationData, ModelRef
from pipelines.evaluation.result import Part
from pipelines.model.calibration import Calibrator

if TYPE_CHECKING:
    from distributed import Client

    from pipelines.model import Model


@dataclass(frozen=True)
class CalibrationRecord:
    """How a calibration was fitted; `exact` is False where neighbouring scores had to be put together."""

    method: str
    rows: int
    groups: int
    exact: bool
    log_loss_before: float
    log_loss_after: float


@dataclass(frozen=True)
class ThresholdRecord:
    """How a threshold was chosen, and what it gives on the rows that it was chosen on."""

    rule: str
    threshold: float
    precision: float | None
    recall: float | None
    f1: float | None
    accuracy: float | None


@dataclass(frozen=True)
class Tuning:
    """What was chosen on validation, to be put on the model and into the record of the run."""

    part: Part
    rows: int
    calibrator: Calibrator | None = None
    calibration: CalibrationRecord | None = None
    threshold: ThresholdRecord | None = None

    def apply(self, model: Model) -> Model:
        """Put the calibrator and the threshold on a model."""
        tuned = model if self.calibrator is None else model.with_calibration(self.calibrator)
        return tuned if self.threshold is None else tuned.with_threshold(self.threshold.threshold)


def tune(
    model: ModelRef,
    data: EvaluationData,
    config: EvaluateConfig,
    *,
    client: Client | None,
    scratch_url: str,
    part: Part = "validation",
    deadline_s: float = 3600.0,
) -> Tuning:
    """Fit `config.calibrate` and choose `config.threshold` in one pass over `part`; see `evaluate` for the rest.

    The threshold is chosen on calibrated scores.

    Raises
    ------
    DataError
        The part has no rows, or rows of one class only.
    """
    raise NotImplementedError
