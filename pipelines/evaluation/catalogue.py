"""Which metrics there are, for which kind of label each is, and which way is better."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal

Kind = Literal["binary", "multiclass", "regression"]
"""What a label is, as `Target.kind` says it."""

Need = Literal["sums", "ranks"]
"""``sums`` come out of one pass; ``ranks`` need the scores in order, hence the spill and a second pass."""


@dataclass(frozen=True)
class Metric:
    """One metric: its name as specs write it, the label kinds it is for, and its direction."""

    name: str
    kinds: tuple[Kind, ...]
    higher_is_better: bool
    need: Need = "sums"
    alpha: float | None = None
    """The quantile of ``pinball(alpha)``."""
    power: float | None = None
    """The power of ``tweedie_deviance(power)``; 1 is Poisson's, 2 is gamma's."""


_CLASSES: tuple[Kind, ...] = ("binary", "multiclass")
_TABLE = {
    metric.name: metric
    for metric in (
        Metric("auc", _CLASSES, True, "ranks"),
        Metric("average_precision", ("binary",), True, "ranks"),
        Metric("log_loss", _CLASSES, False),
        Metric("brier", _CLASSES, False),
        Metric("ece", ("binary",), False),
        Metric("accuracy", _CLASSES, True),
        Metric("balanced_accuracy", _CLASSES, True),
        Metric("precision", _CLASSES, True),
        Metric("recall", _CLASSES, True),
        Metric("f1", _CLASSES, True),
        Metric("rmse", ("regression",), False),
        Metric("mse", ("regression",), False),
        Metric("mae", ("regression",), False),
        Metric("r2", ("regression",), True),
        Metric("pinball", ("regression",), False, alpha=0.5),
        Metric("poisson_deviance", ("regression",), False, power=1.0),
        Metric("gamma_deviance", ("regression",), False, power=2.0),
        Metric("tweedie_deviance", ("regression",), False, power=1.5),
    )
}

USUAL: dict[Kind, tuple[str, ...]] = {
    "binary": ("auc", "average_precision", "log_loss", "brier", "accuracy", "ece"),
    "multiclass": ("auc", "log_loss", "brier", "accuracy", "f1"),
    "regression": ("rmse", "mae", "r2"),
}
"""What is measured when a spec names no metrics."""

# What other libraries call them; only for suggestions, so that one thing keeps one name here.
_ELSEWHERE = {
    "roc_auc": "auc",
    "roc_auc_score": "auc",
    "ap": "average_precision",
    "aucpr": "average_precision",
    "pr_auc": "average_precision",
    "logloss": "log_loss",
    "neg_log_loss": "log_loss",
    "mlogloss": "log_loss",
    "cross_entropy": "log_loss",
    "brier_score": "brier",
    "brier_score_loss": "brier",
    "f1_score": "f1",
    "mean_squared_error": "mse",
    "root_mean_squared_error": "rmse",
    "mean_absolute_error": "mae",
    "r2_score": "r2",
    "rsquared": "r2",
    "quantile": "pinball(0.5)",
    "mean_pinball_loss": "pinball(0.5)",
    "mean_poisson_deviance": "poisson_deviance",
    "mean_gamma_deviance": "gamma_deviance",
    "mean_tweedie_deviance": "tweedie_deviance(1.5)",
}


def metric(name: str) -> Metric:
    """Look up a metric by its name; ``pinball(0.9)`` carries its quantile, ``tweedie_deviance(1.3)`` its power.

    Raises
    ------
    ValueError
        There is no such metric; the text names the nearest ones.
    """
    text = name.strip()
    if text in _TABLE:
        return _TABLE[text]
    with_alpha = re.fullmatch(r"pinball\(\s*(\d*\.?\d+)\s*\)", text)
    if with_alpha:
        alpha = float(with_alpha[1])
        if not 0 < alpha < 1:
            raise ValueError(f"the quantile of {name!r} must lie between 0 and 1; write it like pinball(0.9)")
        return Metric(f"pinball({alpha:g})", ("regression",), False, alpha=alpha)
    with_power = re.fullmatch(r"tweedie_deviance\(\s*(\d*\.?\d+)\s*\)", text)
    if with_power:
        power = float(with_power[1])
        if not 1 < power < 2:
            raise ValueError(
                f"the power of {name!r} must lie between 1 and 2; 1 is poisson_deviance, 2 is gamma_deviance"
            )
        return Metric(f"tweedie_deviance({power:g})", ("regression",), False, power=power)
    raise ValueError(f"there is no metric {name!r}. {_suggestion(text)}")


def names_for(kind: Kind) -> tuple[str, ...]:
    """Name all metrics for a kind of label."""
    return tuple(name for name, entry in _TABLE.items() if kind in entry.kinds)


def _suggestion(name: str) -> str:
    lowered = name.lower()
    if lowered in _ELSEWHERE:
        return f"Did you mean {_ELSEWHERE[lowered]}?"
    near = get_close_matches(lowered, [*_TABLE, *_ELSEWHERE], n=3, cutoff=0.6)
    proper = list(dict.fromkeys(_ELSEWHERE.get(each, each) for each in near))
    return f"Did you mean {', '.join(proper)}?" if proper else f"There are {', '.join(_TABLE)}."


def is_better(entry: Metric, candidate: float, champion: float) -> float:
    """Say by how much a candidate is better than a champion: positive is better, NaN when either is NaN."""
    gain = candidate - champion if entry.higher_is_better else champion - candidate
    return gain if math.isfinite(gain) else math.nan
