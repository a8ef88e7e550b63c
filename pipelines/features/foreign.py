"""How do scikit-learn's and dask-ml's transformers take part? Fitted, stored with skops, applied to batches."""

from __future__ import annotations

import importlib
import inspect
import io
import json
import threading
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
from scipy.sparse import csr_matrix, issparse

from pipelines.errors import DataError, UserCodeError
from pipelines.features.columns import Columns, as_numbers, is_number
from pipelines.features.steps import Foreign


def make_transformer(path: str, params: Mapping[str, Any], seed: int) -> Any:
    """Import and construct a transformer; `seed` becomes its ``random_state`` if it has one that is not given.

    Raises
    ------
    UserCodeError
        It can't be imported or constructed, or is no transformer.
    """
    module, _, name = path.replace(":", ".").rpartition(".")
    with blame(path, "can't be imported"):
        kind = getattr(importlib.import_module(module), name)
    if not (callable(kind) and hasattr(kind, "fit") and hasattr(kind, "transform")):
        raise UserCodeError(
            "is not a transformer", on=path, expected="a class with fit and transform", found=type(kind).__name__,
            remedy="Name a transformer, or call it in a stage of your own",
        )  # fmt: skip
    with blame(path, f"can't be made with params {dict(params)}"):
        arguments = dict(params)
        if "random_state" in inspect.signature(kind).parameters:
            arguments.setdefault("random_state", seed)
        return kind(**arguments)


def as_matrix(columns: Sequence[pa.Array], transformer: Any) -> np.ndarray:
    """Lay columns out as scikit-learn takes them.

    Returns
    -------
    ndarray
        float64, shape (rows, columns), if all are numbers (NaN where null), else objects (None where null); for
        transformers of texts, which take one column, objects of shape (rows,), empty where null.
    """
    if all(is_number(c.type) or pa.types.is_boolean(c.type) for c in columns):
        matrix = np.empty((len(columns[0]), len(columns)), order="F")
        for place, column in enumerate(columns):
            matrix[:, place] = as_numbers(column)
        return matrix
    objects = np.empty((len(columns[0]), len(columns)), object)
    for place, column in enumerate(columns):
        objects[:, place] = np.array([*column.to_pylist(), None], object)[:-1]
    if len(columns) == 1 and _takes_texts(transformer):
        return np.where(objects[:, 0] == None, "", objects[:, 0])  # noqa: E711 - elementwise
    return objects


def transform_matrix(transformer: Any, matrix: np.ndarray, path: str) -> np.ndarray | csr_matrix:
    """Apply a transformer.

    Returns
    -------
    ndarray of float32 or csr_matrix of float32, shape (rows, outputs)

    Raises
    ------
    UserCodeError
        It fails, or yields something that is not a matrix of numbers with as many rows.
    """
    with blame(path, "failed in transform"), in_this_thread(transformer):
        result: Any = transformer.transform(matrix)
        result = result.compute() if hasattr(result, "dask") else result
        if not issparse(result):
            result = np.asarray(result)
            result = result.reshape(len(result), -1)
        result = result.astype(np.float32)
    if result.shape[0] != len(matrix):
        raise UserCodeError(
            "transform does not keep rows", on=path, expected=f"{len(matrix)} rows", found=f"{result.shape[0]}",
            remedy="Use a transformer that gives one row for each row",
        )  # fmt: skip
    kept: Any = result
    return csr_matrix(kept) if issparse(result) else kept


def names_of(transformer: Any, columns: Sequence[str], outputs: int) -> tuple[str, ...]:
    """Name a fitted transformer's outputs: as it does itself if it can, else by number."""
    try:
        names = [str(name) for name in transformer.get_feature_names_out(list(columns))]
    except (AttributeError, NotImplementedError, TypeError, ValueError):
        try:
            names = [str(name) for name in transformer.get_feature_names_out()]
        except (AttributeError, NotImplementedError, TypeError, ValueError):
            names = []
    if len(names) == outputs:
        return tuple(names)
    base = f"{'+'.join(columns)}:{type(transformer).__name__.lower()}"
    return tuple(f"{base}{number}" for number in range(outputs))


def store(transformer: Any, path: str) -> tuple[bytes, tuple[str, ...]]:
    """Write a transformer as skops does, but the same bytes whenever it is the same, and list the types to trust.

    Raises
    ------
    UserCodeError
        It holds something that skops can't write.
    """
    import skops.io

    with blame(path, "can't be stored with skops, so no model could hold it"):
        data = _normalised(skops.io.dumps(transformer))
        return data, tuple(sorted(skops.io.get_untrusted_types(data=data)))


