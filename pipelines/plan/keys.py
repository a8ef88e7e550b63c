"""What a stage's result depends on, and the key made of it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pipelines.codec import canonical

_ABSENT = object()
_SHOWN_CHANGES = 3
_LIBRARIES = ("dask-ml", "numpy", "pyarrow", "scikit-learn", "scipy", "xgboost")


@dataclass(frozen=True)
class StageKey:
    """The ingredients of a stage's result: equal ingredients, equal result.

    Attributes
    ----------
    stage : str
    ingredients : dict
        JSON-able: ``code`` (digest of the platform's rooms that compute it), ``parameters`` (the part of the spec),
        ``input <stage>`` (key of a stage that it needs), and what else a stage calls for.
    """

    stage: str
    ingredients: Mapping[str, Any]

    @cached_property
    def digest(self) -> str:
        """SHA-256 of stage and ingredients, in hex."""
        return hashlib.sha256(canonical({"stage": self.stage, **self.ingredients})).hexdigest()


@lru_cache
def code_digest(rooms: tuple[str, ...]) -> str:
    """Digest the source text of packages (``pipelines.data``, …), so that a changed platform computes anew."""
    total = hashlib.sha256()
    for room in sorted(rooms):
        module = import_module(room)
        for folder in module.__path__:
            for path in sorted(Path(folder).rglob("*.py")):
                total.update(f"{room}/{path.relative_to(folder)}\0".encode())
                total.update(path.read_bytes())
    return total.hexdigest()


@lru_cache
def library_versions(names: tuple[str, ...] = _LIBRARIES) -> dict[str, str]:
    """The versions of the libraries whose arithmetic is in a result."""
    return {name: version(name) for name in names}


def source_digest(target: str) -> str:
    """Digest the file of a user's module (``module:name`` or ``module.Class``); empty where it is not a file of Python.

    Its own imports are not followed: code in several files belongs under `code:`, which is digested whole.
    """
    module = target.partition(":")[0] if ":" in target else target.rpartition(".")[0]
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):
        return ""
    path = None if spec is None or spec.origin is None else Path(spec.origin)
    return hashlib.sha256(path.read_bytes()).hexdigest() if path is not None and path.is_file() else ""


def explain_difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Say in one line what differs between the ingredients of the last result and of this one."""
    changes = list(_changes(before, now, ""))
    shown = "; ".join(changes[:_SHOWN_CHANGES])
    more = len(changes) - _SHOWN_CHANGES
    return shown + (f"; and {more} more" if more > 0 else "")


def _changes(before: Any, now: Any, path: str) -> Iterator[str]:
    if before == now:
        return
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in sorted({*before, *now}):
            below = f"{path}.{key}" if path else str(key)
            yield from _changes(before.get(key, _ABSENT), now.get(key, _ABSENT), below)
    elif _is_list(before) and _is_list(now) and len(before) == len(now):
        for index, (old, new) in enumerate(zip(before, now, strict=True)):
            yield from _changes(old, new, f"{path}[{index}]")
    elif _is_digest(before) or _is_digest(now):
        yield f"{path} changed"
    else:
        yield f"{path}: {_short(before)} → {_short(now)}"


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _is_digest(value: Any) -> bool:
    return isinstance(value, str) and len(value) == 64 and all(c in "0123456789abcdef" for c in value)


def _short(value: Any) -> str:
    text = "nothing" if value is _ABSENT else repr(value)
    return text if len(text) <= 40 else text[:39] + "…"
