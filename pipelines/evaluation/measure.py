"""From sums to metrics: what each metric is, when it is undefined, and what the best constant would have reached."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pipelines.evaluation.catalogue import Kind, Metric, metric
from pipelines.evaluation.deviance import term_names
from pipelines.evaluation.ranks import Ranks
from pipelines.evaluation.result import CalibrationBin, Interval, Measures
from pipelines.evaluation.state import Sums
from pipelines.evaluation.sums import as_float, ratio, whole
from pipelines.evaluation.terms import BINS

Value = float | str
"""A metric's value, or the reason why it is undefined."""


MAX_RANKED_CLASSES = 100
"""Each class is ranked against the rest, so the work goes with their number times the rows."""


@dataclass(frozen=True)
class Tally:
    """The sums of some rows and, where they were asked for, the ranks of their scores (one per class if several).

    `probabilistic` is False where a classifier's scores only rank: they are squashed decisions, not probabilities.
    `labels` are the columns of several labels, whose sums stand apart.
    """

    kind: Kind
    classes: tuple[object, ...]
    rows: int
    sums: Sums
    ranks: tuple[Ranks, ...] = ()
    probabilistic: bool = True
    labels: tuple[str, ...] = ()


def measure(tally: Tally, names: Sequence[str]) -> Measures:
    """Work out metrics; those that the rows can't have are None, with the reason."""
    found = {name: _value(tally, metric(name)) for name in names}
    return Measures(
        rows=tally.rows,
        weight=as_float(tally.sums["weight"][0]) if tally.rows else 0.0,
        metrics={name: value if isinstance(value, float) else None for name, value in found.items()},
        undefined={name: value for name, value in found.items() if isinstance(value, str)},
    )


def terms_for(names: Sequence[str]) -> frozenset[str]:
    """Name the terms that some metrics are made of."""
    return frozenset({"weight"}.union(*(_terms_of(metric(name)) for name in names)))


def _terms_of(entry: Metric) -> tuple[str, ...]:
    if entry.power is not None:
        return term_names(entry.power)
    return _TERMS[entry.name] if entry.alpha is None else ("absolute", "difference")


def class_weights(tally: Tally) -> list[int]:
    """Sum the weights of each class (exact)."""
    return _confusion_margins(tally)[0]


def confusion(tally: Tally) -> tuple[tuple[float, ...], ...]:
    """Lay out the confusion matrix, true classes in rows; empty where it was too large to be kept."""
    cells, k = tally.sums.get("confusion"), len(tally.classes)
    return () if cells is None else tuple(tuple(as_float(cell) for cell in cells[i * k : i * k + k]) for i in range(k))


def calibration_curve(tally: Tally) -> tuple[CalibrationBin, ...]:
    """Lay out the calibration curve of a binary model: bins of equal width, empty ones too."""
    return tuple(_bin(tally.sums, i) for i in range(BINS)) if _has_curve(tally) else ()


def _has_curve(tally: Tally) -> bool:
    return tally.kind == "binary" and tally.rows > 0 and tally.probabilistic


def intervals(tally: Tally, names: Sequence[str]) -> dict[str, Interval]:
    """Work out 95 % intervals where that is cheap: means over rows, RMSE, and AUC (Hanley & McNeil 1982)."""
    found = {name: _interval(tally, name) for name in names if isinstance(_value(tally, metric(name)), float)}
    return {name: interval for name, interval in found.items() if interval is not None}


# --- metrics ---------------------------------------------------------------------------------------------------------


def _value(tally: Tally, entry: Metric) -> Value:
    if not tally.rows:
        return "there are no rows"
    if not tally.probabilistic and entry.name in _OF_PROBABILITIES:
        return "the estimator gives no probabilities; set evaluate.calibrate to make them"
    if entry.alpha is not None:
        return _pinball(tally.sums, entry.alpha)
    if entry.power is not None:
        return _deviance(tally.sums, entry.power)
    return _METRICS[entry.name](tally)


_OF_PROBABILITIES = ("log_loss", "brier", "ece")


def _mean_of(term: str) -> Callable[[Tally], Value]:
    return lambda tally: ratio(tally.sums[term][0], tally.sums["weight"][0])


def _pinball(sums: Sums, alpha: float) -> float:
    # Σw|d| = over + under and Σwd = over − under give both sides, exactly, for every alpha.
    return pinball_of(sums["absolute"][0], sums["difference"][0], sums["weight"][0], alpha)


