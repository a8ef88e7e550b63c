"""AUC and average precision from scores in descending order, streamed: exact, with ties, in constant memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from pipelines.evaluation.groups import Groups
from pipelines.evaluation.sums import Floats, as_float, exact, grouped_sums, ratio, whole


@dataclass(frozen=True)
class Ranks:
    """What the ranking metrics are made of, exact sums in the units of `sums`.

    positive, negative : weights of the two kinds of rows
    pairs2 : twice the weight of the (positive, negative) pairs in the right order, a tie counting half
    precision : Σ over distinct scores of (positive weight there) · (precision among the scores down to it)
    """

    positive: int = 0
    negative: int = 0
    pairs2: int = 0
    precision: int = 0

    def auc(self) -> float | None:
        """Area under the ROC curve, equal to `sklearn.metrics.roc_auc_score`; None when a class has no weight."""
        if not self.positive or not self.negative:
            return None
        # pairs2 is in units, the product of the two weights in squared units.
        return ratio(whole(self.pairs2), 2 * self.positive * self.negative)

    def average_precision(self) -> float | None:
        """As `sklearn.metrics.average_precision_score`; None when there are no positive rows."""
        return ratio(self.precision, self.positive) if self.positive else None


def rank(stream: Iterable[Groups]) -> Ranks:
    """Read groups in descending order of their scores (distinct over the whole stream) and rank them."""
    found = Ranks()
    for groups in stream:
        found = _next(found, groups)
    return found


def _next(above: Ranks, groups: Groups) -> Ranks:
    if not len(groups):
        return above
    counted = groups.positive.dtype == np.int64
    positive, negative, pairs2 = _counts(above, groups) if counted else _weights(above, groups)
    hits = as_float(above.positive) + np.cumsum(np.asarray(groups.positive, np.float64))
    said = hits + as_float(above.negative) + np.cumsum(np.asarray(groups.negative, np.float64))
    return Ranks(
        positive=above.positive + positive,
        negative=above.negative + negative,
        pairs2=above.pairs2 + pairs2,
        precision=above.precision + grouped_sums(groups.positive * (hits / said))[0],
    )


def _counts(above: Ranks, groups: Groups) -> tuple[int, int, int]:
    positive, negative = int(groups.positive.sum()), int(groups.negative.sum())
    before = np.cumsum(groups.positive) - groups.positive
    rank2 = 2 * before + groups.positive
    if 2 * positive * negative < 1 << 62:
        local = int((groups.negative * rank2).sum())
    else:  # enormous ties: Python's integers don't overflow
        local = sum(n * r for n, r in zip(groups.negative.tolist(), rank2.tolist(), strict=True))
    return whole(positive), whole(negative), whole(local) + 2 * above.positive * negative


def _weights(above: Ranks, groups: Groups) -> tuple[int, int, int]:
    positive: Floats = np.asarray(groups.positive, np.float64)
    negative: Floats = np.asarray(groups.negative, np.float64)
    before = np.cumsum(positive) - positive
    local = grouped_sums(negative * (2.0 * before + positive))[0]
    negative_sum = grouped_sums(negative)[0]
    base = exact(as_float(above.positive))
    return grouped_sums(positive)[0], negative_sum, local + (2 * base * negative_sum) // whole(1)
