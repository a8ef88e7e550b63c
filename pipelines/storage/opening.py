"""Which store stands behind a URL."""

from __future__ import annotations

import os

from pipelines.errors import UsageError
from pipelines.storage.local import LocalStore
from pipelines.storage.memory import MemoryStore
from pipelines.storage.protocol import ObjectStore
from pipelines.storage.remote import RemoteStore
from pipelines.storage.urls import parse_url

_TIMEOUT = "MUTIRAO_STORE_TIMEOUT_S"
_TIMEOUT_S = 20.0


def open_store(url: str, *, timeout_s: float | None = None) -> ObjectStore:
    """Open the object store at a path or URL. Nothing is written or asked yet.

    Parameters
    ----------
    url : str
        A local path, ``file://``, ``memory://name``, ``s3://bucket/folder``, ``gs://…`` or ``az://container/…``.
        S3's address and keys come from the environment (AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, …, AWS_PROFILE).
    timeout_s : float, optional
        How long one request may take on remote stores; by default MUTIRAO_STORE_TIMEOUT_S or 20 seconds. A call with
        its retries ends within three times that.

    Raises
    ------
    UsageError
        A URL of another kind, or settings that can't be right.
    """
    parts = parse_url(url)
    if parts.scheme == "file":
        return LocalStore(str(parts))
    if parts.scheme == "memory":
        return MemoryStore(str(parts))
    if parts.scheme == "hdfs":
        raise UsageError(
            "HDFS is read from, but runs and models can't be written there yet",
            on=url,
            remedy="Name a local path, s3://, gs:// or az:// for runs and models.",
        )
    return RemoteStore(str(parts), timeout(timeout_s))


def timeout(timeout_s: float | None = None) -> float:
    """Return the seconds that one request to a store may take: the argument, the environment's, or the default."""
    text = os.environ.get(_TIMEOUT, "")
    try:
        seconds = timeout_s if timeout_s is not None else float(text or _TIMEOUT_S)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 86_400:
        raise UsageError("not a number of seconds", on=_TIMEOUT, expected="more than 0", found=repr(timeout_s or text))
    return seconds
