"""Running plans: driver, journal, stage cache, resume and cancel."""

from pipelines.run.chaos import resumes_by_itself
from pipelines.run.context import StageContext
from pipelines.run.handle import RunHandle, attach
from pipelines.run.journal import Event
from pipelines.run.listing import list_runs
from pipelines.run.models import load_model, open_registry, predict_dataset
from pipelines.run.pipeline import Pipeline
from pipelines.run.record import RunRecord, StageRecord, TrialRecord, fold
from pipelines.run.training_record import TrainingRecord

__all__ = [
    "Event",
    "Pipeline",
    "RunHandle",
    "RunRecord",
    "StageContext",
    "StageRecord",
    "TrainingRecord",
    "TrialRecord",
    "attach",
    "fold",
    "list_runs",
    "load_model",
    "open_registry",
    "predict_dataset",
    "resumes_by_itself",
]
