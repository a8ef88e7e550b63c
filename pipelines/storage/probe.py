"""Does a store keep the promise that everything rests on?"""

from __future__ import annotations

from functools import lru_cache

from pipelines.errors import ObjectExistsError, StorageError
from pipelines.storage.opening import open_store
from pipelines.storage.protocol import ObjectStore
from pipelines.storage.remote import RemoteStore

_KEY = "_probe/create-only"


def require_create_only(store: ObjectStore) -> None:
    """Refuse a remote store on which a second create of a key succeeds: old servers ignore the condition silently.

    One small request (the first time ever: two), once for each store and process.

    Raises
    ------
    StorageError
        The server overwrites, or can't be used at all.
    """
    if isinstance(store, RemoteStore):
        _require(store.url, store.timeout_s)


@lru_cache(maxsize=64)
def _require(url: str, timeout_s: float) -> None:
    probe_create_only(open_store(url, timeout_s=timeout_s))


def probe_create_only(store: ObjectStore) -> None:
    """Create a key until it is refused: at once where the probe lies from an earlier time, else the second time."""
    for _ in range(2):
        try:
            store.create(_KEY, b"This object can be created, but not created again.\n")
        except ObjectExistsError:
            return
    raise StorageError(
        "this server overwrites objects that should only be created",
        on=store.url,
        expected="conditional puts (If-None-Match: *)",
        remedy="Use S3, Google Cloud Storage, Azure, a newer release of the server, or a local folder.",
    )
