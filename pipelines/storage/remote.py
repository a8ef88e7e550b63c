"""Objects on S3, Google Cloud Storage and Azure, through obstore: conditional puts, deadlines, few retries.

A request waits at most `timeout_s` (longer only for what a large body takes at 1 MiB/s), and no retry starts after
twice that. Writes whose reply was lost are not repeated here: see `create_once`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import AzureStore, GCSStore, S3Store

from pipelines.errors import ObjectChangedError, ObjectExistsError, ObjectNotFoundError, StorageError
from pipelines.storage import aws
from pipelines.storage.faults import as_storage_error, storage_errors
from pipelines.storage.local import written_beside
from pipelines.storage.protocol import ObjectInfo
from pipelines.storage.urls import Url, check_key, check_prefix, parse_url

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ClientConfig, RetryConfig


_CHUNK = 8 * 1024**2
_SLOWEST_BYTES_PER_S = 1024**2
_LARGEST_PUT = 5 * 1024**3  # one request; S3's own limit


@dataclass(frozen=True)
class RemoteStore:
    """An object store behind HTTP. `url` names scheme, bucket and folder; the rest comes from the environment."""

    url: str
    timeout_s: float = 20.0
    _client: Any = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_client", _connect(self.url, self.timeout_s))

    def __reduce__(self) -> tuple[object, ...]:
        return RemoteStore, (self.url, self.timeout_s)

    def get(self, key: str) -> bytes:
        check_key(key)
        with self._errors("read", key):
            first = obstore.get(self._client, key)
            meta = first.meta
            if meta["size"] <= _CHUNK:
                return bytes(first.bytes())
        return b"".join(self._chunks(key, meta))

    def get_range(self, key: str, start: int, stop: int, *, etag: str = "") -> bytes:
        if stop <= start:
            return b""
        options: Any = {"range": (start, stop)} | ({"if_match": etag} if etag else {})
        with self._errors("read", check_key(key)):
            return bytes(obstore.get(self._client, key, options=options).bytes())

    def get_to_file(self, key: str, path: str | Path) -> None:
        with self._errors("read", check_key(key)):
            meta = obstore.head(self._client, key)
        with written_beside(Path(path)) as temporary, temporary.open("wb") as file:
            for chunk in self._chunks(key, meta):
                file.write(chunk)

    def create(self, key: str, data: bytes | Path) -> ObjectInfo:
        size = _size(check_key(key), data)
        if size > _LARGEST_PUT:
            raise StorageError(
                "larger than one conditional put can carry", on=self._on(key), expected="≤ 5 GiB", found=f"{size} bytes"
            )
        with self._errors("write", key):
            try:
                result = obstore.put(self._client_for(size), key, data, mode="create", use_multipart=False)
            except AlreadyExistsError:
                raise ObjectExistsError("there is already an object of this name", on=self._on(key)) from None
        return ObjectInfo(key, size, result["e_tag"] or "", datetime.now(UTC))

    def replace(self, key: str, data: bytes | Path) -> ObjectInfo:
        size = _size(check_key(key), data)
        with self._errors("write", key):
            result = obstore.put(
                self._client_for(size), key, data, mode="overwrite", chunk_size=_CHUNK, max_concurrency=4
            )
        return ObjectInfo(key, size, result["e_tag"] or "", datetime.now(UTC))

    def list(self, prefix: str = "", *, after: str | None = None, limit: int | None = None) -> Iterator[ObjectInfo]:
        """List a folder: a flat one lazily, a nested one whole, since servers order ``a/b`` and ``a-b`` differently."""
        folder = check_prefix(prefix)
        if limit is not None or after is not None:
            start = len(folder) + 1 if folder else 0
            found = [*islice(self._stream(folder, after), limit)]
            if not any("/" in info.key[start:] for info in found):
                yield from found
                return
        everything = sorted(self._stream(folder, None), key=lambda info: info.key)
        yield from islice((info for info in everything if after is None or info.key > after), limit)

    def folders(self, prefix: str = "") -> tuple[str, ...]:
        folder = check_prefix(prefix)
        with self._errors("list", folder):
            found = obstore.list_with_delimiter(self._client, folder or None)["common_prefixes"]
        return tuple(sorted(path.rstrip("/").rpartition("/")[2] for path in found))

    def head(self, key: str) -> ObjectInfo | None:
        try:
            with self._errors("read", check_key(key)):
                return _info(obstore.head(self._client, key))
        except ObjectNotFoundError:
            return None

    def delete(self, key: str) -> None:
        try:
            with self._errors("delete", check_key(key)):
                obstore.delete(self._client, key)
        except ObjectNotFoundError:
            return

    def _stream(self, folder: str, after: str | None) -> Iterator[ObjectInfo]:
        with self._errors("list", folder):
            for chunk in obstore.list(self._client, folder or None, offset=after, chunk_size=1000):
                yield from map(_info, chunk)

    def _chunks(self, key: str, meta: ObjectMeta) -> Iterator[bytes]:
        """Read by ranges, each within the deadline, all of the same object."""
        for start in range(0, meta["size"], _CHUNK):
            yield self.get_range(key, start, min(start + _CHUNK, meta["size"]), etag=meta["e_tag"] or "")

    def _client_for(self, size: int) -> Any:
        """Return the client, or for a large body one that waits as long as the body may take."""
        timeout_s = self.timeout_s
        while size > _CHUNK and timeout_s < self.timeout_s + size / _SLOWEST_BYTES_PER_S:
            timeout_s *= 2
        return self._client if timeout_s == self.timeout_s else _connect(self.url, timeout_s)

    def _on(self, key: str) -> str:
        return f"{self.url}/{key}" if key else self.url

    def _errors(self, doing: str, key: str) -> _Errors:
        return _Errors(self._on(key), doing)


@dataclass(frozen=True)
class _Errors:
    """Turns obstore's errors into ours; an absent key is told from an absent bucket where the server says so."""

    on: str
    doing: str

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if (
            isinstance(error, FileNotFoundError)
            and "NoSuchBucket" not in str(error)
            and "ContainerNotFound" not in str(error)
        ):
            raise ObjectNotFoundError("there is no such object", on=self.on) from None
        if isinstance(error, PreconditionError):
            raise ObjectChangedError("the object was written again", on=self.on) from None
        if isinstance(error, (BaseError, OSError, ValueError)):
            raise as_storage_error(error, self.on, self.doing) from error


