"""Where are the borders of XGBoost's bins? The same for any number of ranks, from one look at the rows.

XGBoost's own sketch takes more than half of the time of binning, reads the rows twice, and hangs on how rows are dealt
to ranks. Here every rank keeps the rows of lowest hash, a sample that any ranks put together alike, and the exact range
of every feature; rank 0 takes the borders from the sample's quantiles. A feature with at most `max_bin` different
values in the sample gets a bin for each. With `ROWS` rows a border's rank is off by 0.1 % of the rows (one standard
deviation, at the median), where a bin of 256 holds 0.4 %.

XGBoost takes the borders over from a tiny matrix that holds them as its values (`ref=`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import xgboost as xgb

from pipelines.data.hashing import hash_rows, seed_word
from pipelines.data.rows import RowIds
from pipelines.features.quantiles import SampleRule
from pipelines.training.gang.context import Array, Collective

ROWS = 1 << 18
CELLS = 1 << 24
"""Most values of a sample, 64 MiB: with more than 64 features it has fewer rows."""
_SPARE = 1.05
_SEED = seed_word("training", "cuts")


def sample_rule(rows: int, features: int, *, exact: bool) -> SampleRule:
    """Say which rows are sampled.

    Parameters
    ----------
    rows : int
        Of the training split; of the whole dataset where that is not known (`exact` is False).
    """
    wanted = max(1, min(ROWS, CELLS // max(features, 1)))
    if not exact or rows <= wanted:
        return SampleRule.of(wanted, rows)
    return SampleRule(wanted, min(2**64 - 1, int(_SPARE * wanted / rows * 2**64)))


@dataclass
class CutSample:
    """One rank's part of what borders are made of.

    Parameters
    ----------
    rule : SampleRule
    types : sequence of str
        XGBoost's feature types: ``c`` is a category, whose codes count from 0.
    """

    rule: SampleRule
    types: Sequence[str]
    _hashes: list[Array] = field(default_factory=list)
    _values: list[Array] = field(default_factory=list)
    _weights: list[Array] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._low = np.full(len(self.types), np.nan, np.float32)
        self._high = self._low.copy()

    def update(self, rows: RowIds, X: Array, weight: Array | None) -> None:
        """Take in rows: `X` of shape (rows, features), float32, NaN for what is missing."""
        np.fmin(self._low, np.fmin.reduce(X, axis=0), out=self._low)
        np.fmax(self._high, np.fmax.reduce(X, axis=0), out=self._high)
        hashes = hash_rows(rows.path, rows.row_group, rows.rows, _SEED)
        chosen = self.rule.chosen(hashes)
        self._hashes.append(hashes[chosen])
        self._values.append(np.stack([column[chosen] for column in X.T], axis=1))
        self._weights.append(np.ones(len(chosen), np.float32) if weight is None else weight[chosen])

    def cuts(self, collective: Collective, max_bin: int) -> list[Array]:
        """Agree on the borders: for each feature the values that bins begin with (float32, ascending).

        Every rank must call it. A feature without values has none.
        """
        gathered = collective.gather(self._packed())
        if gathered is None:
            packed = collective.broadcast(None)
        else:
            packed = _pack(self._choose(gathered, max_bin))
            collective.broadcast(packed)
        self._hashes, self._values, self._weights = [], [], []
        return _unpack(packed, len(self.types))

    def _packed(self) -> bytes:
        width = len(self.types)
        values = np.concatenate([*self._values, np.empty((0, width), np.float32)])
        hashes = np.concatenate([*self._hashes, np.empty(0, np.uint64)])
        weights = np.concatenate([*self._weights, np.empty(0, np.float32)])
        order = np.argsort(hashes, kind="stable")
        order = order[: self.rule.size(hashes[order])]
        parts = (self._low, self._high, hashes[order], weights[order], values[order])
        return b"".join(part.tobytes() for part in parts)

    def _choose(self, gathered: Sequence[bytes], max_bin: int) -> list[Array]:
        width = len(self.types)
        row = 8 + 4 + 4 * width
        lows, highs, hashes, weights, values = [], [], [], [], []
        for each in gathered:
            count = (len(each) - 8 * width) // row
            lows.append(np.frombuffer(each, np.float32, width))
            highs.append(np.frombuffer(each, np.float32, width, 4 * width))
            start = 8 * width
            hashes.append(np.frombuffer(each, np.uint64, count, start))
            weights.append(np.frombuffer(each, np.float32, count, start + 8 * count))
            values.append(np.frombuffer(each, np.float32, count * width, start + 12 * count).reshape(count, width))
        joined = np.concatenate(hashes)
        order = np.argsort(joined, kind="stable")
        order = order[: self.rule.size(joined[order])]
        weight, sample = np.concatenate(weights)[order], np.concatenate(values)
        low, high = np.fmin.reduce(lows, axis=0), np.fmax.reduce(highs, axis=0)
        return [
            np.arange(high[at] + 1, dtype=np.float32)
            if kind == "c" and high[at] >= 0
            else borders(sample[order, at], weight, low[at], high[at], max_bin)
            for at, kind in enumerate(self.types)
        ]


def borders(sample: Array, weight: Array, low: float, high: float, max_bin: int) -> Array:
    """Choose at most `max_bin` values that bins begin with, so that bins weigh about the same.

    A value that weighs more than a bin has one of its own, and the others share what is left: a column that is nearly
    always 0 keeps fine bins for the rest.

    Parameters
    ----------
    sample, weight : ndarray of float32, shape (rows,)
        Missing values (NaN) and rows of weight 0 do not count; of all weights zero, all count alike.
    low, high : float
        The range of all values, sampled or not; NaN where there is none.
    """
    if np.isnan(low):
        return np.empty(0, np.float32)
    values, masses = _distinct(sample, weight, np.float32(low), np.float32(high))
    if len(values) <= max_bin:
        return values
    heavy, left, bins = np.zeros(len(values), bool), masses.sum(), max_bin
    while (more := ~heavy & (masses * bins > left)).any():
        heavy |= more
        left, bins = masses[~heavy].sum(), max_bin - int(heavy.sum())
    light = np.where(heavy, 0.0, masses)
    place = np.floor((np.cumsum(light) - light) * (bins / left)) if left > 0 else np.zeros(len(values))
    begins = heavy | (np.diff(place, prepend=-1.0) != 0)
    begins[1:] |= heavy[:-1]
    found = np.flatnonzero(begins)
    pieces = np.add.reduceat(masses, found)
    while len(found) > max_bin:  # heavy values have cut light bins in two: who makes the lightest pair goes together
        pairs = np.where(heavy[found[1:]], np.inf, pieces[1:] + pieces[:-1])
        at = int(np.argmin(pairs)) + 1
        pieces[at - 1] += pieces[at]
        found, pieces = np.delete(found, at), np.delete(pieces, at)
    chosen: Array = values[found]
    return chosen


def _distinct(sample: Array, weight: Array, low: np.float32, high: np.float32) -> tuple[Array, Array]:
    """Give the different values, ascending, and what each weighs; the range's ends are among them."""
    there = ~np.isnan(sample)
    if (weight[there] > 0).any():
        there &= weight > 0
        weight = weight[there].astype(np.float64)
    else:
        weight = np.ones(int(there.sum()))
    values = np.concatenate([sample[there], np.array([low, high], np.float32)])
    weight = np.concatenate([weight, np.zeros(2)])
    if (weight[:-2] == 1).all():
        values = np.sort(values)  # a quarter of the time of sorting places; the two ends weigh nothing to speak of
        weight = np.ones(len(values))
    else:
        order = np.argsort(values, kind="stable")
        values, weight = values[order], weight[order]
    starts = np.flatnonzero(np.diff(values, prepend=np.float32(np.nan)) != 0)
    return values[starts], np.add.reduceat(weight, starts)


def reference(cuts: Sequence[Array], types: Sequence[str], max_bin: int) -> xgb.QuantileDMatrix | None:
    """Make the matrix that XGBoost takes the borders from; None where there are none.

    To be made outside XGBoost's collective, which would merge the ranks' matrices.
    """
    rows = max(map(len, cuts), default=0)
    if not rows:
        return None
    X = np.full((rows, len(types)), np.nan, np.float32)
    for at, values in enumerate(cuts):
        X[: len(values), at] = values
    return xgb.QuantileDMatrix(
        X, label=np.zeros(rows), max_bin=max_bin, feature_types=list(types), enable_categorical=True, nthread=1
    )


def _pack(cuts: Sequence[Array]) -> bytes:
    return np.array([len(each) for each in cuts], np.int64).tobytes() + b"".join(each.tobytes() for each in cuts)


def _unpack(packed: bytes, features: int) -> list[Array]:
    counts = np.frombuffer(packed, np.int64, features)
    values = np.frombuffer(packed, np.float32, offset=8 * features)
    return np.split(values, np.cumsum(counts)[:-1]) if features else []
