"""What a failing store means: operating-system, pyarrow and obstore errors turned into causes and remedies."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from obstore.exceptions import BaseError

from pipelines.errors import StorageError, UnreachableStoreError
from pipelines.storage import aws

_FULL = "Free some space, or choose another place."
_DENIED = "Check the permissions of this place for the user that runs this."
_ERRNO = {
    errno.ENOSPC: ("there is no space left", _FULL),
    errno.EDQUOT: ("the quota is used up", _FULL),
    errno.EFBIG: (
        "the file is larger than this place allows",
        "Raise the file size limit (ulimit -f), or choose another place.",
    ),
    errno.EACCES: ("permission denied", _DENIED),
    errno.EPERM: ("the operation is not permitted here", _DENIED),
    errno.EROFS: ("the file system is read-only", "Choose another place, or mount it writable."),
    errno.ENOENT: ("there is no such file or folder", "Check the path."),
    errno.ENOTDIR: ("a part of the path is a file, not a folder", "Choose another place."),
    errno.EISDIR: ("this is a folder, not a file", "Choose another place."),
    errno.EMFILE: ("this process has too many open files", "Raise the limit (ulimit -n)."),
    errno.EIO: ("the device reports an input/output error", "Check the disk or the mount."),
    errno.ESTALE: ("the network file system lost its handle", "Mount it again."),
}
_CREDENTIALS = (
    "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE and ~/.aws/credentials; on AWS attach a role."
)


@dataclass(frozen=True)
class _Cause:
    """What an error's text tells, where its number doesn't."""

    pattern: str
    cause: str
    remedy: str
    kind: type[StorageError] = StorageError


# First match wins. Texts of obstore (Rust's reqwest, the servers' XML codes) and of pyarrow (AWS SDK, curl codes).
_CAUSES = (
    _Cause(
        r"NoSuchBucket|NO_SUCH_BUCKET|ContainerNotFound|bucket does not exist",
        "the bucket does not exist",
        "Create it, or correct the URL.",
    ),
    _Cause(
        r"latest/api/token|169\.254\.169\.254|metadata\.google|Missing(AccessKey|SecretAccess)|no credentials",
        "no credentials were found",
        _CREDENTIALS,
    ),
    _Cause(
        r"InvalidAccessKeyId|SignatureDoesNotMatch|INVALID_ACCESS_KEY|SIGNATURE|InvalidToken|ExpiredToken"
        r"|Unauthenticated|AuthenticationFailed|lacked valid authentication",
        "the credentials are not accepted",
        "Check the key, its secret and (for S3) the region; session tokens expire.",
    ),
    _Cause(
        r"AccessDenied|ACCESS_DENIED|PermissionDenied|403 Forbidden|AuthorizationPermission",
        "permission denied, or credentials that the server does not accept",
        "Check what the credentials may do here (read, write, list).",
    ),
    _Cause(
        r"dns error|curlCode: 6\b|resolve host",
        "the host name of its endpoint can't be resolved",
        "Check the endpoint's address and the network.",
        UnreachableStoreError,
    ),
    _Cause(
        r"[Cc]onnection refused|curlCode: 7\b|kind: Connect\b|unreachable",
        "its endpoint can't be reached (no connection)",
        "Check that the server runs, its address (for S3 AWS_ENDPOINT_URL) and the network.",
        UnreachableStoreError,
    ),
    _Cause(
        r"certificate|SSL|TLS",
        "the server's certificate is not trusted",
        "Name its authority in AWS_CA_BUNDLE, or use the right address.",
    ),
    _Cause(
        r"TimedOut|kind: Timeout|[Tt]imed out|[Tt]imeout was|curlCode: 28\b|REQUEST_TIMEOUT",
        "its endpoint does not answer in time",
        "Check the server and the network; MUTIRAO_STORE_TIMEOUT_S sets the wait.",
        UnreachableStoreError,
    ),
    _Cause(
        r"507 |StorageFull|No space left|INSUFFICIENT_STORAGE|no (free|writable) volumes",
        "the server has no space left",
        _FULL,
    ),
    _Cause(
        r"501 Not Impl|NotImplemented", "the server does not know this operation", "Use a store with conditional puts."
    ),
    _Cause(
        r"SlowDown|SLOW_DOWN|50[0234] [A-Z]|429 Too|INTERNAL_FAILURE|SERVICE_UNAVAILABLE|ConditionalRequestConflict",
        "the server is overloaded or failing",
        "Try again later, and look at the server's log.",
        UnreachableStoreError,
    ),
    _Cause(
        r"error sending request|NETWORK_CONNECTION|[Cc]onnection reset|kind: (Body|Decode)",
        "the connection broke",
        "Try again.",
        UnreachableStoreError,
    ),
)


def as_storage_error(error: Exception, url: str, doing: str = "use") -> StorageError:
    """Describe `error`, met while doing something (an infinitive) at `url`, with its cause and remedy."""
    kind, cause, remedy = _explain(error)
    endpoint = aws.endpoint() if url.startswith("s3") else None
    where = f" (endpoint {endpoint})" if endpoint else ""
    return kind(f"can't {doing}: {cause}{where}", on=url, remedy=remedy)


@contextmanager
def storage_errors(url: str, doing: str = "use") -> Iterator[None]:
    """Turn errors of the operating system, pyarrow and obstore inside the block into `StorageError`."""
    try:
        yield
    except (OSError, BaseError) as error:
        raise as_storage_error(error, url, doing) from error


def _explain(error: Exception) -> tuple[type[StorageError], str, str]:
    number = error.errno if isinstance(error, OSError) else None
    if number is not None and number in _ERRNO:
        return StorageError, *_ERRNO[number]
    text = str(error)
    for known in _CAUSES:
        if re.search(known.pattern, text):
            return known.kind, known.cause, known.remedy
    if number is not None:
        return StorageError, os.strerror(number), ""
    return StorageError, _first_sentence(text) or type(error).__name__, ""


def _first_sentence(text: str) -> str:
    """Drop what obstore appends for debugging, and the server's XML."""
    return re.split(r"\n\nDebug source|: <\?xml", text, maxsplit=1)[0].strip().rstrip(".")[:300]
