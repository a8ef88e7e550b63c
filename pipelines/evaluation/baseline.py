"""What predicting one constant would reach on the same rows: the training rows' class shares, or their mean label."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pipelines.evaluation.catalogue import metric
from pipelines.evaluation.deviance import term_names
from pipelines.evaluation.measure import Tally, class_weights, pinball_of, scatter
from pipelines.evaluation.sums import as_float, exact, ratio, whole


def baseline(tally: Tally, names: Sequence[str], *, counts: Sequence[int], constant: float) -> dict[str, float]:
    """Work out metrics of a constant prediction; those that it can't have are left out.

    Parameters
    ----------
    tally : Tally
        Of the rows that the model was measured on.
    names : sequence of str
        Metrics.
    counts : sequence of int
        Training rows of each class.
    constant : float
        What is predicted for a regression label: its mean over the training rows (as in the tally's `Question`).
    """
    if not tally.rows:
        return {}
    if tally.kind == "regression":
        found = _regression(tally, names, constant)
    else:
        found = _classification(tally, counts)
    return {name: found[name] for name in names if name in found}


def _classification(tally: Tally, counts: Sequence[int]) -> dict[str, float]:
    shares = [ratio(weight, tally.sums["weight"][0]) for weight in class_weights(tally)]
    said = [count / max(sum(counts), 1) for count in counts]
    usual = max(range(len(said)), key=said.__getitem__)
    found = {"auc": 0.5, "accuracy": shares[usual], "balanced_accuracy": 1 / sum(share > 0 for share in shares)}
    if all(probability > 0 for probability, share in zip(said, shares, strict=True) if share > 0):
        found["log_loss"] = -math.fsum(s * math.log(p) for p, s in zip(said, shares, strict=True) if s > 0)
    squares = math.fsum(p * p for p in said)
    both = math.fsum(s * (squares - p * p + (1 - p) ** 2) for p, s in zip(said, shares, strict=True))
    if tally.kind == "multiclass":
        return found | {"brier": both}
    return found | {"brier": both / 2, "average_precision": shares[1], "ece": abs(said[1] - shares[1])}


def _regression(tally: Tally, names: Sequence[str], constant: float) -> dict[str, float]:
    sums, weight = tally.sums, tally.sums["weight"][0]
    around_mean, _ = scatter(sums)
    # Σw(y − c)² = Σw(y − ȳ)² + W(ȳ − c)², both from exact sums.
    off = ratio(sums["y"][0] + sums.get("y_error", [0])[0] - (weight * exact(constant)) // whole(1), weight)
    mse = ratio(around_mean, weight * weight) + off * off
    found = {"mse": mse, "rmse": math.sqrt(mse), "mae": ratio(sums["constant_absolute"][0], weight)}
    if around_mean > 0:
        found["r2"] = -off * off / ratio(around_mean, weight * weight)
    for name in names:
        if (alpha := metric(name).alpha) is not None:
            found[name] = pinball_of(sums["constant_absolute"][0], sums["constant_difference"][0], weight, alpha)
        elif (power := metric(name).power) is not None and constant > 0:
            _, of_constant, outside = term_names(power)
            found[name] = math.nan if sums[outside][1] else ratio(sums[of_constant][0], weight)
    return {name: value for name, value in found.items() if math.isfinite(value) and as_float(weight) > 0}
