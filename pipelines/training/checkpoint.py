"""Resumable state on an object store: complete or absent, the newest first to be found.

A checkpoint is a state, whose key holds its digest, and a small commit record that names it and is written last. What
has no record, or a state that is not the recorded bytes, does not exist. Keys descend (10^10 - step), so that the first
listed is the newest.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from pipelines.codec import digest, dump, load
from pipelines.errors import MutiraoError, ObjectNotFoundError
from pipelines.storage import ObjectStore

logger = logging.getLogger(__name__)

_FIRST = 10**10
_SCHEMA = 1


@dataclass(frozen=True)
class Checkpoint:
    """A committed state: the step it was taken at, its bytes (verified against their digest), and when it was saved."""

    step: int
    payload: bytes
    at: float = field(default=0.0, compare=False)
    """Seconds since the epoch, of whoever saved it."""


@dataclass(frozen=True)
class _Commit:
    schema_number: int
    step: int
    state: str
    digest: str
    size: int
    at: float = 0.0


def save_checkpoint(store: ObjectStore, prefix: str, step: int, payload: bytes, *, keep: int = 3) -> None:
    """Save `payload` under ``prefix/``, commit record last, then remove all but the newest `keep`.

    Saving a step again replaces it. May be retried.

    Raises
    ------
    StorageError
        The state could not be written; earlier checkpoints are untouched.
    """
    found = digest(payload)
    state = f"{prefix}/states/{_number(step)}-{found[:16]}"
    store.replace(state, payload)
    commit = _Commit(_SCHEMA, step, state, found, len(payload), time.time())
    store.replace(f"{prefix}/commits/{_number(step)}.json", dump(commit))
    _collect(store, prefix, keep)


def latest_checkpoint(
    store: ObjectStore, prefix: str, *, on_damage: Callable[[str], None] | None = None
) -> Checkpoint | None:
    """Return the newest committed checkpoint that is intact, or None.

    Parameters
    ----------
    on_damage : callable, optional
        Told about each damaged one that is passed over, beside the warning in the log.
    """
    for key in _commits(store, prefix):
        found = _read(store, prefix, key)
        if isinstance(found, Checkpoint):
            return found
        text = f"checkpoint {store.url}/{key} {found} and is passed over"
        logger.warning("%s", text)
        if on_damage is not None:
            on_damage(text)
    return None


def has_checkpoints(store: ObjectStore, prefix: str) -> bool:
    """Whether anything was committed under a prefix, intact or not."""
    return next(_commits(store, prefix), None) is not None


def _read(store: ObjectStore, prefix: str, key: str) -> Checkpoint | str:
    """Read what a commit record names; or say what is wrong with it."""
    try:
        commit = load(_Commit, store.get(key))
        if key != f"{prefix}/commits/{_number(commit.step)}.json" or not commit.state.startswith(f"{prefix}/states/"):
            return "does not name its own state"
        payload = store.get(commit.state)
    except ObjectNotFoundError:
        return "has lost its state"
    except ValueError as error:
        return f"can't be read ({str(error).splitlines()[0]})"
    if len(payload) != commit.size or digest(payload) != commit.digest:
        return "is not what was saved"
    return Checkpoint(commit.step, payload, commit.at)


def _collect(store: ObjectStore, prefix: str, keep: int) -> None:
    """Remove old checkpoints, record first; what can't be removed now is removed next time.

    States that are newer than the newest record stay: another writer may be about to commit them.
    """
    try:
        kept: list[str] = []
        for number, key in enumerate(_commits(store, prefix)):
            name = key.rsplit("/", 1)[1].removesuffix(".json")
            if number < keep:
                kept.append(name)
            else:
                store.delete(key)
        for info in list(store.list(f"{prefix}/states")):
            name = info.key.rsplit("/", 1)[1].split("-")[0]
            if name not in kept and kept and name > kept[0]:
                store.delete(info.key)
    except MutiraoError as error:
        logger.warning("old checkpoints under %s/%s were not removed: %s", store.url, prefix, error)


def _commits(store: ObjectStore, prefix: str) -> Iterator[str]:
    for info in list(store.list(f"{prefix}/commits")):
        if info.key.endswith(".json"):
            yield info.key


def _number(step: int) -> str:
    return f"{_FIRST - step:011d}"
