"""A log of numbered records that are only ever created: the newest is the first key of its folder.

Numbers count from 1 without gaps and are never used twice. The key of record n holds 10^10 − n, so that a listing of
one key finds the newest. Any number of writers append at the same time: whoever loses a number reads the winner's
record and tries the next one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from pipelines.errors import StorageError
from pipelines.storage import ObjectStore, create_once

_BEYOND = 10**10
_KEY = re.compile(r"(?:.*/)?([0-9]{10})\.json")
_RACES = 1000
_AT_ONCE = 16

Build = Callable[[int, bytes | None], bytes | None]
"""Makes the record of a number, given the newest record before it; None leaves the log as it is."""


def record_key(folder: str, number: int) -> str:
    """Return the key of a record."""
    return f"{folder}/{_BEYOND - number:010d}.json"


def record_number(key: str) -> int | None:
    """Return the number that a key stands for; None for a stranger's object."""
    match = _KEY.fullmatch(key)
    return _BEYOND - int(match[1]) if match else None


def newest(store: ObjectStore, folder: str) -> tuple[int, bytes] | None:
    """Read the newest record with its number; None when the log is empty."""
    after: str | None = None
    while (info := next(store.list(folder, after=after, limit=1), None)) is not None:
        number = record_number(info.key)
        if number is not None:
            return number, store.get(info.key)
        after = info.key
    return None


def append(store: ObjectStore, folder: str, build: Build) -> tuple[int, bytes] | None:
    """Append what `build` makes, under the next free number.

    Parameters
    ----------
    store : ObjectStore
    folder : str
    build : callable
        Called once for every number that is tried. What it returns must hold a random write id: see `create_once`.

    Returns
    -------
    tuple of (int, bytes) or None
        The record as it was appended, with its number; or, where `build` left the log as it is, the newest record.

    Raises
    ------
    UnreachableStoreError
        The store failed in such a way that the record may or may not be there.
    StorageError
        Nothing was written.
    """
    last = newest(store, folder)
    for _ in range(_RACES):
        number, previous = (0, None) if last is None else last
        data = build(number + 1, previous)
        if data is None:
            return last
        key = record_key(folder, number + 1)
        if create_once(store, key, data):
            return number + 1, data
        last = number + 1, store.get(key)
    raise StorageError(f"{_RACES} other writers were faster", on=f"{store.url}/{folder}", remedy="Try again.")


def records(store: ObjectStore, folder: str, limit: int | None = None) -> Iterator[tuple[int, bytes]]:
    """Read records with their numbers, newest first."""
    keys = [(number, info.key) for info in store.list(folder) if (number := record_number(info.key)) is not None]
    chosen = keys[:limit]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        yield from zip((number for number, _ in chosen), pool.map(store.get, (key for _, key in chosen)), strict=True)