def restore(data: bytes, trusted: Sequence[str], path: str) -> Any:
    """Read a stored transformer, trusting the recorded types and what skops trusts."""
    import skops.io

    with blame(path, "can't be read back"):
        return skops.io.loads(data, trusted=list(trusted))


class AppliedForeign:
    """A transformer over a batch."""

    def __init__(self, step: Foreign, transformer: Any) -> None:
        self._step, self._transformer = step, transformer
        self.width, self.sparse = len(step.names), step.density is not None

    def matrix(self, columns: Columns) -> np.ndarray | csr_matrix:
        """Transform a batch, float32, shape (rows, width)."""
        step = self._step
        if columns.rows == 0:
            return np.empty((0, self.width), np.float32)
        arrays = [plain(columns.column(name)) for name in step.columns]
        result = transform_matrix(self._transformer, as_matrix(arrays, self._transformer), step.path)
        if result.shape[1] != self.width:
            raise DataError(
                "a transformer gave another number of columns than at its fit", on=step.path,
                expected=str(self.width), found=str(result.shape[1]),
            )  # fmt: skip
        return result

    def write(self, columns: Columns, out: np.ndarray) -> None:
        """Write the transformer's output columns."""
        result = self.matrix(columns)
        np.copyto(out, result.toarray() if issparse(result) else result)


def plain(values: pa.Array) -> pa.Array:
    """Decode a dictionary array."""
    return values.cast(values.type.value_type) if pa.types.is_dictionary(values.type) else values


def _takes_texts(transformer: Any) -> bool:
    from sklearn.utils import get_tags

    try:
        tags = get_tags(transformer).input_tags
    except (AttributeError, TypeError):
        return False
    return bool(tags.string and not tags.two_d_array)


def _normalised(archive: bytes) -> bytes:
    """Rewrite a skops archive without what changes from one writing to the next: object ids and times."""
    with zipfile.ZipFile(io.BytesIO(archive)) as given:
        schema = json.loads(given.read("schema.json"))
        members = {name: given.read(name) for name in given.namelist() if name != "schema.json"}
    numbers: dict[int, int] = {}
    files = {name: f"{place}{name[name.rfind('.') :]}" for place, name in enumerate(_files_in(schema))}
    plain = _renumbered(schema, numbers, files)
    members = {files[name]: data for name, data in members.items()}
    members["schema.json"] = json.dumps(plain).encode()
    result = io.BytesIO()
    with zipfile.ZipFile(result, "w", zipfile.ZIP_DEFLATED) as written:
        for name in sorted(members):
            written.writestr(zipfile.ZipInfo(name), members[name], zipfile.ZIP_DEFLATED)
    return result.getvalue()


def _files_in(node: Any) -> dict[str, None]:
    """Names of the archive's members in the order in which the schema mentions them."""
    found: dict[str, None] = {}
    if isinstance(node, dict):
        if isinstance(node.get("file"), str):
            found[node["file"]] = None
        for value in node.values():
            found |= _files_in(value)
    elif isinstance(node, list):
        for value in node:
            found |= _files_in(value)
    return found


def _renumbered(node: Any, numbers: dict[int, int], files: Mapping[str, str]) -> Any:
    if isinstance(node, list):
        return [_renumbered(value, numbers, files) for value in node]
    if not isinstance(node, dict):
        return node
    result: dict[str, Any] = {}
    for key, value in node.items():
        if key == "__id__" and isinstance(value, int):
            result[key] = numbers.setdefault(value, len(numbers))
        elif key == "file" and value in files:
            result[key] = files[value]
        else:
            result[key] = _renumbered(value, numbers, files)
    return result


_one_at_a_time = threading.RLock()


@contextmanager
def in_this_thread(transformer: Any) -> Iterator[None]:
    """Keep dask-ml from computing on a cluster, or on none that is left: it would wait for the task that calls it.

    Dask's configuration is one for all threads, so they take turns.
    """
    if not type(transformer).__module__.startswith("dask_ml."):
        yield
        return
    import dask

    with _one_at_a_time, dask.config.set(scheduler="synchronous"):
        yield


@contextmanager
def blame(path: str, what: str) -> Iterator[None]:
    """Turn whatever foreign code raises into an error that names it."""
    try:
        yield
    except Exception as error:  # the boundary to code that is not ours
        raise UserCodeError(
            what, on=path, found=f"{type(error).__name__}: {error}",
            remedy="Mend the transformer or its params, or choose another",
        ) from error  # fmt: skip
