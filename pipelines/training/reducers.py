"""How are the lanes' partial results added up, over ranks?

A `Reducer` is a seam: what is added per lane, in the order of lanes, has the same bits on any number of ranks.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from pipelines.training.gang import Collective
from pipelines.training.gang.context import Array

ORDERED_BYTES = 1 << 20
"""Up to so many bytes of all lanes' vectors are added in lane order; beyond, ranks add their own lanes first."""
RARE = 32
"""So many times more for what is added rarely: 32 MiB take some 20 ms on one machine."""


class Reducer(Protocol):
    """Adds vectors that were computed lane by lane. Called by all ranks together."""

    def sum(self, partials: Array, *, rare: bool = False) -> Array | None:
        """Add the vectors of all ranks' lanes, for rank 0.

        Parameters
        ----------
        partials : ndarray of float64, shape (own lanes, size)
            One row per lane that this rank hosts, in the order of lanes; hosts' lanes follow each other in rank order.
        rare : bool
            Such a sum is needed a few times only, and may cost more.

        Returns
        -------
        ndarray of float64, shape (size,), or None on other ranks
        """
        ...


class LaneOrder:
    """In the order of lanes where that is cheap: bit-identical for any number of ranks. Else in the order of ranks.

    Parameters
    ----------
    collective : Collective
    lanes : int
        Lanes of all ranks.
    """

    def __init__(self, collective: Collective, lanes: int) -> None:
        self._collective, self._lanes = collective, lanes

    def sum(self, partials: Array, *, rare: bool = False) -> Array | None:
        """See `Reducer.sum`."""
        if self._collective.size == 1:
            return add_in_order(partials)
        size = partials.shape[1]
        if size * self._lanes * 8 > ORDERED_BYTES * (RARE if rare else 1):
            return self._collective.allreduce(add_in_order(partials))
        gathered = self._collective.gather(partials.tobytes())
        return None if gathered is None else add_in_order(np.frombuffer(b"".join(gathered)).reshape(-1, size))


def add_in_order(rows: Array) -> Array:
    """Add the rows of a contiguous matrix one after the other (which is how NumPy reduces its first axis)."""
    total: Array = np.add.reduce(rows, axis=0)
    return total
