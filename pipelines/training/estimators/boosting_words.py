"""XGBoost's vocabulary: which objectives and metrics there are, and for which kind of label."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches

OBJECTIVES: Mapping[str, str] = {
    "binary": "binary:logistic",
    "multiclass": "multi:softprob",
    "regression": "reg:squarederror",
}
"""The default for each kind of label."""

_REGRESSION = (
    "reg:squarederror", "reg:squaredlogerror", "reg:pseudohubererror", "reg:absoluteerror", "reg:quantileerror",
    "reg:gamma", "reg:tweedie", "count:poisson",
)  # fmt: skip
_OBJECTIVE_KIND = {
    "binary:logistic": "binary",
    "multi:softprob": "multiclass",
    **dict.fromkeys(_REGRESSION, "regression"),
}
_OBJECTIVE_INSTEAD = {
    "binary:logitraw": "its scores are no probabilities: say binary:logistic",
    "binary:hinge": "its scores are no probabilities: say binary:logistic",
    "reg:logistic": "say binary:logistic for a label of two classes",
    "reg:linear": "its name is reg:squarederror",
    "multi:softmax": "it grows the same trees as multi:softprob but predicts no probabilities: say multi:softprob",
    "rank:ndcg": "ranking needs query groups, which this version does not read",
    "rank:map": "ranking needs query groups, which this version does not read",
    "rank:pairwise": "ranking needs query groups, which this version does not read",
    "survival:aft": "survival needs censored labels, which this version does not read",
    "survival:cox": "survival needs censored labels, which this version does not read",
}

_ALL = ("binary", "multiclass", "regression")
_METRIC_KINDS: Mapping[str, tuple[str, ...]] = {
    "logloss": ("binary",), "error": ("binary",), "auc": ("binary", "multiclass"), "aucpr": ("binary",),
    "mlogloss": ("multiclass",), "merror": ("multiclass",),
    "rmse": ("regression", "binary"), "mae": ("regression", "binary"), "rmsle": ("regression",),
    "mape": ("regression",), "mphe": ("regression",), "quantile": ("regression",), "poisson-nloglik": ("regression",),
    "gamma-nloglik": ("regression",), "gamma-deviance": ("regression",), "tweedie-nloglik": ("regression",),
}  # fmt: skip
_METRIC_NEEDS_GROUPS = ("ndcg", "map", "pre", "aft-nloglik", "cox-nloglik", "interval-regression-accuracy")
_MAXIMISED = ("auc", "aucpr")

_METRIC_NEEDS: Mapping[str, tuple[str, ...]] = {
    "mphe": ("reg:pseudohubererror",),
    "quantile": ("reg:quantileerror",),
    "tweedie-nloglik": ("reg:tweedie",),
}


@dataclass(frozen=True)
class Misfit:
    """Why a word can't be used, and what to do."""

    message: str
    fix: str = ""


def unknown_objective(name: str) -> Misfit | None:
    """Say what is wrong with an objective whatever the label; None when it can be used."""
    if name in _OBJECTIVE_KIND:
        return None
    if name in _OBJECTIVE_INSTEAD:
        return Misfit(f"{name} can't be used", _sentence(_OBJECTIVE_INSTEAD[name]))
    return Misfit(f"XGBoost has no objective {name!r}", _near(name, list(_OBJECTIVE_KIND)))


def unfit_objective(name: str, kind: str) -> Misfit | None:
    """Say what is wrong with an objective for a `kind` of label."""
    if _OBJECTIVE_KIND.get(name, kind) == kind:
        return None
    return Misfit(
        f"{name} does not learn a {kind} label",
        f"Remove it (the default is {OBJECTIVES[kind]}), or set label.kind: {_OBJECTIVE_KIND[name]}",
    )


def unknown_metric(name: str) -> Misfit | None:
    """Say what is wrong with a metric (``error@0.3`` has its parameter after the @) whatever the label."""
    base = name.partition("@")[0].removesuffix("-")
    if base in _METRIC_NEEDS_GROUPS:
        return Misfit(f"{name} can't be used", "It needs query groups or censored labels, which are not read here")
    if base not in _METRIC_KINDS:
        return Misfit(f"XGBoost has no metric {name!r}", _near(base, list(_METRIC_KINDS)))
    return None


def unfit_metric(name: str, kind: str, objective: str) -> Misfit | None:
    """Say what is wrong with a metric for a `kind` of label and an objective."""
    base = name.partition("@")[0]
    kinds = _METRIC_KINDS.get(base, _ALL)
    if kind not in kinds:
        fitting = [each for each, known in _METRIC_KINDS.items() if kind in known]
        return Misfit(f"{name} does not measure a {kind} label", f"Use one of {', '.join(fitting)}")
    needs = _METRIC_NEEDS.get(base)
    if needs and objective not in needs:
        return Misfit(f"{name} goes with {' or '.join(needs)}, not with {objective}", "Change one of them")
    return None


def is_maximised(metric: str) -> bool:
    """Whether more of a metric is better."""
    return metric.partition("@")[0] in _MAXIMISED


def _near(name: str, known: list[str]) -> str:
    near = get_close_matches(name, known, n=3, cutoff=0.5)
    return f"Did you mean {' or '.join(near)}?" if near else f"It has {', '.join(known)}"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
