"""How are the lanes' partial results added up, over ranks? To the same bits, whichever rank hosts which lane."""

from __future__ import annotations

from itertools import pairwise
from typing import Protocol

import numpy as np

from pipelines.training.gang import Collective
from pipelines.training.gang.context import Array
from pipelines.training.reproducible import Binned, deposit, finish, merge

PIECE_VALUES = 1 << 15
"""Elements of the pieces of a long vector, at most: their sums stay below 1 MiB, from where on ranks get their memory
anew from the kernel for every array, which costs more than the arithmetic (3 µs a page, on a virtual machine)."""
GATHER_VALUES = 1 << 16
"""Up to so many elements of all ranks together (1.6 MiB) rank 0 takes in everything, which saves a hop: two ranks break
even at 32,768 each."""


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
        size = partials.shape[1]
        if self._collective.size == 1:
            return finish(deposit(partials))
        if size * self._collective.size <= GATHER_VALUES:
            sums = self._collective.gather(deposit(partials).to_bytes())
            return None if sums is None else _added(sums, size)
        return self._by_pieces(partials)

    def _by_pieces(self, partials: Array) -> Array | None:
        """Let every rank add up its pieces of the vector, one in each round, and hand them to rank 0 at the end."""
        ranks, rank = self._collective.size, self._collective.rank
        rounds = -(-partials.shape[1] // (ranks * PIECE_VALUES))
        cuts = [partials.shape[1] * each // (rounds * ranks) for each in range(rounds * ranks + 1)]
        pieces = [slice(*ends) for ends in pairwise(cuts)]
        mine = []
        for each in range(rounds):
            given = [deposit(partials[:, piece]).to_bytes() for piece in pieces[each * ranks : (each + 1) * ranks]]
            own = pieces[each * ranks + rank]
            mine.append(_added(self._collective.alltoall(given), own.stop - own.start).tobytes())
        gathered = self._collective.gather(b"".join(mine))
        if gathered is None:
            return None
        total = np.empty(partials.shape[1])
        for sender, payload in enumerate(gathered):
            values = np.frombuffer(payload)
            for piece in pieces[sender::ranks]:
                count = piece.stop - piece.start
                total[piece], values = values[:count], values[count:]
        return total


def _added(sums: list[bytes], size: int) -> Array:
    return finish(merge([Binned.from_bytes(each, size) for each in sums]))
