"""Pydantic's errors as faults of a spec: path, what is wrong, how to mend it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from pipelines.config import Config
from pipelines.errors import Fault
from pipelines.spec.document import Document, Path

_FOUND_LIMIT = 60


def faults_of(error: ValidationError, document: Document, model: type[BaseModel], under: Path = ()) -> list[Fault]:
    """Translate every error of a validation of the values at `under` against `model`.

    The branches of a union fail each on its own at the same place; they become one fault.
    """
    by_path: dict[Path, list[Fault]] = {}
    short: set[Path] = set()
    for item in error.errors(include_url=False, include_context=False):
        path = under + _real_path(item["loc"], _value_at(document.values, under), item["type"])
        by_path.setdefault(path, []).append(_fault(item, path, document, model, under))
        if item["type"] == "too_short":
            short.add(path)
    return [_joined(faults) for path, faults in by_path.items() if not _follows_from_others(path, short, by_path)]


def model_of(error: ValidationError) -> type[Config]:
    """The model that a validation failed on: an estimator's own, which only it knows."""
    waiting: list[type[Config]] = [Config]
    while waiting:
        model = waiting.pop()
        if model.__name__ == error.title:
            return model
        waiting += model.__subclasses__()
    return Config


def _follows_from_others(path: Path, short: set[Path], by_path: Mapping[Path, object]) -> bool:
    """Whether a list is only too short since what is in it has faults of its own."""
    return path in short and any(len(other) > len(path) and other[: len(path)] == path for other in by_path)


def _fault(item: Mapping[str, Any], path: Path, document: Document, model: type[BaseModel], under: Path) -> Fault:
    place = document.place(path)
    if item["type"] == "extra_forbidden":
        known = sorted({name for fields in _fields_at(model, path[len(under) : -1]) for name in fields})
        near = get_close_matches(str(path[-1]), known, n=1, cutoff=0.6)
        return Fault(place, "unknown key", f"Did you mean {near[0]}?" if near else f"Known keys: {', '.join(known)}")
    if item["type"] == "missing":
        return Fault(place, "required, and not there", f"Add {path[-1]}:")
    message = str(item["msg"]).removeprefix("Value error, ").replace("Tuple should", "List should")
    if message[1:2].islower():
        message = message[:1].lower() + message[1:]
    if item["type"] != "value_error":
        found = repr(item["input"])
        message += f", found {found if len(found) <= _FOUND_LIMIT else found[:_FOUND_LIMIT] + '…'}"
    return Fault(place, message)


def _joined(faults: list[Fault]) -> Fault:
    messages = list(dict.fromkeys(fault.message for fault in faults))
    fix = next((fault.fix for fault in faults if fault.fix), "")
    return Fault(faults[0].path, "; or ".join(messages), fix)


def _real_path(location: Iterable[str | int], value: Any, kind: str) -> Path:
    """Keep of pydantic's location what is written in the document: union branches are named in it, too."""
    parts = tuple(location)
    path: list[str | int] = []
    for index, part in enumerate(parts):
        here = isinstance(part, int) or (isinstance(value, Mapping) and part in value)
        if here:
            path.append(part)
            value = _step(value, part)
        elif kind == "missing" and index == len(parts) - 1:
            path.append(part)
    return tuple(path)


def _value_at(value: Any, path: Path) -> Any:
    for part in path:
        value = _step(value, part)
    return value


def _step(value: Any, part: str | int) -> Any:
    try:
        return value[part]
    except (KeyError, IndexError, TypeError):
        return None


def _fields_at(model: type[BaseModel], path: Path) -> Iterator[list[str]]:
    """Yield the field names of every model that may stand at `path` below `model`."""
    if not path:
        yield list(model.model_fields)
        return
    head, rest = path[0], path[1:]
    if isinstance(head, str) and head in model.model_fields:
        # items of sequences and mappings have no field of their own: the models are in the annotation's arguments
        keep = tuple(part for part in rest if isinstance(part, str))
        for below in _models_in(model.model_fields[head].annotation):
            yield from _fields_at(below, keep)


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)
