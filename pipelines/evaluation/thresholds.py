"""Choose where a binary model says yes, from ordered groups of validation scores."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from pipelines.errors import GateNotMetError
from pipelines.evaluation.config import ThresholdRule
from pipelines.evaluation.groups import Groups
from pipelines.evaluation.sums import Floats


@dataclass(frozen=True)
class Decided:
    """A threshold, and the weights of true and false positives at it."""

    threshold: float
    hits: float
    false_alarms: float


def choose_threshold(
    rule: ThresholdRule, stream: Iterable[Groups], *, positive: float, negative: float, on: str = "validation"
) -> Decided:
    """Find the threshold that is best by a rule; of several, the highest.

    It lies halfway between the lowest score that is still said yes to and the next lower one, so that the rounding of
    another runtime does not turn rows over.

    Parameters
    ----------
    rule : ThresholdRule
        Not a fixed one.
    stream : iterable of Groups
        Descending scores; neighbouring chunks may share one (a calibrated plateau).
    positive, negative : float
        Weights of the two classes in the whole stream.

    Raises
    ------
    GateNotMetError
        No threshold keeps the floor that the rule asks for.
    """
    best: tuple[float, Decided] | None = None
    nearest = 0.0
    hits_above = alarms_above = 0.0
    for scores, next_score, hits_here, alarms_here in _with_next(_plateaus(stream)):
        hits, alarms = hits_above + np.cumsum(hits_here), alarms_above + np.cumsum(alarms_here)
        worth, nearest = _worth(rule, hits, alarms, positive, negative, nearest)
        i = int(np.argmax(worth))
        if worth[i] > (best[0] if best else -np.inf):
            threshold = _halfway(float(scores[i]), float(next_score[i]))
            best = float(worth[i]), Decided(threshold, float(hits[i]), float(alarms[i]))
        hits_above, alarms_above = float(hits[-1]), float(alarms[-1])
    if best is None:
        raise GateNotMetError(
            f"no threshold reaches a {rule.objective} of {rule.number} there",
            on=on,
            found=f"{nearest:.6g} at most",
            remedy="Lower the floor in evaluate.threshold, or improve the model.",
        )
    return best[1]


def _worth(
    rule: ThresholdRule, hits: Floats, alarms: Floats, positive: float, negative: float, nearest: float
) -> tuple[Floats, float]:
    """Give the worth of each threshold (-inf where the floor isn't kept), and the best of the floored quantity."""
    precision, recall = hits / (hits + alarms), hits / positive
    match rule.objective:
        case "f1":
            return 2 * hits / (hits + alarms + positive), nearest
        case "youden":
            return recall - alarms / negative, nearest
        case "accuracy":
            return (hits + negative - alarms) / (positive + negative), nearest
        case "precision":
            return np.where(precision >= (rule.number or 0), recall, -np.inf), max(nearest, float(precision.max()))
        case _:
            return np.where(recall >= (rule.number or 0), precision, -np.inf), max(nearest, float(recall.max()))


def _halfway(score: float, lower: float) -> float:
    if lower == -np.inf:
        return score
    middle = lower + (score - lower) / 2
    return middle if lower < middle <= score else score


_Chunk = tuple[Floats, Floats, Floats]


def _plateaus(stream: Iterable[Groups]) -> Iterator[_Chunk]:
    """Put equal neighbouring scores together, across chunks too."""
    held: _Chunk | None = None
    for groups in stream:
        if not len(groups):
            continue
        chunk = (groups.scores, groups.positive.astype(np.float64), groups.negative.astype(np.float64))
        scores, positive, negative = chunk if held is None else _joined(held, chunk)
        starts = np.flatnonzero(np.concatenate([[True], scores[1:] != scores[:-1]]))
        pooled = scores[starts], np.add.reduceat(positive, starts), np.add.reduceat(negative, starts)
        held = _cut(pooled, slice(len(starts) - 1, None))
        if len(starts) > 1:
            yield _cut(pooled, slice(0, len(starts) - 1))
    if held is not None:
        yield held


def _with_next(chunks: Iterable[_Chunk]) -> Iterator[tuple[Floats, Floats, Floats, Floats]]:
    """Give beside each score the next lower one; -inf after the last."""
    before: _Chunk | None = None
    for chunk in chunks:
        if before is not None:
            yield before[0], np.append(before[0][1:], chunk[0][0]), before[1], before[2]
        before = chunk
    if before is not None:
        yield before[0], np.append(before[0][1:], -np.inf), before[1], before[2]


def _joined(left: _Chunk, right: _Chunk) -> _Chunk:
    a, b, c = (np.concatenate([x, y]) for x, y in zip(left, right, strict=True))
    return a, b, c


def _cut(chunk: _Chunk, rows: slice) -> _Chunk:
    return chunk[0][rows], chunk[1][rows], chunk[2][rows]
