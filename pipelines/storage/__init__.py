"""URL → a file system for reading, an object store for atomic writes."""

from pipelines.storage.filesystem import Location, open_filesystem
from pipelines.storage.once import create_once
from pipelines.storage.opening import open_store
from pipelines.storage.probe import require_create_only
from pipelines.storage.protocol import ObjectInfo, ObjectStore
from pipelines.storage.urls import absolute_url, join_url

__all__ = [
    "Location",
    "ObjectInfo",
    "ObjectStore",
    "absolute_url",
    "create_once",
    "join_url",
    "open_filesystem",
    "open_store",
    "require_create_only",
]
