"""Ranks that train together: started all or none, watched, formed again after losses, and ended together."""

from pipelines.training.gang.context import Collective, Deadlines, RankContext, Regroup, StopRequested
from pipelines.training.gang.members import Sizes
from pipelines.training.gang.run import GangResult, Loss, run_gang
from pipelines.training.gang.strikes import Strikes, Struck

__all__ = [
    "Collective", "Deadlines", "GangResult", "Loss", "RankContext", "Regroup", "Sizes", "StopRequested", "Strikes",
    "Struck", "run_gang",
]  # fmt: skip
