"""Frozen values to canonical JSON and back, and their digests."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any, TypeVar

import pyarrow as pa
from pydantic import TypeAdapter

T = TypeVar("T")


_adapters: dict[Any, TypeAdapter[Any]] = {}


def _adapter(cls: Any) -> TypeAdapter[Any]:
    if cls not in _adapters:
        _adapters[cls] = TypeAdapter(cls)
    return _adapters[cls]


def to_plain(value: Any) -> Any:
    """Turn a frozen dataclass or pydantic model into plain JSON values."""
    return _adapter(type(value)).dump_python(value, mode="json")


def from_plain(cls: type[T], plain: Any) -> T:
    """Rebuild a value of `cls` from `to_plain`'s result."""
    result: T = _adapter(cls).validate_python(plain)
    return result


def dump(value: Any) -> bytes:
    """Canonical JSON of a value: sorted keys, no spaces, UTF-8. The same value gives the same bytes."""
    return canonical(to_plain(value))


def load(cls: type[T], data: bytes) -> T:
    """Rebuild a value of `cls` from `dump`'s result."""
    result: T = _adapter(cls).validate_json(data)
    return result


def canonical(plain: Any) -> bytes:
    """Canonical JSON of plain values. NaN and infinities are refused: JSON has none."""
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def digest(value: Any) -> str:
    """SHA-256 (hex) of a value's canonical JSON, or of bytes as they are."""
    return hashlib.sha256(value if isinstance(value, bytes) else dump(value)).hexdigest()


def schema_to_text(schema: pa.Schema) -> str:
    """Serialise an Arrow schema (IPC, base64) so that it fits into JSON."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def schema_from_text(text: str) -> pa.Schema:
    """Rebuild an Arrow schema from `schema_to_text`'s result."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
