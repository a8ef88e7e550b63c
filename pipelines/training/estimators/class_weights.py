"""How much does a row count for its class? What `train.class_weight` means for a fitted target."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Literal

import numpy as np
import numpy.typing as npt

from pipelines.errors import Fault, SpecError
from pipelines.features.target import Target

_PATH = "train.class_weight"


def class_factors(
    class_weight: Literal["balanced"] | Mapping[str, float] | None, target: Target
) -> npt.NDArray[np.float64] | None:
    """Turn a spec's class weights into one factor per class.

    Parameters
    ----------
    class_weight : "balanced", mapping of class label (as text) to weight, or None
        ``balanced`` is rows / (classes · rows of the class), counted over the training split; a class that a mapping
        does not name weighs 1.
    target : Target

    Returns
    -------
    ndarray of float64, shape (classes,), or None
        In the order of the class codes; None when every row counts as it is.

    Raises
    ------
    SpecError
        The target has no classes, a label is none of them, or a weight is negative or not finite.
    """
    if class_weight is None:
        return None
    if target.kind == "regression":
        raise SpecError([Fault(_PATH, f"{target.column!r} has no classes: it is a regression", "Remove it")])
    counts = np.asarray(target.counts, np.float64)
    if class_weight == "balanced":
        return np.asarray(counts.sum() / (len(counts) * np.maximum(counts, 1)), np.float64)
    names = [class_text(value) for value in target.classes]
    if faults := list(_faults(class_weight, names)):
        raise SpecError(faults)
    return np.array([class_weight.get(name, 1.0) for name in names], np.float64)


def class_text(value: object) -> str:
    """Write a class as a spec does: ``true`` and ``false`` for booleans, else its text."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _faults(class_weight: Mapping[str, float], names: list[str]) -> list[Fault]:
    faults = []
    for name, weight in class_weight.items():
        place = f"{_PATH}.{name}"
        if name not in names:
            near = get_close_matches(name, names, n=3) or names[:8]
            faults.append(Fault(place, "no class of the label", f"Its classes are {', '.join(near)}"))
        elif not (np.isfinite(weight) and weight >= 0):
            faults.append(Fault(place, f"a class weight is a finite number of at least 0, found {weight}"))
    return faults