def pinball_of(absolute: int, difference: int, weight: int, alpha: float) -> float:
    over, under = (absolute + difference) // 2, (absolute - difference) // 2
    return alpha * ratio(over, weight) + (1 - alpha) * ratio(under, weight)


def _deviance(sums: Sums, power: float) -> Value:
    name, _, outside = term_names(power)
    if rows := sums[outside][1]:
        least = "labels above 0" if power == 2 else "labels of at least 0"
        return f"needs {least} and predictions above 0, which {as_float(rows):.0f} rows do not have"
    return ratio(sums[name][0], sums["weight"][0])


def _r2(tally: Tally) -> Value:
    if tally.rows < 2:
        return "needs two rows at least"
    around_mean, weight = scatter(tally.sums)
    if around_mean <= 0:
        return "the label is constant"
    # around_mean is in squared units over the weight's units; both are integers, so only the last division rounds.
    return 1.0 - ratio(tally.sums["squared"][0] * weight, around_mean)


def scatter(sums: Sums) -> tuple[int, int]:
    """Give W·Σw(y − ȳ)² = W·Σwy² − (Σwy)², exact, and W."""
    weight = sums["weight"][0]
    first = sums["y"][0] + sums.get("y_error", [0])[0]
    second = sums["yy"][0] + sums["yy_error"][0] + sums.get("yy_error2", [0])[0]
    return weight * second - first * first, weight


def _auc(tally: Tally) -> Value:
    if len(tally.classes) > MAX_RANKED_CLASSES:
        return f"only models of up to {MAX_RANKED_CLASSES} classes are ranked"
    aucs = [ranks.auc() for ranks in tally.ranks]
    missing = [str(tally.classes[k]) for k, auc in enumerate(aucs) if auc is None]
    if tally.kind == "binary":
        return aucs[0] if aucs[0] is not None else "all rows have the same label"
    if missing:
        return f"needs rows of every class and of its rest: {', '.join(missing[:5])}"
    return math.fsum(auc for auc in aucs if auc is not None) / len(aucs)


def _average_precision(tally: Tally) -> Value:
    value = tally.ranks[0].average_precision()
    return value if value is not None else "there are no rows of the positive class"


def _ece(tally: Tally) -> Value:
    gaps = []
    for i in range(BINS):
        positive = tally.sums["bin_weight"][2 * i + 1]
        gaps.append(abs(tally.sums["bin_score"][i] - positive))
    return ratio(sum(gaps), tally.sums["weight"][0])


def _confusion_margins(tally: Tally) -> tuple[list[int], list[int], list[int]]:
    """Give by class the weights of rows that have it, of rows said to have it, and of both."""
    sums, k = tally.sums, len(tally.classes)
    if "confusion" not in sums:
        return sums["truth"], sums["decided"], sums["right"][:k]
    cells = sums["confusion"]
    truth = [sum(cells[i * k : i * k + k]) for i in range(k)]
    return truth, [sum(cells[i::k]) for i in range(k)], [cells[i * k + i] for i in range(k)]


def _balanced_accuracy(tally: Tally) -> Value:
    truth, _, right = _confusion_margins(tally)
    recalls = [ratio(hit, there) for hit, there in zip(right, truth, strict=True) if there]
    return math.fsum(recalls) / len(recalls)


def _precision(tally: Tally) -> Value:
    truth, said, right = _confusion_margins(tally)
    if tally.kind == "binary":
        return ratio(right[1], said[1]) if said[1] else "no row is predicted to be of the positive class"
    return _macro(right, said, truth, said)


def _recall(tally: Tally) -> Value:
    truth, said, right = _confusion_margins(tally)
    if tally.kind == "binary":
        return ratio(right[1], truth[1]) if truth[1] else "there are no rows of the positive class"
    return _macro(right, truth, truth, said)


def _f1(tally: Tally) -> Value:
    truth, said, right = _confusion_margins(tally)
    both = [a + b for a, b in zip(truth, said, strict=True)]
    if tally.kind == "binary":
        return ratio(2 * right[1], both[1]) if both[1] else "no row is, or is predicted to be, of the positive class"
    return _macro([2 * hit for hit in right], both, truth, said)


def _macro(above: Sequence[int], below: Sequence[int], truth: Sequence[int], said: Sequence[int]) -> float:
    # scikit-learn's macro average: over the classes that occur or are predicted; a share of nothing counts as zero.
    shares = [ratio(a, b) if b else 0.0 for a, b, t, s in zip(above, below, truth, said, strict=True) if t or s]
    return math.fsum(shares) / len(shares)


