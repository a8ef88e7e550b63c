"""What does the model learn to predict? The label's kind, its classes, and how a label column becomes float32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, StrictBool, StrictFloat, StrictInt, StrictStr, model_validator

from pipelines.config import Config
from pipelines.errors import DataError, NotFoundError

Kind = Literal["binary", "multiclass", "regression"]
LabelType = Literal["bool", "int64", "double", "string"]
Class = StrictBool | StrictInt | StrictFloat | StrictStr

_TYPES = {"bool": pa.bool_(), "int64": pa.int64(), "double": pa.float64(), "string": pa.string()}


class LabelConfig(Config):
    """What is to be predicted.

    Parameters
    ----------
    column : str, or list of str
        The label's column. Several columns of numbers are learned together, one output each (``linear_regression``);
        the first one stands in `column` then, the others in `others`. ``label: [a, b]`` says the same.
    on_null : {"fail", "drop"}
        Whether a missing label (null or NaN) fails the fit, or its row is left out everywhere and counted; of several
        labels none may be missing.
    kind : {"auto", "binary", "multiclass", "regression"}
        ``auto``: two distinct values or a boolean are binary; strings, and integers of at most 20 distinct values, are
        multiclass; other numbers are regression.
    positive : bool, int, float or str, optional
        The class of a binary label whose probability is predicted; default: the larger of the two.
    max_classes : int
        More distinct values than this are not taken for classes.
    """

    column: str
    others: tuple[str, ...] = ()
    on_null: Literal["fail", "drop"] = "fail"
    kind: Literal["auto", "binary", "multiclass", "regression"] = "auto"
    positive: Class | None = None
    max_classes: Annotated[int, Field(ge=2, le=10_000)] = 1000

    @model_validator(mode="before")
    @classmethod
    def _accept_bare_column(cls, value: object) -> object:
        said = {"column": value} if isinstance(value, str | list | tuple) else value
        if not isinstance(said, dict) or not isinstance(said.get("column"), list | tuple):
            return said
        columns = [*said["column"], *said.get("others", ())]
        if not columns:
            raise ValueError("name at least one column")
        several = {"others": columns[1:], "kind": said.get("kind", "regression")} if columns[1:] else {}
        return {**said, "column": columns[0], **several}

    @model_validator(mode="after")
    def _refuse_impossible(self) -> LabelConfig:
        if self.others and self.kind != "regression":
            raise ValueError(f"several labels are learned as kind: regression only, and kind is {self.kind}")
        if len(set(self.columns)) < len(self.columns):
            raise ValueError("a column stands there twice; remove one")
        if self.positive is not None and self.kind in ("multiclass", "regression"):
            raise ValueError(
                f"positive names the positive class of a binary label, not of kind: {self.kind}; remove one"
            )
        return self

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of all labels."""
        return (self.column, *self.others)


