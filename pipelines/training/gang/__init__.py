"""Ranks that train together: started all or none, watched, and ended together."""

from pipelines.training.gang.context import Collective, Deadlines, RankContext, StopRequested
from pipelines.training.gang.run import run_gang

__all__ = ["Collective", "Deadlines", "RankContext", "StopRequested", "run_gang"]
