"""Where S3 is and who we are there: the settings that every reader and writer of S3 shares, from the environment."""

from __future__ import annotations

import configparser
import os
from dataclasses import dataclass, field
from pathlib import Path

from pipelines.errors import UsageError

_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")


@dataclass(frozen=True)
class S3Settings:
    """S3's address and credentials; what is None is left to the client's own search (roles of the machine)."""

    endpoint: str | None
    region: str
    access_key_id: str | None
    secret_access_key: str | None = field(repr=False)
    session_token: str | None = field(repr=False)
    ca_bundle: str | None


def endpoint() -> str | None:
    """Return the endpoint's URL where it is not AWS itself."""
    return next((os.environ[name].rstrip("/") for name in _ENDPOINTS if os.environ.get(name)), None)


def s3_settings() -> S3Settings:
    """Read the settings: AWS_* variables first, then the profile in ``~/.aws/credentials`` and ``~/.aws/config``.

    Raises
    ------
    UsageError
        An endpoint without ``http://`` or ``https://``, or half a pair of keys.
    """
    address = endpoint()
    if address is not None and not address.startswith(("http://", "https://")):
        raise UsageError("an endpoint starts with http:// or https://", on="AWS_ENDPOINT_URL", found=address)
    profile = _profile()
    get = os.environ.get
    key, secret, token = get("AWS_ACCESS_KEY_ID"), get("AWS_SECRET_ACCESS_KEY"), get("AWS_SESSION_TOKEN")
    if bool(key) != bool(secret):
        missing = "AWS_SECRET_ACCESS_KEY" if key else "AWS_ACCESS_KEY_ID"
        raise UsageError("half of the credentials is missing", on=missing, remedy="Set both keys, or none.")
    if not key:
        key, secret, token = (profile.get(f"aws_{n}") for n in ("access_key_id", "secret_access_key", "session_token"))
    return S3Settings(
        endpoint=address,
        region=get("AWS_REGION") or get("AWS_DEFAULT_REGION") or profile.get("region") or "us-east-1",
        access_key_id=key or None,
        secret_access_key=secret or None,
        session_token=token or None,
        ca_bundle=get("AWS_CA_BUNDLE"),
    )


def _profile() -> dict[str, str]:
    """Return the entries of the chosen profile, those of the credentials file over those of the config file."""
    name = os.environ.get("AWS_PROFILE") or "default"
    entries: dict[str, str] = {}
    for variable, default, section in (
        ("AWS_CONFIG_FILE", "~/.aws/config", name if name == "default" else f"profile {name}"),
        ("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials", name),
    ):
        parser = configparser.RawConfigParser()
        parser.read(Path(os.environ.get(variable) or default).expanduser())
        if parser.has_section(section):
            entries |= dict(parser.items(section))
    return entries
