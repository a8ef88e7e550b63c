"""Scores in order: equal scores put together, with the weights of positive and negative rows at each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines.evaluation.sums import Floats

Keys = npt.NDArray[np.uint64]
Weights = npt.NDArray[np.int64] | npt.NDArray[np.float64]
"""Numbers of rows (int64) when rows have no weights, else sums of weights."""

_SIGN = np.uint64(1 << 63)


@dataclass(frozen=True)
class Groups:
    """Distinct scores in descending order, each with the weights of its positive and of its negative rows."""

    scores: Floats
    positive: Weights
    negative: Weights

    def __len__(self) -> int:
        return len(self.scores)


def keys_of(scores: Floats) -> Keys:
    """Map finite float64 to uint64 in the *opposite* order, so that ascending keys are descending scores."""
    bits = (scores + 0.0).view(np.uint64)  # + 0.0 makes one zero of the two
    return np.where(bits & _SIGN, bits, bits ^ ~_SIGN)


def scores_of(keys: Keys) -> Floats:
    """Undo `keys_of`."""
    return np.where(keys & _SIGN, keys, keys ^ ~_SIGN).view(np.float64)


def group_rows(scores: Floats, positive: npt.NDArray[np.bool_], weight: Floats | None) -> tuple[Keys, Weights, Weights]:
    """Sort rows by descending score and put equal scores together: keys, positive and negative weights."""
    keys = keys_of(scores)
    if weight is not None:
        return combine(keys, np.where(positive, weight, 0.0), np.where(positive, 0.0, weight))
    if len(keys) and keys.max() < _SIGN:
        # No score is negative, so a key has a bit to spare: with the label in it, values are sorted, not an order
        # (17 ns a row instead of 60).
        packed = (keys << np.uint64(1)) | positive
        packed.sort()
        keys, positive = packed >> np.uint64(1), (packed & np.uint64(1)).astype(np.bool_)
        ones = positive.astype(np.int64)
        return _pooled(keys, ones, 1 - ones)
    ones = positive.astype(np.int64)
    return combine(keys, ones, 1 - ones)


def combine(keys: Keys, positive: Weights, negative: Weights) -> tuple[Keys, Weights, Weights]:
    """Sort keys and add up the weights of equal ones."""
    if not len(keys):
        return keys, positive, negative
    # Stable: equal keys keep the order of the shards, so that sums of weights round in the same way every time.
    order = np.argsort(keys, kind="stable" if positive.dtype == np.float64 else None)
    return _pooled(keys[order], positive[order], negative[order])


def _pooled(keys: Keys, positive: Weights, negative: Weights) -> tuple[Keys, Weights, Weights]:
    starts: Any = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    if len(starts) == len(keys):
        return keys, positive, negative
    return keys[starts], np.add.reduceat(positive, starts), np.add.reduceat(negative, starts)


def as_groups(keys: Keys, positive: Weights, negative: Weights) -> Groups:
    """Turn ascending distinct keys into groups."""
    return Groups(scores_of(keys), positive, negative)


def compress(stream: Iterable[Groups], cap: int, weight: float) -> Iterator[Groups]:
    """Put neighbouring scores together so that about `cap` groups remain of a stream that holds `weight` in all.

    A group of the result covers at least the `cap`-th part of the weight (the last may cover less); its score is the
    weighted mean of the scores in it.
    """
    share = weight / cap
    held: Groups | None = None
    for chunk in stream:
        joined = chunk if held is None else _join(held, chunk)
        cells = _cells(joined, share)
        kept = _pool(joined, cells)
        held = _slice(kept, len(kept) - 1, len(kept))
        if len(kept) > 1:
            yield _slice(kept, 0, len(kept) - 1)
    if held is not None:
        yield held


def _cells(groups: Groups, share: float) -> npt.NDArray[np.intp]:
    # Starts of cells: a new cell begins where the weight before it reaches the next multiple of the share.
    total = np.asarray(groups.positive + groups.negative, np.float64)
    before = np.cumsum(total) - total
    cell = np.floor(before / share)
    return np.flatnonzero(np.concatenate([[True], cell[1:] != cell[:-1]]))


def _pool(groups: Groups, starts: npt.NDArray[np.intp]) -> Groups:
    positive, negative = np.add.reduceat(groups.positive, starts), np.add.reduceat(groups.negative, starts)
    total = np.asarray(groups.positive + groups.negative, np.float64)
    scores = np.add.reduceat(groups.scores * total, starts) / np.add.reduceat(total, starts)
    return Groups(scores, positive, negative)


def _join(left: Groups, right: Groups) -> Groups:
    return Groups(
        np.concatenate([left.scores, right.scores]),
        np.concatenate([left.positive, right.positive]),
        np.concatenate([left.negative, right.negative]),
    )


def _slice(groups: Groups, start: int, stop: int) -> Groups:
    return Groups(groups.scores[start:stop], groups.positive[start:stop], groups.negative[start:stop])
