"""Metrics over splits and segments, calibration, thresholds and gates."""

from pipelines.evaluation.config import EvaluateConfig, check_metrics, check_segments
from pipelines.evaluation.evaluate import evaluate
from pipelines.evaluation.gates import check_gates, compare
from pipelines.evaluation.request import EvaluationData, ModelRef
from pipelines.evaluation.result import Comparison, Evaluation, GateResult, Measures, PartEvaluation
from pipelines.evaluation.tuning import Tuning, tune

__all__ = [
    "Comparison",
    "EvaluateConfig",
    "Evaluation",
    "EvaluationData",
    "GateResult",
    "Measures",
    "ModelRef",
    "PartEvaluation",
    "Tuning",
    "check_gates",
    "check_metrics",
    "check_segments",
    "compare",
    "evaluate",
    "tune",
]
