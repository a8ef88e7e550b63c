"""Using models: batch scoring."""

from pipelines.serving.batch import Scored, predict_dataset

__all__ = ["Scored", "predict_dataset"]
