"""What is computed over weights that no rank has all of? Inner products, block by block, and L-BFGS's direction.

Each block's share is computed by whoever hosts it, all shares are exchanged, and everyone adds them in the order of the
blocks: the same floats everywhere, whichever rank hosts what.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from pipelines.training.gang import Collective
from pipelines.training.gang.context import Array
from pipelines.training.optimisers.space import Pair

_SLICE = 1 << 14
"""Elements of 21 vectors that are multiplied at a time: 2.6 MiB, near the cache's size."""


def in_order(values: Array) -> float:
    """Add one after the other, as written: the same bits with every version of NumPy."""
    return float(np.cumsum(values)[-1]) if len(values) else 0.0


class BlockSpace:
    """A `Space` of vectors whose column blocks are spread over ranks. Called by all ranks together.

    Parameters
    ----------
    collective : Collective
    hosts : sequence of sequence of int
        For each rank its blocks.
    segments : mapping of int to slice
        Where this rank's blocks are in its vectors.
    """

    def __init__(self, collective: Collective, hosts: Sequence[Sequence[int]], segments: Mapping[int, slice]) -> None:
        self._collective, self._segments = collective, list(segments.values())
        self._order = np.argsort(np.array([number for own in hosts for number in own], np.int64))

    def dots(self, pairs: Sequence[Pair]) -> list[float]:
        """See `Space.dots`: one exchange for all of them."""
        own = [[float(a[part] @ b[part]) for a, b in pairs] for part in self._segments]
        return [in_order(column) for column in self._gathered(np.array(own)).T]

    def largest(self, vector: Array) -> float:
        """See `Space.largest`."""
        return float(self._gathered(np.abs(vector).max(initial=0.0).reshape(1, 1), by_block=False).max())

    def one_norm(self, vector: Array, penalised: Array) -> float:
        """See `Space.one_norm`."""
        size = np.where(penalised, np.abs(vector), 0.0)
        own = np.array([[size[part].sum()] for part in self._segments])
        return in_order(self._gathered(own)[:, 0])

    def direction(self, descent: Array, pairs: Sequence[Pair], diagonal: Array) -> Array:
        """See `Space.direction`: one exchange, whose size does not hang on the number of weights.

        As in Chen, Wang & Zhou, "Large-scale L-BFGS using MapReduce" (NIPS 2014): the two-loop recursion's vector is a
        combination of the s, the y and the gradient, so its inner products follow from those between these. Departure:
        the first Hessian is a scaled diagonal D, not a scaled identity, so that the products of the y among themselves
        are taken with D⁻¹.

        Legend: k pairs; S, Y matrices of the s and the y; g the descent; q = -g - Σ a·y; γ the first Hessian's scale.
        """
        k = len(pairs)
        if not k:
            return -descent / diagonal
        own = np.array([self._products(descent[part], pairs, diagonal[part], part) for part in self._segments])
        total = np.array([in_order(column) for column in self._gathered(own).T]).reshape(2, k, k + 1)
        SY, Sg, YDY, YDg = total[0, :, :k], total[0, :, k], total[1, :, :k], total[1, :, k]
        a = np.zeros(k)
        for i in reversed(range(k)):
            a[i] = (-Sg[i] - SY[i] @ a) / SY[i, i]
        scale = SY[-1, -1] / YDY[-1, -1]
        c = np.zeros(k)  # of each s
        for i in range(k):
            beta = (scale * (-YDg[i] - YDY[i] @ a) + SY[:, i] @ c) / SY[i, i]
            c[i] = a[i] - beta
        direction = -descent
        for (_, y), factor in zip(pairs, a, strict=True):
            direction -= factor * y
        direction *= scale
        direction /= diagonal
        for (s, _), factor in zip(pairs, c, strict=True):
            direction += factor * s
        return direction

    def _products(self, descent: Array, pairs: Sequence[Pair], diagonal: Array, part: slice) -> Array:
        """Multiply S with (Y, g) and D⁻¹Y with (Y, g), of one block; shape (2·k·(k + 1),)."""
        k = len(pairs)
        total = np.zeros((2, k, k + 1))
        for start in range(part.start, part.stop, _SLICE):
            stop = min(start + _SLICE, part.stop)
            here = slice(start - part.start, stop - part.start)
            S = np.array([s[start:stop] for s, _ in pairs])
            Yg = np.array([*(y[start:stop] for _, y in pairs), descent[here]])
            total[0] += S @ Yg.T
            total[1] += (Yg[:k] / diagonal[here]) @ Yg.T
        return total.reshape(-1)

    def _gathered(self, own: Array, *, by_block: bool = True) -> Array:
        """Bring the rows of all ranks together: one for each block, in the blocks' order (or one for each rank)."""
        payloads = self._collective.allgather(own.tobytes())
        rows = np.frombuffer(b"".join(payloads), np.float64).reshape(-1, own.shape[1])
        return rows[self._order] if by_block else rows
