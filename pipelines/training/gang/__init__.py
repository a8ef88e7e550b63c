"""Ranks that train together: started all or none, watched, formed again after losses, and ended together."""

from pipelines.training.gang.context import Collective, Deadlines, RankContext, Regroup, StopRequested
from pipelines.training.gang.membership import Sizes
from pipelines.training.gang.run import GangResult, Loss, run_gang

__all__ = [
    "Collective", "Deadlines", "GangResult", "Loss", "RankContext", "Regroup", "Sizes", "StopRequested", "run_gang",
]  # fmt: skip
