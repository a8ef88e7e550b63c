"""How are the lanes' partial results added up, over ranks? To the same bits, whichever rank hosts which lane."""

from __future__ import annotations

from itertools import pairwise
from typing import Protocol

import numpy as np

from pipelines.training.gang import Collective
from pipelines.training.gang.context import Array
from pipelines.training.reproducible import Binned, deposit, finish, merge

GATHER_VALUES = 4096
"""Up to so many elements rank 0 takes in all ranks' sums; beyond, every rank adds up a piece of the vector."""


class Reducer(Protocol):
    """Adds vectors that were computed lane by lane. Called by all ranks together."""

    def sum(self, partials: Array) -> Array | None:
        """Add the vectors of all ranks' lanes, for rank 0.

        Parameters
        ----------
        partials : ndarray of float64, shape (own lanes, size)
            One row per lane that this rank hosts; there may be none. `size` is the same on all ranks.

        Returns
        -------
        ndarray of float64, shape (size,), or None on other ranks
        """
        ...


class ReproducibleSum:
    """Bit-identical for any number of ranks, any dealing of lanes and any size (`reproducible`).

    Rank 0 receives one sum per rank of a short vector, and about one plain vector of a long one.

    Parameters
    ----------
    collective : Collective
    """

    def __init__(self, collective: Collective) -> None:
        self._collective = collective

    def sum(self, partials: Array) -> Array | None:
        """See `Reducer.sum`."""
        own, size = deposit(partials), partials.shape[1]
        if self._collective.size == 1:
            return finish(own)
        if size <= GATHER_VALUES:
            sums = self._collective.gather(own.to_bytes())
            return None if sums is None else _added(sums, size)
        return self._by_pieces(own, size)

    def _by_pieces(self, own: Binned, size: int) -> Array | None:
        ranks, rank = self._collective.size, self._collective.rank
        cuts = list(pairwise(size * each // ranks for each in range(ranks + 1)))
        sums = self._collective.alltoall([own.part(*cut).to_bytes() for cut in cuts])
        piece = _added(sums, cuts[rank][1] - cuts[rank][0])
        pieces = self._collective.gather(piece.tobytes())
        return None if pieces is None else np.concatenate([np.frombuffer(each) for each in pieces])


def _added(sums: list[bytes], size: int) -> Array:
    return finish(merge([Binned.from_bytes(each, size) for each in sums]))
