"""Where do an optimiser's vectors live? Whole in one process, or in parts whose sums are agreed upon.

An optimiser adds and scales vectors as NumPy arrays, element by element, which every holder of a part does for itself.
All that needs whole vectors goes through a `Space`; its answers are the same on all holders, and so are the decisions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import numpy as np

from pipelines.training.gang.context import Array
from pipelines.training.optimisers.oracle import largest

Pair: TypeAlias = tuple[Array, Array]


class Space(Protocol):
    """What is computed over whole vectors. Called by all holders together."""

    def dots(self, pairs: Sequence[Pair]) -> list[float]:
        """Return the inner product of each pair."""
        ...

    def largest(self, vector: Array) -> float:
        """Return the largest absolute component, 0 for none."""
        ...

    def one_norm(self, vector: Array, penalised: Array) -> float:
        """Return the sum of absolute components, of those that are `penalised` (bool)."""
        ...

    def direction(self, descent: Array, pairs: Sequence[Pair], diagonal: Array) -> Array:
        """Multiply -`descent` with L-BFGS's approximation of the inverse Hessian.

        Parameters
        ----------
        descent : ndarray
            A (sub)gradient.
        pairs : sequence of (s, y)
            Past steps and changes of the gradient, the oldest first.
        diagonal : ndarray
            Of the first Hessian, up to its scale.
        """
        ...


class Whole:
    """Vectors that are whole in this process."""

    def dots(self, pairs: Sequence[Pair]) -> list[float]:
        """See `Space.dots`."""
        return [float(a @ b) for a, b in pairs]

    def largest(self, vector: Array) -> float:
        """See `Space.largest`."""
        return largest(vector)

    def one_norm(self, vector: Array, penalised: Array) -> float:
        """See `Space.one_norm`."""
        return float(np.abs(vector[penalised]).sum())

    def direction(self, descent: Array, pairs: Sequence[Pair], diagonal: Array) -> Array:
        """See `Space.direction`: the two-loop recursion (Nocedal & Wright, algorithm 7.4)."""
        direction = -descent
        alphas = []
        for s, y in reversed(pairs):
            alpha = float(s @ direction) / float(s @ y)
            direction = direction - alpha * y
            alphas.append(alpha)
        direction = direction / diagonal
        if pairs:
            s, y = pairs[-1]
            direction = direction * (float(s @ y) / float(y @ (y / diagonal)))
        for (s, y), alpha in zip(pairs, reversed(alphas), strict=True):
            beta = float(y @ direction) / float(s @ y)
            direction = direction + (alpha - beta) * s
        return direction


WHOLE = Whole()
