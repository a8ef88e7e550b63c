"""Resumable state on an object store: complete or absent, the newest first to be found.

A checkpoint is a state, whose key holds its digest, and a small commit record that names it and is written last. What
has no record, or a state that is not the recorded bytes, does not exist. Keys descend (10^10 - step), so that the first
listed is the newest.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

from pipelines.codec import digest, dump, load
from pipelines.errors import MutiraoError, ObjectNotFoundError
from pipelines.storage import ObjectStore

logger = logging.getLogger(__name__)

_FIRST = 10**10
_SCHEMA = 1


@dataclass(frozen=True)
class Checkpoint:
    """A committed state: the step it was taken at, and its bytes (verified against their digest)."""

    step: int
    payload: bytes


@dataclass(frozen=True)
class _Commit:
    schema_number: int
    step: int
    state: str
    digest: str
    size: int


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
    commit = _Commit(_SCHEMA, step, state, found, len(payload))
    store.replace(f"{prefix}/commits/{_number(step)}.json", dump(commit))
    _collect(store, prefix, keep)


def latest_checkpoint(store: ObjectStore, prefix: str) -> Checkpoint | None:
    """Return the newest committed checkpoint that is intact, or None; a damaged one is passed over with a warning."""
    for key in _commits(store, prefix):
        checkpoint = _read(store, key)
        if checkpoint is not None:
            return checkpoint
    return None


def _read(store: ObjectStore, key: str) -> Checkpoint | None:
    try:
        commit = load(_Commit, store.get(key))
        payload = store.get(commit.state)
    except ObjectNotFoundError:
        logger.warning("checkpoint %s/%s has lost its state and is passed over", store.url, key)
        return None
    except ValueError as error:
        logger.warning("checkpoint %s/%s can't be read and is passed over: %s", store.url, key, error)
        return None
    if len(payload) != commit.size or digest(payload) != commit.digest:
        logger.warning("checkpoint %s/%s is not what was saved and is passed over", store.url, key)
        return None
    return Checkpoint(commit.step, payload)


def _collect(store: ObjectStore, prefix: str, keep: int) -> None:
    """Remove old checkpoints, record first; what can't be removed now is removed next time."""
    try:
        kept = set()
        for number, key in enumerate(_commits(store, prefix)):
            name = key.rsplit("/", 1)[1].removesuffix(".json")
            if number < keep:
                kept.add(name)
            else:
                store.delete(key)
        for info in list(store.list(f"{prefix}/states")):
            if info.key.rsplit("/", 1)[1].split("-")[0] not in kept:
                store.delete(info.key)
    except MutiraoError as error:
        logger.warning("old checkpoints under %s/%s were not removed: %s", store.url, prefix, error)


def _commits(store: ObjectStore, prefix: str) -> Iterator[str]:
    for info in list(store.list(f"{prefix}/commits")):
        if info.key.endswith(".json"):
            yield info.key


def _number(step: int) -> str:
    return f"{_FIRST - step:011d}"
