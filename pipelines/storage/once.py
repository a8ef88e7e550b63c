"""Did we win? Settles a create whose reply was lost, by reading back what is there."""

from __future__ import annotations

import time
from collections.abc import Callable

from pipelines.errors import ObjectExistsError, ObjectNotFoundError, StorageError, UnreachableStoreError
from pipelines.storage.protocol import ObjectStore

_ATTEMPTS = 4


def create_once(store: ObjectStore, key: str, data: bytes, *, sleep: Callable[[float], None] = time.sleep) -> bool:
    """Create an object, and know for certain whether its bytes are ours.

    A server may store an object and fail to say so (a broken connection, a gateway's time-out, a retry that meets its
    own first attempt), or report a conflict for a key that then stays absent. Both are settled by reading the key: the
    data must therefore hold something that no other writer writes, like a random write id.

    Parameters
    ----------
    store : ObjectStore
    key : str
    data : bytes
        Unique to this writer.
    sleep : callable
        Waits between attempts; an argument for tests.

    Returns
    -------
    bool
        True when the key holds `data`, False when it holds somebody else's.

    Raises
    ------
    UnreachableStoreError
        It is still unknown after bounded attempts: the key may or may not hold `data`.
    StorageError
        Nothing could be written (permission, space, …).
    """
    failure: StorageError | None = None
    for attempt in range(_ATTEMPTS):
        if attempt:
            sleep(0.1 * 2**attempt)
        try:
            store.create(key, data)
            return True
        except (ObjectExistsError, UnreachableStoreError) as error:
            failure = error
        try:
            return store.get(key) == data
        except (ObjectNotFoundError, UnreachableStoreError):
            continue
    assert failure is not None
    raise UnreachableStoreError(
        "it is not known whether this object was written", on=failure.on, found=str(failure), remedy="Try again."
    ) from failure