@dataclass(frozen=True)
class Target:
    """The label, as it was found in the training split.

    Parameters
    ----------
    column : str
    kind : {"binary", "multiclass", "regression"}
    type : {"bool", "int64", "double", "string"}
        Arrow type of `classes`, of what `decode` yields and of what `encode` casts to.
    classes : tuple
        In the order of their codes; the positive class of a binary label is the last. Empty for regression.
    counts : tuple of int
        Training rows of each class.
    on_null : {"fail", "drop"}
    mean, std : float, optional
        Of a regression label over the training split (population standard deviation).
    low : float, optional
        The least of a regression label's values in the training split.
    others : tuple of Target
        Further labels of a regression that are learned together with this one, each with its own column.
    """

    column: str
    kind: Kind
    type: LabelType
    classes: tuple[Class, ...]
    counts: tuple[int, ...]
    on_null: Literal["fail", "drop"]
    mean: float | None = None
    std: float | None = None
    low: float | None = None
    others: tuple[Target, ...] = ()

    @property
    def n_outputs(self) -> int:
        """Columns of a model's raw output: the number of classes if there are more than two, else that of labels."""
        return len(self.classes) if self.kind == "multiclass" else len(self.every)

    @property
    def every(self) -> tuple[Target, ...]:
        """This label and the others, in the order of the outputs."""
        return (self, *self.others)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of all labels."""
        return tuple(each.column for each in self.every)

    @property
    def arrow_type(self) -> pa.DataType:
        """Arrow type of the label."""
        return _TYPES[self.type]

    def labelled(self, batch: pa.RecordBatch | pa.Table) -> np.ndarray | None:
        """Mask of the rows that have all labels (bool, shape (rows,)), or None when all have, the usual case."""
        found = None
        for each in self.every:
            labels = each._column(batch)
            missing = pc.is_null(labels, nan_is_null=pa.types.is_floating(labels.type))
            if pc.any(missing).as_py():
                there = ~missing.to_numpy(zero_copy_only=False)
                found = there if found is None else found & there
        return found

    def encode_rows(self, batch: pa.RecordBatch | pa.Table) -> np.ndarray:
        """Encode a batch's labels: shape (rows,), or (rows, labels) where there are several; see `encode`."""
        columns = [each.encode(each._column(batch)) for each in self.every]
        return columns[0] if len(columns) == 1 else np.stack(columns, axis=1)

    def encode(self, labels: pa.Array | pa.ChunkedArray) -> np.ndarray:
        """Turn labels into what trainers take: class codes 0, 1, … or values.

        Returns
        -------
        ndarray of float32, shape (rows,)
            NaN where the label is null.

        Raises
        ------
        DataError
            A class that training did not have, an infinity, or a type that is not the label's.
        """
        if pa.types.is_dictionary(labels.type):
            labels = pc.cast(labels, labels.type.value_type)
        if self.kind == "regression":
            return self._values(labels)
        known = pa.array(self.classes, self.arrow_type)
        codes = pc.index_in(self._cast(labels), known, skip_nulls=True)
        missing = pc.is_null(labels, nan_is_null=pa.types.is_floating(labels.type))
        unknown = pc.and_(pc.is_null(codes), pc.invert(missing))
        if pc.any(unknown).as_py():
            first = labels[pc.index(unknown, True).as_py()].as_py()
            raise DataError(
                f"the label {first!r} is not a class that training had", on=f"column {self.column}",
                expected=_listed(self.classes),
                remedy="Split with kind: stratified so that every class is trained on, or filter its rows out",
            )  # fmt: skip
        return pc.cast(codes, pa.float32()).to_numpy(zero_copy_only=False)

    def decode(self, codes: np.ndarray) -> pa.Array:
        """Turn class codes (integers, shape (rows,)) into labels; regression values into doubles."""
        if self.kind == "regression":
            return pa.array(np.asarray(codes, np.float64))
        return pa.array(self.classes, self.arrow_type).take(pa.array(np.asarray(codes, np.int64)))

    def _column(self, batch: pa.RecordBatch | pa.Table) -> pa.Array | pa.ChunkedArray:
        place = batch.schema.get_field_index(self.column)
        if place < 0:
            raise NotFoundError.among("label column", self.column, batch.schema.names)
        return batch.column(place)

    def _values(self, labels: pa.Array | pa.ChunkedArray) -> np.ndarray:
        values = self._cast(labels).to_numpy(zero_copy_only=False)
        with np.errstate(over="ignore"):
            single = values.astype(np.float32)
        if np.isinf(single).any():
            worst = values[np.isinf(single)][0]
            raise DataError(
                "a label does not fit float32", on=f"column {self.column}", expected="finite numbers below 3.4e38",
                found=f"{worst:g}", remedy="Rescale the label with derive, or leave such rows out with filter",
            )  # fmt: skip
        return single

    def _cast(self, labels: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
        try:
            if self.type == "double" and not pa.types.is_string(labels.type):
                # −0 is the class 0; integers beyond 2**53 become the nearest double.
                return pc.add(pc.cast(labels, pa.float64(), safe=False), 0.0)
            return pc.cast(labels, self.arrow_type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise DataError(
                f"a label can't be read as {self.type}", on=f"column {self.column}", expected=self.type,
                found=f"{labels.type} ({error})", remedy="Give the column the type that training had",
            ) from error  # fmt: skip


def _listed(values: tuple[Class, ...], limit: int = 8) -> str:
    shown = ", ".join(repr(value) for value in values[:limit])
    return shown + (f", … ({len(values)} in all)" if len(values) > limit else "")
