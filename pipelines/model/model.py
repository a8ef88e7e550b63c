"""The model bundle: feature plan, target, predictor, calibrator and threshold in one value that predicts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cached_property
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from pipelines import codec
from pipelines.errors import CorruptArtifactError, DataError, UsageError
from pipelines.features import FeaturePlan, Target
from pipelines.model.arrays import Matrix, Scores, row_blocks
from pipelines.model.calibration import Calibrator
from pipelines.model.predictors import Predictor, load_predictor, required

if TYPE_CHECKING:
    from pipelines.training import Fit

_SCHEMA = 1
_ROWS = 65_536  # rows scored at a time: bounds the float32 matrix, and shows in no prediction
_WRITERS = {"linear": "numpy", "xgboost": "xgboost", "skops": "scikit-learn"}


class ArrowStream(Protocol):
    """A table of another library that exports itself through Arrow's PyCapsule interface."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Export the table."""
        ...


@dataclass(frozen=True, eq=False)
class Model:
    """A trained model that predicts from Arrow batches as they come from Parquet.

    Values are immutable and safe to use from several threads. A row's prediction does not depend on the rows beside
    it: bit for bit for linear models and XGBoost, up to the library's own rounding for foreign estimators.

    Parameters
    ----------
    features : FeaturePlan
    target : Target
    predictor : Predictor
    calibrator : Calibrator, optional
        Applied to a classifier's scores.
    threshold : float, optional
        Of a binary model; 0.5 when not given.
    written_by : mapping of str to str
        Versions of the libraries that trained it.
    """

    features: FeaturePlan
    target: Target
    predictor: Predictor
    calibrator: Calibrator | None = None
    threshold: float | None = None
    written_by: tuple[tuple[str, str], ...] = ()

    @classmethod
    def from_fit(cls, fit: Fit, features: FeaturePlan, target: Target) -> Model:
        """Bundle what training gave with the plan and the target that it was trained on."""
        predictor = load_predictor(fit.kind, fit.files, n_features=features.width, n_outputs=target.n_outputs)
        return cls(features, target, predictor, written_by=_versions(fit.kind))

    # --- predicting --------------------------------------------------------------------------------------------------

    def scores(self, batch: pa.RecordBatch | pa.Table) -> Scores:
        """Score a batch.

        Parameters
        ----------
        batch : RecordBatch or Table
            At least the columns of `signature_in`, in any order.

        Returns
        -------
        ndarray of float64
            Shape (rows,): probability of the positive class, or the value; shape (rows, classes) for several classes,
            (rows, labels) for several labels.

        Raises
        ------
        DataError
            A column is missing or of a type that can't be used.
        """
        self._check_columns(batch)
        if batch.num_rows <= _ROWS:
            return self.scores_of_matrix(self.features.transform(batch))
        parts = [batch.slice(rows.start, rows.stop - rows.start) for rows in row_blocks(batch.num_rows, _ROWS)]
        return np.concatenate([self.scores_of_matrix(self.features.transform(part)) for part in parts])

    def scores_of_matrix(self, X: Matrix) -> Scores:
        """Score rows that `features` has already transformed; the same numbers as `scores`."""
        scores = self.predictor.scores(X)
        return scores if self.calibrator is None else self.calibrator.apply(scores)

    def predict(self, batch: pa.RecordBatch | pa.Table | ArrowStream) -> pa.Table:
        """Predict a batch: columns as in `signature_out`, rows in their order; null where the score is not a number.

        Parameters
        ----------
        batch : RecordBatch, Table, or any table that exports Arrow (a pandas or polars DataFrame)
            At least the columns of `signature_in`, in any order.
        """
        table = batch if isinstance(batch, pa.RecordBatch | pa.Table) else pa.table(batch)
        return self.decide(self.scores(table))

    def decide(self, scores: Scores) -> pa.Table:
        """Turn `scores` into the table that `predict` gives."""
        if self.target.kind == "regression":
            every = scores[:, None] if scores.ndim == 1 else scores
            values = [pa.array(np.ascontiguousarray(column), from_pandas=True) for column in every.T]
            return pa.table(values, schema=self.signature_out)
        if self.target.kind == "binary":
            positive = scores >= (0.5 if self.threshold is None else self.threshold)
            columns = [self._labels(positive.astype(np.int64), np.isnan(scores)), pa.array(scores, from_pandas=True)]
            return pa.table(columns, schema=self.signature_out)
        missing = np.asarray(np.isnan(scores).any(axis=1))
        chosen = np.argmax(np.where(missing[:, None], 0.0, scores), axis=1) if len(scores) else np.empty(0, np.int64)
        probabilities = [pa.array(np.ascontiguousarray(column), from_pandas=True) for column in scores.T]
        return pa.table([self._labels(chosen, missing), *probabilities], schema=self.signature_out)

    def _labels(self, indices: Any, missing: Any) -> pa.Array:
        classes = pa.array(self.target.classes, self.target.arrow_type)
        return classes.take(pa.array(indices, pa.int64(), mask=missing))

    def _check_columns(self, batch: pa.RecordBatch | pa.Table) -> None:
        lacking = [name for name in self.features.inputs if name not in batch.schema.names]
        if not lacking:
            return
        near = {near for name in lacking for near in get_close_matches(name, batch.schema.names, n=1)}
        raise DataError(
            f"the data lacks columns that the model reads: {', '.join(lacking)}",
            expected=", ".join(self.features.inputs),
            found=", ".join(batch.schema.names),
            remedy=f"Is it {', '.join(sorted(near))} under another name?" if near else "",
        )

    # --- what it is --------------------------------------------------------------------------------------------------

    @property
    def kind(self) -> str:
        """Kind of the predictor: ``linear``, ``xgboost`` or ``skops``."""
        return self.predictor.kind

    @property
    def python_only(self) -> bool:
        """Whether it runs in Python only (a foreign estimator, or a foreign transformer among the features)."""
        return self.predictor.python_only or self.features.python_only

    @property
    def probabilistic(self) -> bool:
        """Whether a classifier's scores are probabilities; calibration makes them so."""
        return self.predictor.probabilistic or self.calibrator is not None

    @property
    def signature_in(self) -> pa.Schema:
        """Columns and types that the model reads."""
        return self.features.input_schema

    @cached_property
    def signature_out(self) -> pa.Schema:
        """Columns and types of `predict`."""
        if self.target.kind == "regression":
            names = [f"prediction_{name}" for name in self.target.columns] if self.target.others else ["prediction"]
            return pa.schema([(name, pa.float64()) for name in names])
        label = ("prediction", self.target.arrow_type)
        if self.target.kind == "binary":
            return pa.schema([label, ("probability", pa.float64())])
        return pa.schema([label, *((f"probability_{name}", pa.float64()) for name in self.target.classes)])

    def importance(self) -> tuple[tuple[str, float], ...]:
        """Features by falling importance: mean gain for XGBoost, ``|coef · std|`` for linear models.

        Empty when the predictor knows none.
        """
        values = self.predictor.importance()
        if np.isnan(values).all():
            return ()
        order = np.argsort(-np.nan_to_num(values), kind="stable")
        return tuple((self.features.names[i], float(values[i])) for i in order)

    def describe(self) -> dict[str, Any]:
        """Give plain facts for `mutirao model show`."""
        return {
            "kind": self.kind,
            "digest": self.digest,
            "target": {
                "column": self.target.column,
                "others": list(self.target.columns[1:]),
                "kind": self.target.kind,
                "classes": list(self.target.classes),
            },
            "inputs": {field.name: str(field.type) for field in self.signature_in},
            "outputs": {field.name: str(field.type) for field in self.signature_out},
            "features": self.features.width,
            "predictor": self.predictor.describe(),
            "calibrator": self.calibrator.kind if self.calibrator else None,
            "threshold": self.threshold,
            "python_only": self.python_only,
            "probabilistic": self.probabilistic,
            "importance": [{"feature": name, "value": value} for name, value in self.importance()[:20]],
            "written_by": dict(self.written_by),
        }

    # --- changing and storing it -------------------------------------------------------------------------------------

    def with_calibration(self, calibrator: Calibrator | None) -> Model:
        """Give the same model with its scores calibrated (classifiers only).

        Raises
        ------
        UsageError
            The target is a regression, or the curves do not fit the score columns.
        """
        if calibrator is not None:
            if self.target.kind == "regression":
                raise UsageError("a regression has no probabilities to calibrate", on=self.target.column)
            calibrator.apply(np.full((1, self.target.n_outputs), 0.5))
        return replace(self, calibrator=calibrator)

    def with_threshold(self, threshold: float | None) -> Model:
        """Give the same model deciding at another probability (binary only).

        Raises
        ------
        UsageError
            The target is not binary, or the threshold not within 0 … 1.
        """
        if threshold is not None and self.target.kind != "binary":
            raise UsageError("only a binary model has a threshold", on=self.target.column, found=self.target.kind)
        if threshold is not None and not 0 <= threshold <= 1:
            raise UsageError("a threshold is a probability", expected="0 … 1", found=str(threshold))
        return replace(self, threshold=threshold)

    def files(self) -> dict[str, bytes]:
        """Give the whole model as files by relative path: JSON, Arrow, NumPy arrays, UBJSON, skops; no pickle.

        The same model gives the same bytes.
        """
        head = {
            "schema": _SCHEMA,
            "kind": self.kind,
            "target": codec.to_plain(self.target),
            "calibrator": codec.to_plain(self.calibrator) if self.calibrator else None,
            "threshold": self.threshold,
            "signature_in": codec.schema_to_text(self.signature_in),
            "signature_out": codec.schema_to_text(self.signature_out),
            "python_only": self.python_only,
            "written_by": dict(self.written_by),
        }
        return {
            "model.json": codec.canonical(head),
            **{f"features/{name}": data for name, data in self.features.files().items()},
            **{f"predictor/{name}": data for name, data in self.predictor.files().items()},
        }

    @classmethod
    def from_files(cls, files: Mapping[str, bytes]) -> Model:
        """Rebuild a model from `files`.

        Raises
        ------
        CorruptArtifactError
            A file is missing, unreadable, or does not fit the others.
        UsageError
            The model was written by a newer version of this package.
        """
        head = _head(required(files, "model.json"))
        features = FeaturePlan.from_files(_under(files, "features/"))
        target = _part(lambda: codec.from_plain(Target, head["target"]))
        calibrator = _part(lambda: codec.from_plain(Calibrator, head["calibrator"]) if head["calibrator"] else None)
        predictor = load_predictor(
            str(head["kind"]),
            _under(files, "predictor/"),
            n_features=features.width,
            n_outputs=target.n_outputs,
        )
        written_by = tuple(sorted((str(k), str(v)) for k, v in head["written_by"].items()))
        return cls(features, target, predictor, calibrator, head["threshold"], written_by)

    @cached_property
    def digest(self) -> str:
        """SHA-256 over the digests of all files: equal for equal models."""
        return codec.digest(codec.canonical({name: codec.digest(data) for name, data in self.files().items()}))

    def __reduce__(self) -> tuple[Callable[[Mapping[str, bytes]], Model], tuple[dict[str, bytes]]]:
        return Model.from_files, (self.files(),)


def _versions(kind: str) -> tuple[tuple[str, str], ...]:
    names = ("mutirao", _WRITERS[kind])
    return tuple(sorted((name, version(name)) for name in names))


def _head(data: bytes) -> dict[str, Any]:
    try:
        head = dict(json.loads(data))
        schema = int(head["schema"])
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptArtifactError("model.json can't be read", found=str(error)) from error
    if schema > _SCHEMA:
        raise UsageError(
            "the model was written by a newer version of mutirao",
            expected=f"schema ≤ {_SCHEMA}",
            found=str(schema),
            remedy="Upgrade mutirao here.",
        )
    return head


def _part(build: Callable[[], Any]) -> Any:
    try:
        return build()
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptArtifactError("model.json can't be read", found=str(error)) from error


def _under(files: Mapping[str, bytes], prefix: str) -> dict[str, bytes]:
    return {name.removeprefix(prefix): data for name, data in files.items() if name.startswith(prefix)}
