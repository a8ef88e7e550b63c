"""Whose checkpoints are these? A record beside them says what they hang on, so others are refused with a reason."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pipelines import codec
from pipelines.errors import ObjectNotFoundError, UsageError
from pipelines.storage import ObjectStore
from pipelines.training.checkpoint import has_checkpoints

_RECORD = "identity.json"
_SHOWN = 12
_LONGEST = 60


def prefix_of(family: str, plain: Mapping[str, Any]) -> str:
    """Name the folder of the checkpoints of one kind of training that hang on `plain`."""
    return f"{family}-{codec.digest(codec.canonical(plain))[:24]}"


def record_identity(store: ObjectStore, prefix: str, plain: Mapping[str, Any]) -> None:
    """Say beside the checkpoints under `prefix` what they hang on.

    Raises
    ------
    StorageError
    """
    key = f"{prefix}/{_RECORD}"
    if store.head(key) is None:
        store.replace(key, codec.canonical(plain))


def refuse_others(store: ObjectStore, family: str, prefix: str, plain: Mapping[str, Any]) -> None:
    """Refuse to begin anew beside the checkpoints of another training.

    Parameters
    ----------
    family : str
        The first word of the prefixes of the same kind of training.
    prefix, plain
        Of this training.

    Raises
    ------
    UsageError
        There are checkpoints of another spec, dataset or version, and none of this training; lists the differences.
    """
    if has_checkpoints(store, prefix):
        return
    for name in store.folders():
        if name != prefix and name.startswith(f"{family}-") and has_checkpoints(store, name):
            raise UsageError(
                "the checkpoints that are here are of another training, and can't be gone on from",
                on=f"{store.url}/{name}",
                found=_differences_told(_recorded(store, name), plain),
                remedy="Start a new run of the spec; or remove these checkpoints to train from the beginning.",
            )


def differences(before: Any, now: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield the path, the value before and the value now of every difference between two plain values."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in sorted({*before, *now}):
            below = f"{path}.{key}" if path else str(key)
            yield from differences(before.get(key), now.get(key), below)
    elif before != now:
        yield path, before, now


def _differences_told(before: Mapping[str, Any] | None, now: Mapping[str, Any]) -> str:
    if before is None:
        return "checkpoints without a record of what they hang on"
    found = [f"{path}: {_short(old)} → {_short(new)}" for path, old, new in differences(before, now)]
    more = [f"and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
    return "\n  ".join([f"{len(found)} difference{'s' if len(found) != 1 else ''}", *found[:_SHOWN], *more])


def _recorded(store: ObjectStore, prefix: str) -> dict[str, Any] | None:
    try:
        found = json.loads(store.get(f"{prefix}/{_RECORD}"))
    except (ObjectNotFoundError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _short(value: Any) -> str:
    text = "nothing" if value is None else json.dumps(value, ensure_ascii=False, sort_keys=True)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
