"""How do columns become the numbers a trainer takes? A fitted, frozen `FeaturePlan`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from scipy.sparse import csr_matrix

from pipelines.codec import canonical, digest
from pipelines.errors import UsageError
from pipelines.features.apply import (
    Applied,
    AppliedBins,
    AppliedCategory,
    AppliedCyclic,
    AppliedHash,
    AppliedMissing,
    AppliedNumber,
)
from pipelines.features.columns import Columns
from pipelines.features.foreign import AppliedForeign, restore
from pipelines.features.matrix import empty_matrix, sparse_matrix, stack
from pipelines.features.steps import (
    Bins,
    Category,
    Cyclic,
    Domain,
    FeatureType,
    Foreign,
    Hashed,
    Input,
    Missing,
    Number,
    Step,
    input_columns,
    output_names,
    output_type,
    output_width,
    unique_names,
)
from pipelines.features.stored import Stored, read_files, write_files


@dataclass(frozen=True, eq=False)
class FeaturePlan:
    """Fitted steps from input columns to a float32 matrix: the same bytes and the same results wherever applied.

    Pickles, and compares, by its `files`.

    Parameters
    ----------
    stored : Stored
        All of it, as plain values.
    origin : mapping of str to bytes, optional
        The files it was read from, kept so that they are handed on byte for byte.
    """

    stored: Stored
    origin: Mapping[str, bytes] | None = field(default=None, repr=False)

    @property
    def input_schema(self) -> pa.Schema:
        """The columns it reads, with the types it was fitted on."""
        return self.stored.input_schema

    @property
    def inputs(self) -> tuple[str, ...]:
        """Columns it reads."""
        return tuple(self.input_schema.names)

    @property
    def steps(self) -> tuple[Step, ...]:
        """What it does, in the order of its output columns."""
        return self.stored.steps

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Output columns, each named once."""
        return unique_names([name for step in self.steps for name in output_names(step, self.stored.dictionaries)])

    @cached_property
    def width(self) -> int:
        """Number of output columns; does not name them, of which there may be millions."""
        return sum(output_width(step, self.stored.dictionaries) for step in self.steps)

    @cached_property
    def types(self) -> tuple[FeatureType, ...]:
        """XGBoost's type of each output column."""
        return tuple(output_type(step) for step in self.steps for _ in output_names(step, self.stored.dictionaries))

    @property
    def sparse(self) -> bool:
        """Whether `transform` gives CSR matrices."""
        return self.stored.sparse

    @property
    def density(self) -> float:
        """Expected share of values that are stored in a CSR matrix."""
        return self.stored.density

    @property
    def python_only(self) -> bool:
        """Whether it holds foreign transformers, which no other runtime can apply."""
        return any(isinstance(step, Foreign) for step in self.steps)

    @cached_property
    def digest(self) -> str:
        """SHA-256 over `files`."""
        return digest(canonical({name: digest(data) for name, data in self.files().items()}))

    def transform(self, batch: pa.RecordBatch | pa.Table, out: np.ndarray | None = None) -> np.ndarray | csr_matrix:
        """Turn a batch into the matrix, without Dask or pandas; row by row the same bits however rows are batched.

        Missing values are nulls, NaN, infinities and numbers that would pass float32's range. (A foreign transformer
        sees values as they are, and its bits may depend on the batch as its own arithmetic does.)

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
        UsageError
            An `out` of the wrong shape or type, or for a sparse plan.
        """
        if self.sparse:
            if out is not None:
                raise UsageError("a sparse plan makes its own matrix", remedy="Call transform without out")
            return stack([self._sparse(part) for part in _batches(batch)], self.width)
        matrix = empty_matrix(batch.num_rows, len(self.names)) if out is None else _checked(out, batch, self)
        start = 0
        for part in _batches(batch):
            self._dense(part, matrix[start : start + part.num_rows])
            start += part.num_rows
        return matrix

    def domains(self) -> dict[str, Domain]:
        """For each input column what training saw, as far as the plan knows it: for making up plausible rows."""
        values = {
            step.input.column: tuple(self.stored.dictionaries[step.dictionary].to_pylist())
            for step in self.steps
            if isinstance(step, Category) and step.input.part is None
        }
        return {name: replace(domain, values=values.get(name, ())) for name, domain in self.stored.domains.items()}

    def part(self, first: int, stop: int) -> FeaturePlan:
        """Keep the steps from `first` up to `stop`, with the input columns and files that they need."""
        steps = self.steps[first:stop]
        columns = {name for step in steps for name in input_columns(step)}
        dictionaries = {step.dictionary for step in steps if isinstance(step, Category)}
        files = {step.file for step in steps if isinstance(step, Foreign)}
        return FeaturePlan(
            replace(
                self.stored,
                input_schema=pa.schema([column for column in self.input_schema if column.name in columns]),
                steps=steps,
                dictionaries={key: held for key, held in self.stored.dictionaries.items() if key in dictionaries},
                objects={name: data for name, data in self.stored.objects.items() if name in files},
                domains={name: domain for name, domain in self.stored.domains.items() if name in columns},
            )
        )

    def files(self) -> dict[str, bytes]:
        """All there is of it: ``plan.json``, ``categories.arrow`` and one ``*.skops`` per foreign transformer."""
        return dict(self.origin) if self.origin is not None else write_files(self.stored)

    @classmethod
    def from_files(cls, files: Mapping[str, bytes]) -> FeaturePlan:
        """Rebuild a plan from `files`.

        Raises
        ------
        CorruptArtifactError
            The files are not a plan, or one of a newer release.
        """
        return cls(read_files(files), dict(files))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FeaturePlan) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __reduce__(self) -> tuple[Any, ...]:
        return FeaturePlan.from_files, (self.files(),)

    @cached_property
    def _applied(self) -> tuple[Applied, ...]:
        return tuple(_applied(step, self.stored) for step in self.steps)

    def _dense(self, batch: pa.RecordBatch, out: np.ndarray) -> None:
        columns, first = Columns(batch, self.input_schema), 0
        for step in self._applied:
            step.write(columns, out[:, first : first + step.width])
            first += step.width

    def _sparse(self, batch: pa.RecordBatch) -> csr_matrix:
        return sparse_matrix(self._applied, Columns(batch, self.input_schema))


def _applied(step: Step, stored: Stored) -> Applied:
    match step:
        case Number():
            return AppliedNumber(step, _type(stored, step.input))
        case Cyclic():
            return AppliedCyclic(step)
        case Bins():
            return AppliedBins(step)
        case Category():
            return AppliedCategory(step, stored.dictionaries)
        case Hashed():
            return AppliedHash(step, _type(stored, step.input))
        case Missing():
            return AppliedMissing(step, _type(stored, step.input))
        case Foreign():
            return AppliedForeign(step, restore(stored.objects[step.file], step.trusted, step.path))


def _type(stored: Stored, source: Input) -> pa.DataType:
    return stored.input_schema.field(source.column).type


def _batches(batch: pa.RecordBatch | pa.Table) -> Iterable[pa.RecordBatch]:
    return batch.to_batches() if isinstance(batch, pa.Table) else [batch]


def _checked(out: np.ndarray, batch: pa.RecordBatch | pa.Table, plan: FeaturePlan) -> np.ndarray:
    shape = (batch.num_rows, len(plan.names))
    if out.dtype != np.float32 or out.shape != shape:
        raise UsageError(
            "out does not fit", expected=f"float32 of shape {shape}", found=f"{out.dtype} of shape {out.shape}"
        )
    return out
