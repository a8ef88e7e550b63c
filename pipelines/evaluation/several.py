"""How is a model of several labels measured? Each label as if it were the only one, and the mean over the labels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from pipelines.evaluation.measure import Tally
from pipelines.evaluation.result import Measures
from pipelines.evaluation.terms import MARK


def each_label(tally: Tally) -> list[tuple[str, Tally]]:
    """Take a tally of several labels apart: the name of each, and its own sums."""
    return [(label, replace(tally, labels=(), sums=_sums_of(tally, k))) for k, label in enumerate(tally.labels)]


def measure_each(tally: Tally, names: Sequence[str], measure: Callable[[Tally, Sequence[str]], Measures]) -> Measures:
    """Measure every label; ``rmse[delay]`` is the label ``delay``'s, ``rmse`` the mean over the labels (unweighted).

    A mean of which a part is undefined is undefined.
    """
    apart = [(label, measure(one, names)) for label, one in each_label(tally)]
    metrics: dict[str, float | None] = {}
    undefined: dict[str, str] = {}
    for name in names:
        values = [found.metrics[name] for _, found in apart]
        known = [value for value in values if value is not None]
        metrics[name] = math.fsum(known) / len(known) if len(known) == len(values) else None
        for label, found in apart:
            metrics[f"{name}[{label}]"] = found.metrics[name]
            if name in found.undefined:
                undefined[f"{name}[{label}]"] = found.undefined[name]
                undefined.setdefault(name, f"{label}: {found.undefined[name]}")
    return replace(apart[0][1], metrics=metrics, undefined=undefined)


def mean_of(parts: Sequence[dict[str, float]]) -> dict[str, float]:
    """Take the mean of what all parts have."""
    shared = [name for name in parts[0] if all(name in part for part in parts)]
    return {name: math.fsum(part[name] for part in parts) / len(parts) for name in shared}


def _sums_of(tally: Tally, label: int) -> dict[str, list[int]]:
    mark = f"{MARK}{label}"
    return {name.removesuffix(mark): sums for name, sums in tally.sums.items() if name.endswith(mark)}
