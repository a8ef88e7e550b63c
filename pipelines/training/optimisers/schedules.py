"""How large is the step of gradient descent at each step?"""

from __future__ import annotations

import math
from typing import Literal

Schedule = Literal["constant", "inverse_scaling", "linear", "cosine"]


def rate(schedule: Schedule, step: int, total: int, *, first: float, power: float = 0.5, warmup: int = 0) -> float:
    """Return the learning rate of a step.

    Parameters
    ----------
    schedule : {"constant", "inverse_scaling", "linear", "cosine"}
        Constant; first / (1 + step)^power; falling to zero at `total` along a line or half a cosine.
    step, total : int
        Counted from 0, over all epochs.
    first : float
    warmup : int
        So many first steps rise along a line to `first`.
    """
    if step < warmup:
        return first * (step + 1) / warmup
    step, total = step - warmup, max(total - warmup, 1)
    share = min(step / total, 1.0)
    match schedule:
        case "constant":
            return first
        case "inverse_scaling":
            return first / (1 + step) ** power
        case "linear":
            return first * (1 - share)
        case "cosine":
            return first * 0.5 * (1 + math.cos(math.pi * share))
