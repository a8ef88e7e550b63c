"""Which ranks are slow, and how much of the work is fair for each? By seconds per row, of the same steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

SLOW = 1.5
"""A rank is slow that takes so many times as long per row as the median one."""
LEAST_S = 1.0
"""Of computing, before a rank is judged."""


@dataclass(frozen=True)
class Pace:
    """How long a rank has computed in its formation, and how many rows it has; all ranks have made the same steps."""

    seconds: float
    rows: int

    @property
    def per_row_s(self) -> float:
        """Seconds per row."""
        return self.seconds / max(self.rows, 1)


def slow_ranks(paces: Mapping[int, Pace]) -> dict[int, float]:
    """Return the slow ranks, and how many times as long as the median they take; none while there is little to see."""
    judged = {rank: pace.per_row_s for rank, pace in paces.items() if pace.seconds > 0 and pace.rows}
    if len(judged) < 2:
        return {}
    # Of two, the median is between them: the faster one is what the other is held against.
    usual = median(judged.values()) if len(judged) > 2 else min(judged.values())
    slow = {rank: each / usual for rank, each in sorted(judged.items()) if each >= SLOW * usual}
    return {rank: ratio for rank, ratio in slow.items() if paces[rank].seconds >= LEAST_S}


def speeds(paces: Mapping[int, Pace], ranks: int) -> Sequence[float]:
    """Return each rank's speed, 1 for the fastest; ranks of which nothing is known count as fast."""
    known = {rank: pace.per_row_s for rank, pace in paces.items() if pace.seconds > 0 and pace.rows}
    best = min(known.values(), default=1.0)
    return [best / known[rank] if known.get(rank) else 1.0 for rank in range(ranks)]
