"""How do columns become the numbers a trainer takes? A fitted, frozen `FeaturePlan`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
from scipy.sparse import csr_matrix

FeatureType = Literal["q", "c"]
"""XGBoost's feature types: ``q`` a quantity, ``c`` the code of a category."""


@dataclass(frozen=True)
class Domain:
    """What values an input column had in training: a range of numbers (dates as ISO text), or the categories."""

    type: pa.DataType
    low: float | str | None = None
    high: float | str | None = None
    values: tuple[str | int | float | bool, ...] = ()
    nulls: bool = False


@dataclass(frozen=True, eq=False)
class FeaturePlan:
    """Fitted steps from input columns to a float32 matrix: the same bytes and the same results wherever applied.

    Pickles and compares by its `files`.
    """

    input_schema: pa.Schema
    names: tuple[str, ...]
    types: tuple[FeatureType, ...]
    sparse: bool
    python_only: bool

    @property
    def inputs(self) -> tuple[str, ...]:
        """Columns it reads."""
        return tuple(self.input_schema.names)

    @property
    def digest(self) -> str:
        """SHA-256 over `files`."""
        raise NotImplementedError

    def transform(self, batch: pa.RecordBatch | pa.Table, out: np.ndarray | None = None) -> np.ndarray | csr_matrix:
        """Turn a batch into the matrix, without Dask or pandas; row by row the same however rows are batched.

        Parameters
        ----------
        batch : RecordBatch or Table
            Has at least the columns `inputs`, in any order, of the fitted types or types that cast to them.
        out : ndarray of float32, shape (rows, features), optional
            Where to write a dense result: fastest when its columns are contiguous.

        Returns
        -------
        ndarray of float32, shape (rows, features), column-major; or csr_matrix of float32 when `sparse`

        Raises
        ------
        DataError
            Input columns are missing (all are named) or have a type that does not cast.
        """
        raise NotImplementedError

    def domains(self) -> dict[str, Domain]:
        """For each input column what training saw, as far as the plan knows it."""
        raise NotImplementedError

    def files(self) -> dict[str, bytes]:
        """All there is of it: ``plan.json``, ``categories.arrow`` and one ``*.skops`` per foreign transformer."""
        raise NotImplementedError

    @classmethod
    def from_files(cls, files: dict[str, bytes]) -> FeaturePlan:
        """Rebuild a plan from `files`."""
        raise NotImplementedError
