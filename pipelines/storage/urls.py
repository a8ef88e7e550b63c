"""How a place is named: the parts of a URL, and which keys a store takes."""

from __future__ import annotations

import os
from dataclasses import dataclass

from pipelines.errors import UsageError

SCHEMES = ("file", "memory", "s3", "gs", "az", "hdfs")
_ALIASES = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfs": "az"}
TEMPORARY = ".tmp-"
_MAX_KEY_BYTES, _MAX_NAME_BYTES = 1024, 255


@dataclass(frozen=True)
class Url:
    """The parts of a store's URL.

    Attributes
    ----------
    scheme : str
        One of ``file``, ``memory``, ``s3``, ``gs``, ``az``, ``hdfs``.
    authority : str
        The bucket, container or host; empty for files.
    path : str
        Without a last ``/``: absolute for files, relative to the bucket for others.
    """

    scheme: str
    authority: str
    path: str

    def __str__(self) -> str:
        if self.scheme == "file":
            return self.path
        return f"{self.scheme}://{self.authority}" + (f"/{self.path}" if self.path else "")


def parse_url(url: str) -> Url:
    """Split a path or URL. Nothing is percent-decoded: what stands in the URL is the key.

    Raises
    ------
    UsageError
        An unknown scheme, no bucket, or credentials inside the URL.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        return _local(url)
    scheme = _ALIASES.get(scheme.lower(), scheme.lower())
    if scheme not in SCHEMES:
        known = ", ".join(f"{s}://" for s in SCHEMES)
        raise UsageError(f"unknown kind of URL {scheme}://", on=url, expected=f"a local path or one of {known}")
    authority, _, path = rest.partition("/")
    if scheme == "file":
        if authority not in ("", "localhost"):
            raise UsageError(
                "a file URL names no host", on=url, remedy=f"Write file:///{authority}/{path}, or a plain path."
            )
        return _local("/" + path)
    if "@" in authority:
        raise UsageError(
            "credentials don't belong in a URL",
            on=f"{scheme}://…@{authority.rpartition('@')[2]}",
            remedy="Put them into environment variables (for S3 AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY).",
        )
    if not authority:
        raise UsageError("the URL names no bucket", on=url, expected=f"{scheme}://bucket/folder")
    return Url(scheme, authority, path.strip("/"))


def _local(path: str) -> Url:
    if not path or "\0" in path:
        raise UsageError("a path may not be empty or hold a NUL character", on=repr(path))
    return Url("file", "", os.path.abspath(os.path.expanduser(path)))


def absolute_url(url: str) -> str:
    """Return the one spelling of a place: an absolute path for local ones, ``scheme://bucket/folder`` for others."""
    return str(parse_url(url))


def join_url(url: str, *names: str) -> str:
    """Append names to a path or URL; empty names are left out."""
    parts = [name.strip("/") for name in names]
    return "/".join([url.rstrip("/"), *filter(None, parts)]) or "/"


def check_key(key: str) -> str:
    """Return `key` if every kind of store can hold it.

    Raises
    ------
    UsageError
        It is empty, absolute, has an empty, ``.`` or ``..`` segment, a control character, the name of a temporary file,
        or is longer than 1024 bytes (255 a segment).
    """
    names = key.split("/")
    if any(name in ("", ".", "..") for name in names):
        raise UsageError("a key is relative and has no empty, '.' or '..' segment", on=repr(key))
    if any(name.startswith(TEMPORARY) for name in names):
        raise UsageError(f"names that start with {TEMPORARY!r} are for temporary files", on=repr(key))
    if not key.isprintable():
        raise UsageError("a key may not hold control characters", on=repr(key))
    if len(key.encode()) > _MAX_KEY_BYTES or any(len(name.encode()) > _MAX_NAME_BYTES for name in names):
        raise UsageError(f"a key has at most {_MAX_KEY_BYTES} bytes, {_MAX_NAME_BYTES} a segment", on=f"{key[:80]!r}…")
    return key


def check_prefix(prefix: str) -> str:
    """Return `prefix` without its last ``/`` if it is empty or names a folder."""
    folder = prefix.removesuffix("/")
    return check_key(folder) if folder else folder