_MARGINS = ("confusion", "truth", "decided", "right")
_TERMS: dict[str, tuple[str, ...]] = {
    "auc": (),
    "average_precision": (),
    "log_loss": ("log_loss",),
    "brier": ("brier",),
    "ece": ("bin_weight", "bin_score"),
    "accuracy": ("hit",),
    "balanced_accuracy": _MARGINS,
    "precision": _MARGINS,
    "recall": _MARGINS,
    "f1": _MARGINS,
    "rmse": ("squared",),
    "mse": ("squared",),
    "mae": ("absolute",),
    "r2": ("squared", "y", "y_error", "yy", "yy_error", "yy_error2"),
}

_METRICS: dict[str, Callable[[Tally], Value]] = {
    "auc": _auc,
    "average_precision": _average_precision,
    "log_loss": _mean_of("log_loss"),
    "brier": _mean_of("brier"),
    "ece": _ece,
    "accuracy": _mean_of("hit"),
    "balanced_accuracy": _balanced_accuracy,
    "precision": _precision,
    "recall": _recall,
    "f1": _f1,
    "rmse": lambda tally: math.sqrt(ratio(tally.sums["squared"][0], tally.sums["weight"][0])),
    "mse": _mean_of("squared"),
    "mae": _mean_of("absolute"),
    "r2": _r2,
}


# --- calibration curve and intervals ---------------------------------------------------------------------------------


def _bin(sums: Sums, i: int) -> CalibrationBin:
    negative, positive = sums["bin_weight"][2 * i : 2 * i + 2]
    weight = negative + positive
    return CalibrationBin(
        low=i / BINS,
        high=(i + 1) / BINS,
        rows=int(as_float(sums["bin_rows"][i])),
        weight=as_float(weight),
        predicted=ratio(sums["bin_score"][i], weight) if weight else None,
        observed=ratio(positive, weight) if weight else None,
    )


_LOSSES = {"log_loss": "log_loss", "brier": "brier", "accuracy": "hit", "mse": "squared", "mae": "absolute"}
_NORMAL_95 = 1.959963984540054


def _interval(tally: Tally, name: str) -> Interval | None:
    if tally.rows < 2:
        return None
    if name == "auc":
        return _auc_interval(tally)
    if name == "rmse":
        squared = _mean_interval(tally.sums, "squared")
        return Interval(math.sqrt(max(squared.low, 0.0)), math.sqrt(squared.high))
    power = metric(name).power
    if name not in _LOSSES and power is None:
        return None
    found = _mean_interval(tally.sums, _LOSSES[name] if power is None else term_names(power)[0])
    return Interval(max(found.low, 0.0), min(found.high, 1.0) if name == "accuracy" else found.high)


def _mean_interval(sums: Sums, loss: str) -> Interval:
    # Var(Σwl/W) ≈ Σw²(l − m)²/W² with m = S/W; multiplied by W² it is a whole number, so nothing cancels.
    weight, total = sums["weight"][0], sums[loss][0]
    spread = (
        weight * weight * sums[f"{loss}2_w2"][0]
        - 2 * total * weight * sums.get(f"{loss}_w2", sums[loss])[0]
        + total * total * sums.get("weight2", sums["weight"])[0]
    )
    # Units: spread has three factors of the unit, W⁴ four; `whole` adds the missing one.
    error = math.sqrt(max(ratio(whole(spread), weight**4), 0.0))
    mean = ratio(total, weight)
    return Interval(mean - _NORMAL_95 * error, mean + _NORMAL_95 * error)


def _auc_interval(tally: Tally) -> Interval | None:
    if tally.kind != "binary" or (auc := tally.ranks[0].auc()) is None:
        return None
    negatives, positives = (as_float(n) for n in class_weights(tally))
    weight, squared = (as_float(tally.sums.get(name, tally.sums["weight"])[0]) for name in ("weight", "weight2"))
    shrink = weight / squared  # effective rows per unit of weight (Kish): 1 without weights
    n, p = negatives * shrink, positives * shrink
    q1, q2 = auc / (2 - auc), 2 * auc * auc / (1 + auc)
    variance = (auc * (1 - auc) + (p - 1) * (q1 - auc * auc) + (n - 1) * (q2 - auc * auc)) / (n * p)
    error = _NORMAL_95 * math.sqrt(max(variance, 0.0))
    return Interval(max(auc - error, 0.0), min(auc + error, 1.0))
