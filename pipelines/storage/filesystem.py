"""Which pyarrow file system reads the data behind a URL."""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pyarrow.fs as pafs

from pipelines.errors import UsageError
from pipelines.storage import aws
from pipelines.storage.faults import storage_errors
from pipelines.storage.memory_files import MemoryFiles
from pipelines.storage.opening import timeout
from pipelines.storage.urls import Url, parse_url


@dataclass(frozen=True)
class Location:
    """A place to read from. Picklable.

    Attributes
    ----------
    filesystem : pyarrow.fs.FileSystem
    path : str
        The place in the file system's own words (``bucket/folder``, ``/folder``).
    url : str
        As `absolute_url` spells it.
    """

    filesystem: Any
    path: str
    url: str


def open_filesystem(url: str, *, timeout_s: float | None = None) -> Location:
    """Open a path or URL for reading with pyarrow. Nothing is asked yet.

    Parameters
    ----------
    url : str
        A local path, ``file://``, ``memory://``, ``s3://``, ``gs://``, ``az://`` or ``hdfs://``.
    timeout_s : float, optional
        See `open_store`.

    Raises
    ------
    UsageError
        An unknown kind of URL, settings that can't be right, or a missing extra.

    Notes
    -----
    What the file system raises is made readable by `pipelines.storage.faults.storage_errors`.
    """
    parts = parse_url(url)
    with storage_errors(url, "open"):
        filesystem = _filesystem(parts, timeout(timeout_s))
    path = parts.path if parts.scheme == "file" else f"{parts.authority}/{parts.path}".rstrip("/")
    if parts.scheme == "hdfs":
        path = f"/{parts.path}"
    return Location(filesystem, path, str(parts))


def _filesystem(parts: Url, timeout_s: float) -> Any:
    match parts.scheme:
        case "file":
            return pafs.LocalFileSystem()
        case "memory":
            return pafs.PyFileSystem(MemoryFiles())
        case "s3":
            return _s3(timeout_s)
        case "gs":
            return pafs.GcsFileSystem(retry_time_limit=timedelta(seconds=3 * timeout_s))
        case "az":
            return _azure(parts)
        case _:
            return _hdfs(parts)


def _s3(timeout_s: float) -> Any:
    settings = aws.s3_settings()
    options: dict[str, Any] = {"region": settings.region}
    if settings.endpoint is not None:
        options["scheme"], _, options["endpoint_override"] = settings.endpoint.partition("://")
    if settings.access_key_id is not None:
        options |= {"access_key": settings.access_key_id, "secret_key": settings.secret_access_key}
        options["session_token"] = settings.session_token
    if settings.ca_bundle is not None:
        options["tls_ca_file_path"] = settings.ca_bundle
    return pafs.S3FileSystem(
        connect_timeout=min(5.0, timeout_s),
        request_timeout=timeout_s,
        retry_strategy=pafs.AwsStandardS3RetryStrategy(max_attempts=3),
        **options,
    )


def _azure(parts: Url) -> Any:
    account = os.environ.get("AZURE_STORAGE_ACCOUNT_NAME")
    if not account:
        raise UsageError("the storage account is not named", on=str(parts), remedy="Set AZURE_STORAGE_ACCOUNT_NAME.")
    return pafs.AzureFileSystem(account, account_key=os.environ.get("AZURE_STORAGE_ACCOUNT_KEY"))


def _hdfs(parts: Url) -> Any:
    try:
        hdfs = importlib.import_module("hdfs_native.fsspec")
    except ImportError:
        raise UsageError(
            "reading from HDFS needs an extra", on=str(parts), remedy="pip install 'mutirao[hdfs]'"
        ) from None
    host, _, port = parts.authority.partition(":")
    return pafs.PyFileSystem(pafs.FSSpecHandler(hdfs.HdfsFileSystem(host=host, port=int(port) if port else None)))
