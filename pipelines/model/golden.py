"""Golden rows: a few inputs with the predictions that a model must give for them, wherever it is loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pipelines import codec
from pipelines.errors import CorruptArtifactError, DataError, GateNotMetError, UserCodeError
from pipelines.model.model import Model
from pipelines.model.predictors import required
from pipelines.model.synthetic import synthetic_rows


class GoldenRowsError(GateNotMetError):
    """A model predicts something else for its golden rows than it did when it was trained."""


@dataclass(frozen=True, eq=False)
class Golden:
    """Inputs, the predictions expected for them, and how far apart two machines may be.

    Parameters
    ----------
    inputs : Table
        Rows in the model's input schema.
    expected : Table
        What ``model.predict(inputs)`` gave.
    tolerance : float
        Numbers may differ by this, relative above one and absolute below; labels only where they were a tie within it.
    synthetic : bool
        Whether the rows were invented (they then hold no one's data) or taken from a sample.
    """

    inputs: pa.Table
    expected: pa.Table
    tolerance: float
    synthetic: bool

    def check(self, model: Model) -> None:
        """Compare `model`'s predictions for the rows with the expected ones.

        Raises
        ------
        GoldenRowsError
            They differ; the message names the first row and column that do, and how many.
        """
        found = model.predict(self.inputs)
        if found.schema.names != self.expected.schema.names:
            raise GoldenRowsError(
                "the model gives other columns than for its golden rows",
                expected=", ".join(self.expected.schema.names),
                found=", ".join(found.schema.names),
            )
        wrong = {name: self._wrong(found, name) for name in found.schema.names}
        rows = np.flatnonzero(np.logical_or.reduce(list(wrong.values())))
        if not len(rows):
            return
        row = int(rows[0])
        name = next(name for name, where in wrong.items() if where[row])
        raise GoldenRowsError(
            f"the model predicts something else for {len(rows)} of {self.inputs.num_rows} golden rows "
            f"(row {row}, column {name!r}, tolerance {self.tolerance:g})",
            expected=str(self.expected[name][row].as_py()),
            found=str(found[name][row].as_py()),
            remedy="Look for another version of a library, or a changed file, where the model is loaded.",
        )

    def _wrong(self, found: pa.Table, name: str) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        theirs, ours = found[name], self.expected[name]
        if pa.types.is_floating(ours.type):
            return ~_close(theirs.to_numpy(), ours.to_numpy(), self.tolerance)
        differ = np.array([a != b for a, b in zip(theirs.to_pylist(), ours.to_pylist(), strict=True)], bool)
        return differ & ~self._tied(found)

    def _tied(self, found: pa.Table) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Rows whose probabilities agree within the tolerance though the label fell the other way: a tie, no fault."""
        numbers = [name for name in found.schema.names if name != "prediction"]
        if not numbers:
            return np.zeros(found.num_rows, bool)
        agree = [_close(found[name].to_numpy(), self.expected[name].to_numpy(), self.tolerance) for name in numbers]
        moved = [found[name].to_numpy() != self.expected[name].to_numpy() for name in numbers]
        return np.asarray(np.logical_and.reduce(agree) & np.logical_or.reduce(moved), bool)

    def files(self) -> dict[str, bytes]:
        """Give the rows as files: ``golden.json``, ``inputs.arrow``, ``expected.arrow``."""
        head = {"schema": 1, "tolerance": self.tolerance, "synthetic": self.synthetic}
        return {
            "golden.json": codec.canonical(head),
            "inputs.arrow": _ipc(self.inputs),
            "expected.arrow": _ipc(self.expected),
        }

    @classmethod
    def from_files(cls, files: Mapping[str, bytes]) -> Golden:
        """Rebuild from `files`."""
        try:
            head = json.loads(required(files, "golden.json"))
            inputs, expected = (_table(required(files, f"{name}.arrow")) for name in ("inputs", "expected"))
            return cls(inputs, expected, float(head["tolerance"]), bool(head["synthetic"]))
        except (ValueError, KeyError, TypeError, OSError, pa.ArrowException) as error:
            raise CorruptArtifactError("the golden rows can't be read", found=str(error)) from error


def golden_rows(model: Model, sample: pa.Table | None = None, seed: int = 0, rows: int = 64) -> Golden:
    """Make golden rows for a model.

    Parameters
    ----------
    model : Model
    sample : Table, optional
        Real or redacted rows to use instead of invented ones; it is for the caller to see that they may be stored.
    seed : int
        Of the invented rows.
    rows : int
        How many; a longer sample is cut.

    Returns
    -------
    Golden
        With `sample` absent: rows drawn from the plan's fitted ranges and dictionaries, with nulls, values out of range
        and unknown categories among them, unless the model refuses those.
    """
    if sample is not None:
        inputs = sample.select(model.signature_in.names).slice(0, rows)
        return Golden(inputs, model.predict(inputs), model.predictor.tolerance, synthetic=False)
    try:
        return _invented(model, synthetic_rows(model.features, rows, seed))
    except (UserCodeError, DataError):
        # A foreign step or estimator may refuse nulls or unknown values: golden rows then hold what it takes.
        return _invented(model, synthetic_rows(model.features, rows, seed, odd=False))


def _invented(model: Model, inputs: pa.Table) -> Golden:
    return Golden(inputs, model.predict(inputs), model.predictor.tolerance, synthetic=True)


def _close(a: np.ndarray, b: np.ndarray, tolerance: float) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    scale = np.maximum(1.0, np.abs(np.nan_to_num(b)))
    return np.asarray((np.abs(a - b) <= tolerance * scale) | (a == b) | (np.isnan(a) & np.isnan(b)), bool)


def _ipc(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return bytes(sink.getvalue())


def _table(data: bytes) -> pa.Table:
    return pa.ipc.open_file(pa.py_buffer(data)).read_all()
