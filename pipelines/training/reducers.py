"""How are the lanes' partial results added up, over ranks?

A `Reducer` is a seam: what is added per lane, in the order of lanes, has the same bits on any number of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from pipelines.training.gang import Collective
from pipelines.training.gang.context import Array

ORDERED_BYTES = 1 << 20
"""Up to so many bytes of all lanes' vectors are added in lane order; beyond, ranks add their own lanes first."""


class Reducer(Protocol):
    """Adds vectors that were computed lane by lane. Called by all ranks together; all get the sum."""

    def sum(self, partials: Sequence[Array]) -> Array:
        """Add the vectors of all ranks' lanes.

        Parameters
        ----------
        partials : sequence of ndarray of float64, equal shapes
            One per lane that this rank hosts, in the order of lanes; hosts' lanes follow each other in rank order.
        """
        ...


class LaneOrder:
    """In the order of lanes where that is cheap: bit-identical for any number of ranks. Else in the order of ranks.

    Parameters
    ----------
    collective : Collective
    lanes : int
        Lanes of all ranks.
    size : int
        Length of a vector; ranks without lanes must know it too.
    """

    def __init__(self, collective: Collective, lanes: int) -> None:
        self._collective, self._lanes = collective, lanes

    def sum(self, partials: Sequence[Array], size: int | None = None) -> Array:
        """See `Reducer.sum`. A rank without lanes says the vectors' `size`."""
        size = len(partials[0]) if partials else size
        assert size is not None
        if self._collective.size == 1:
            return add_in_order(partials, size)
        if size * self._lanes * 8 > ORDERED_BYTES:
            return self._collective.allreduce(add_in_order(partials, size))
        gathered = self._collective.allgather(np.concatenate([*partials, np.empty(0)]).tobytes())
        vectors = np.frombuffer(b"".join(gathered), np.float64).reshape(-1, size)
        return add_in_order(list(vectors), size)


def add_in_order(vectors: Sequence[Array], size: int) -> Array:
    """Add vectors one after the other, starting from zero."""
    total = np.zeros(size)
    for vector in vectors:
        total += vector
    return total
