"""What a lane does between two reductions: steps of its own, from weights that all share (local SGD, Stich, 2019).

Plain descent on sparse rows touches the weights of their own features only, so that a step costs what its rows hold
and not what the model has. Penalties, which pull at every weight, are then taken once at the end of the lane's steps,
as their proximal step over the sum of the step sizes (forward-backward splitting: Duchi & Singer, "Efficient Online and
Batch Learning Using Forward Backward Splitting", 2009; that of both penalties: Parikh & Boyd, "Proximal Algorithms",
2014, 6.5.2). So large penalties want few steps between reductions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pipelines.training.batches import LaneStream
from pipelines.training.gang.context import Array
from pipelines.training.optimisers.rules import Rule
from pipelines.training.passes import HEAD, Passes
from pipelines.training.strategies.penalty import Penalty


@dataclass(frozen=True)
class Run:
    """Which mini-batches a lane goes through: `count` from `step` on, of `steps` an epoch has.

    `number` is the first one's among all updates.
    """

    epoch: int
    step: int
    steps: int
    count: int
    number: int


@dataclass(frozen=True, eq=False)
class LocalSteps:
    """How a rank's lanes take steps of their own.

    Parameters
    ----------
    passes : Passes
    streams : mapping of int to LaneStream
    rule : Rule
    penalty : Penalty
    sparse : bool
        Whether the rows are.
    """

    passes: Passes
    streams: Mapping[int, LaneStream]
    rule: Rule
    penalty: Penalty
    sparse: bool

    def take(self, start: Array, run: Run) -> Array:
        """Take each lane's steps from common weights and memory.

        Parameters
        ----------
        start : ndarray of float64, shape (1 + memories, weights)

        Returns
        -------
        ndarray of float64, shape (lanes, HEAD + start.size)
            Sums of the losses (with the l2 penalty: on sparse rows that of the start) and of the weights of rows; and
            how far weights and memory have moved, times the latter.
        """

        def work(stream: LaneStream, total: Array) -> None:
            own = start.copy()
            go = self._touch if self.sparse and self.rule.name == "sgd" else self._step
            total[:HEAD] = go(own, stream, run)
            own -= start
            np.multiply(own.reshape(-1), total[1], out=total[HEAD:])

        return self.passes.each(self.streams, HEAD + start.size, work)

    def _step(self, own: Array, stream: LaneStream, run: Run) -> Array:
        """Take steps along whole gradients, penalties included."""
        head = np.zeros(HEAD)
        for place in range(run.count):
            self.passes.look()
            sums = np.zeros(HEAD + own.shape[1])
            self.passes.part(self._shaped(own), stream, run.epoch, run.step + place, run.steps, sums)
            if sums[1] > 0:
                loss, slope = self.penalty.mean(own[0], sums)
                head += loss * sums[1], sums[1]
                self.rule.update(own[0], own[1:], slope, run.number + place)
        return head

    def _touch(self, own: Array, stream: LaneStream, run: Run) -> Array:
        """Take plain steps where rows have features, then the penalties' step."""
        weights, head, sizes = self._shaped(own), np.zeros(HEAD), 0.0
        before = self.penalty.of_weights(own[0])
        for place in range(run.count):
            self.passes.look()
            rate = self.rule.rate(run.number + place)
            sums = self.passes.step(weights, stream, run.epoch, run.step + place, run.steps, rate)
            if self.penalty.fixed[-1]:
                weights[:, -1] = 0.0
            if sums[1] > 0:
                head += sums
                sizes += rate
        self.rule.shrink(own[0], sizes)  # first: the proximal step of both is that of the 1-norm, shortened
        if self.penalty.l2:
            own[0] /= np.where(self.penalty.penalised, 1 + self.penalty.l2 * sizes, 1.0)
        head[0] += before * head[1]
        return head

    def _shaped(self, own: Array) -> Array:
        """See the weights as rows of outputs."""
        return own[0].reshape(self.penalty.outputs, -1)
