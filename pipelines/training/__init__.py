"""Gangs of ranks, the collective, training strategies, estimators and checkpoints.

The public names are loaded when they are first used: every rank imports this package, and most need a part of it.
`fit` itself is `pipelines.training.fit.fit`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipelines.training.config import CheckpointConfig, TrainConfig
    from pipelines.training.data import TrainingData
    from pipelines.training.fit import Fit, Progress
    from pipelines.training.gang import Deadlines

__all__ = ["CheckpointConfig", "Deadlines", "Fit", "Progress", "TrainConfig", "TrainingData"]

_HOMES = {
    "CheckpointConfig": "config",
    "TrainConfig": "config",
    "TrainingData": "data",
    "Fit": "fit",
    "Progress": "fit",
    "Deadlines": "gang",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