def _connect(url: str, timeout_s: float) -> Any:
    parts = parse_url(url)
    with storage_errors(url, "open"):
        return _client(parts, aws.s3_settings() if parts.scheme == "s3" else None, timeout_s, os.getpid())


@lru_cache(maxsize=64)
def _client(parts: Url, s3: aws.S3Settings | None, timeout_s: float, process: int) -> Any:
    """Make a client, which costs 14 ms, once for each process: its threads would not survive a fork."""
    client: ClientConfig = {
        "connect_timeout": timedelta(seconds=min(5.0, timeout_s)),
        "timeout": timedelta(seconds=timeout_s),
    }
    retry: RetryConfig = {
        "max_retries": 3,
        "retry_timeout": timedelta(seconds=2 * timeout_s),
        "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=2), "base": 2},
    }
    bucket, prefix = parts.authority, parts.path or None
    if s3 is not None:
        return _s3_client(bucket, prefix, s3, client, retry)
    kind: type[GCSStore] | type[AzureStore] = GCSStore if parts.scheme == "gs" else AzureStore
    return kind(bucket, prefix=prefix, client_options=client, retry_config=retry)


def _s3_client(
    bucket: str, prefix: str | None, settings: aws.S3Settings, client: ClientConfig, retry: RetryConfig
) -> S3Store:
    given = {
        "endpoint": settings.endpoint,
        "access_key_id": settings.access_key_id,
        "secret_access_key": settings.secret_access_key,
        "session_token": settings.session_token,
    }
    client["allow_http"] = settings.endpoint is not None and settings.endpoint.startswith("http://")
    if settings.ca_bundle:
        client["root_certificate"] = Path(settings.ca_bundle).read_bytes()
    config: Any = {name: value for name, value in given.items() if value is not None}
    return S3Store(bucket, prefix=prefix, region=settings.region, client_options=client, retry_config=retry, **config)


def _size(key: str, data: bytes | Path) -> int:
    if not isinstance(data, Path):
        return len(data)
    with storage_errors(str(data), "read"):
        return os.stat(data).st_size


def _info(meta: ObjectMeta) -> ObjectInfo:
    return ObjectInfo(meta["path"], meta["size"], meta["e_tag"] or "", meta["last_modified"].astimezone(UTC))
