"""Fit the curves that calibrate a classifier, from ordered groups of validation scores in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import expit, logit, xlogy

from pipelines.evaluation.groups import Groups, compress
from pipelines.evaluation.sums import Codes, Floats
from pipelines.model.calibration import IsotonicCurve, SigmoidCurve

GROUPS = 1 << 18
"""A sigmoid is fitted on about so many groups of neighbouring scores at most; fewer distinct scores are left alone."""

BLOCKS = 1 << 16
"""An isotonic curve has at most so many steps; beyond, neighbouring ones are put together."""

_CLIP = 1e-12  # as SigmoidCurve clips


@dataclass(frozen=True)
class Fitted:
    """A curve, the groups or steps that it was fitted on, and whether nothing had to be put together for it."""

    curve: SigmoidCurve | IsotonicCurve
    groups: int
    exact: bool


# --- sigmoid ---------------------------------------------------------------------------------------------------------


def fit_sigmoid(stream: Iterable[Groups], *, positive: float, negative: float, records: int) -> Fitted:
    """Fit Platt's sigmoid to log-odds, as `sklearn.calibration` does, to the optimum (Newton's method).

    Unlike there the slope is kept from being negative: calibration must not turn a ranking round, as an isotonic curve
    can't either.

    Parameters
    ----------
    stream : iterable of Groups
        Probabilities in descending order.
    positive, negative : float
        Weights of the two classes.
    records : int
        An upper bound of the number of groups in the stream.
    """
    odds = (replace(groups, scores=_log_odds(groups.scores)) for groups in stream)
    exact = records <= GROUPS
    whole = _concatenate(odds if exact else compress(odds, GROUPS, positive + negative))
    slope, intercept = _platt(whole, positive, negative)
    return Fitted(SigmoidCurve(slope, intercept), len(whole), exact)


def _log_odds(scores: Floats) -> Floats:
    return np.asarray(logit(np.clip(scores, _CLIP, 1 - _CLIP)), np.float64)


def _platt(groups: Groups, positive: float, negative: float) -> tuple[float, float]:
    # Targets as in Platt 2000, section 2.2. Loss Σ w·log(1 + e^z) − t·z with z = slope·odds + intercept.
    weight = np.asarray(groups.positive + groups.negative, np.float64)
    target = groups.positive * ((positive + 1) / (positive + 2)) + groups.negative * (1 / (negative + 2))
    at = np.array([0.0, float(np.log((positive + 1) / (negative + 1)))])
    best, _ = _newton(groups.scores, weight, target, at)
    if best[0] >= 0:
        return float(best[0]), float(best[1])
    _, flat = _newton(np.zeros(1), weight.sum(keepdims=True), target.sum(keepdims=True), at)
    return 0.0, float(flat)


_MAX_STEPS = 100


def _newton(odds: Floats, weight: Floats, target: Floats, start: Floats) -> tuple[Floats, float]:
    at, loss = start, _loss(odds, weight, target, start)
    for _ in range(_MAX_STEPS):
        p = expit(at[0] * odds + at[1])
        residual = weight * p - target
        gradient = np.array([residual @ odds, residual.sum()])
        curvature = weight * p * (1 - p)
        cross = curvature @ odds
        hessian = np.array([[curvature @ (odds * odds), cross], [cross, curvature.sum()]])
        step = np.linalg.lstsq(hessian, -gradient, rcond=None)[0]  # least squares: scores may all be the same
        length = 1.0
        while (found := _loss(odds, weight, target, at + length * step)) > loss and length > 1e-10:
            length /= 2
        moved = at + length * step
        if found > loss or np.array_equal(moved, at):
            break
        done = np.abs(moved - at).max() <= 1e-14 * max(1.0, float(np.abs(moved).max()))
        at, loss = moved, found
        if done:
            break
    return at, float(at[1])


def _loss(odds: Floats, weight: Floats, target: Floats, at: Floats) -> float:
    z = at[0] * odds + at[1]
    return float(np.sum(weight * np.logaddexp(0.0, z) - target * z))


# --- isotonic --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Blocks:
    """Pooled steps in descending order of the scores: their lowest and highest score, and their weights."""

    low: Floats
    high: Floats
    positive: Floats
    negative: Floats

    def __len__(self) -> int:
        return len(self.low)


def fit_isotonic(stream: Iterable[Groups]) -> Fitted:
    """Fit an increasing step curve, equal to `sklearn.isotonic.IsotonicRegression`, streaming.

    Pooling adjacent violators of a prefix and going on from its blocks gives the same solution as pooling all at once,
    so what is held is a chunk and the blocks so far.
    """
    held = _Blocks(*(np.empty(0) for _ in range(4)))
    exact = True
    for groups in stream:
        held = _pool_violators(_append(held, groups))
        if len(held) > BLOCKS:
            held, exact = _halve(held), False
    ascending = slice(None, None, -1)
    y = held.positive / (held.positive + held.negative)
    return Fitted(_curve(held.low[ascending], held.high[ascending], y[ascending]), len(held), exact)


def _append(held: _Blocks, groups: Groups) -> _Blocks:
    return _Blocks(
        np.concatenate([held.low, groups.scores]),
        np.concatenate([held.high, groups.scores]),
        np.concatenate([held.positive, groups.positive]),
        np.concatenate([held.negative, groups.negative]),
    )


def _pool_violators(blocks: _Blocks) -> _Blocks:
    from sklearn.isotonic import isotonic_regression  # 54 MiB in every worker, which only tuning with isotonic needs

    weight = blocks.positive + blocks.negative
    fitted = isotonic_regression(blocks.positive / weight, sample_weight=weight, increasing=False)
    return _pool(blocks, np.flatnonzero(np.concatenate([[True], fitted[1:] != fitted[:-1]])))


def _halve(blocks: _Blocks) -> _Blocks:
    return _pool(blocks, np.arange(0, len(blocks), 2))


def _pool(blocks: _Blocks, starts: Codes) -> _Blocks:
    ends = np.append(starts[1:], len(blocks)) - 1
    return _Blocks(
        blocks.low[ends],
        blocks.high[starts],
        np.add.reduceat(blocks.positive, starts),
        np.add.reduceat(blocks.negative, starts),
    )


def _curve(low: Floats, high: Floats, y: Floats) -> IsotonicCurve:
    # Both ends of every step are knots; between two steps the curve is linear, as scikit-learn's.
    x, both = np.stack([low, high], axis=1).ravel(), np.repeat(np.maximum.accumulate(y), 2)
    distinct = np.concatenate([[True], x[1:] != x[:-1]])
    return IsotonicCurve(tuple(x[distinct].tolist()), tuple(both[distinct].tolist()))


def _concatenate(stream: Iterable[Groups]) -> Groups:
    chunks = list(stream)
    return Groups(
        np.concatenate([chunk.scores for chunk in chunks]),
        np.concatenate([chunk.positive for chunk in chunks]),
        np.concatenate([chunk.negative for chunk in chunks]),
    )


# --- how good probabilities are --------------------------------------------------------------------------------------


def log_loss_of(groups: Groups) -> float:
    """Sum the log loss of groups of probabilities (unlike a mean, it adds up over chunks)."""
    epsilon = np.finfo(np.float64).eps
    p = np.clip(groups.scores, epsilon, 1 - epsilon)
    return -float(np.sum(xlogy(groups.positive, p) + groups.negative * np.log1p(-p)))
