"""Which class does an import path name, what does it learn, and do a spec's params go with its signature?"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from typing import Any, Literal

from pydantic import ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from pipelines.errors import UserCodeError

Task = Literal["classifier", "regressor"]

_DASK_ML: Mapping[str, Task] = {
    "LogisticRegression": "classifier",
    "LinearRegression": "regressor",
    "PoissonRegression": "regressor",
    "GaussianNB": "classifier",
}
"""What of dask-ml learns from labels by itself, without an estimator object around which it would be put."""


@dataclass(frozen=True)
class ForeignClass:
    """A class that the user named.

    Parameters
    ----------
    name : str
        The import path as the spec has it.
    cls : type
    task : {"classifier", "regressor"}
    dask : bool
        Whether it fits on dask arrays.
    """

    name: str
    cls: type
    task: Task
    dask: bool

    @property
    def streams(self) -> bool:
        """Whether it learns from batch after batch."""
        return not self.dask and hasattr(self.cls, "partial_fit")

    @property
    def takes_weights(self) -> bool:
        """Whether `fit` takes sample weights."""
        return not self.dask and _takes(self.cls, "fit", "sample_weight")

    @property
    def streams_weights(self) -> bool:
        """Whether `partial_fit` takes sample weights."""
        return self.streams and _takes(self.cls, "partial_fit", "sample_weight")

    def make(self, params: Mapping[str, Any], *, random_state: int, threads: int) -> Any:
        """Build the estimator; seed and threads are set where it takes them and the user did not."""
        known = inspect.signature(self.cls).parameters
        words = dict(params)
        if "random_state" in known:
            words.setdefault("random_state", random_state)
        if "n_jobs" in known and threads > 1:
            words.setdefault("n_jobs", threads)
        return self.cls(**words)


def find_class(name: str) -> ForeignClass:
    """Import the class behind ``package.module.Class`` or ``package.module:Class``.

    Raises
    ------
    UserCodeError
        It can't be imported, or is no classifier or regressor.
    """
    module, _, attribute = name.partition(":") if ":" in name else name.rpartition(".")
    try:
        loaded = import_module(module)
    except Exception as error:  # importing a user's module runs the user's code
        remedy = "Is the path right, is the package installed, or is the module listed in code:?"
        raise UserCodeError(f"can't be imported: {type(error).__name__}: {error}", on=name, remedy=remedy) from error
    cls = getattr(loaded, attribute, None)
    if not isinstance(cls, type):
        near = get_close_matches(attribute, [each for each in dir(loaded) if not each.startswith("_")], n=3)
        hint = f"Did you mean {', '.join(f'{module}.{each}' for each in near)}?" if near else ""
        raise UserCodeError(f"{module} has no class {attribute!r}", on=name, remedy=hint)
    return ForeignClass(name, cls, _task(cls, name), cls.__module__.startswith("dask_ml."))


def _task(cls: type, name: str) -> Task:
    from sklearn.base import ClassifierMixin, RegressorMixin

    if cls.__module__.startswith("dask_ml."):
        if cls.__name__ in _DASK_ML:
            return _DASK_ML[cls.__name__]
        known = ", ".join(f"dask_ml's {each}" for each in _DASK_ML)
        raise UserCodeError("dask-ml's class does not learn a label by itself", on=name, remedy=f"Use {known}")
    if not (hasattr(cls, "fit") and hasattr(cls, "predict")):
        raise UserCodeError("it has no fit and predict", on=name, remedy="Name a classifier or a regressor")
    if issubclass(cls, ClassifierMixin):
        return "classifier"
    if issubclass(cls, RegressorMixin):
        return "regressor"
    # Duck typing: an estimator with probabilities or decisions is a classifier, and what transforms is none at all.
    if hasattr(cls, "predict_proba") or hasattr(cls, "decision_function"):
        return "classifier"
    remedy = "Derive it from sklearn's ClassifierMixin or RegressorMixin"
    raise UserCodeError("it is neither a classifier nor a regressor", on=name, remedy=remedy)


def check_words(found: ForeignClass, params: Mapping[str, Any]) -> None:
    """Check params against the class's signature, and their values where scikit-learn declares what they may be.

    Raises
    ------
    ValidationError
        With every fault.
    """
    known = inspect.signature(found.cls).parameters
    free = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in known.values())
    names = [name for name, each in known.items() if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
    faults = [(name, _unknown(found.name, name, names)) for name in params if name not in names and not free]
    needed = [name for name in names if known[name].default is inspect.Parameter.empty and name not in params]
    faults += [(name, f"{found.name} needs {name}, and it is not there") for name in needed]
    if not faults:
        faults = _value_faults(found, params)
    if faults:
        raise word_faults(found.name, faults)


def word_faults(title: str, faults: list[tuple[str, str]]) -> ValidationError:
    """Build the error that tells faults of params: name and message of each."""
    details = [
        InitErrorDetails(type=PydanticCustomError("value_error", "{m}", {"m": message}), loc=(name,), input="")
        for name, message in faults
    ]
    return ValidationError.from_exception_data(title, details)


def _unknown(path: str, name: str, names: list[str]) -> str:
    near = get_close_matches(name, names, n=3, cutoff=0.5) or names
    return f"{path} has no parameter {name!r}: it has {', '.join(near)}"


def _value_faults(found: ForeignClass, params: Mapping[str, Any]) -> list[tuple[str, str]]:
    constraints = getattr(found.cls, "_parameter_constraints", None)
    if not isinstance(constraints, Mapping):
        return []
    from sklearn.utils._param_validation import InvalidParameterError, validate_parameter_constraints

    faults = []
    for name, value in params.items():
        try:
            validate_parameter_constraints(constraints, {name: value}, caller_name=found.name)
        except InvalidParameterError as error:
            faults.append((name, str(error)))
    return faults


def _takes(cls: type, method: str, word: str) -> bool:
    function = getattr(cls, method, None)
    return function is not None and word in inspect.signature(function).parameters
