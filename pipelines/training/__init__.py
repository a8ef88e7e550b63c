"""Gangs of ranks, the collective, training strategies, estimators and checkpoints."""

from pipelines.training.config import CheckpointConfig, TrainConfig
from pipelines.training.data import TrainingData
from pipelines.training.fit import Fit, Progress, fit
from pipelines.training.gang import Deadlines

__all__ = ["CheckpointConfig", "Deadlines", "Fit", "Progress", "TrainConfig", "TrainingData", "fit"]
