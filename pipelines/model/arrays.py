"""The array types that predictors take and give."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Scores: TypeAlias = npt.NDArray[np.float64]
"""float64, shape (rows,) for one output (binary: probability of the positive class) or (rows, classes)."""

Matrix: TypeAlias = Any
"""What ``FeaturePlan.transform`` gives: column-major float32 ndarray (rows, features) or float32 CSR (untyped here)."""


def row_blocks(rows: int, size: int) -> Iterator[slice]:
    """Cut `rows` rows into slices of at most `size`."""
    for start in range(0, rows, size):
        yield slice(start, min(start + size, rows))
