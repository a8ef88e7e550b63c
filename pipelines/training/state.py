"""An optimiser's state as bytes and back: arrays and JSON values, no pickle."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np

_JSON = "json"


def encode_state(state: dict[str, Any]) -> bytes:
    """Turn a dict of arrays and JSON values into bytes; the same state gives the same bytes."""
    arrays = {f"array_{name}": value for name, value in state.items() if isinstance(value, np.ndarray)}
    plain = {name: _plain(value) for name, value in state.items() if not isinstance(value, np.ndarray)}
    text = json.dumps(plain, sort_keys=True).encode()
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **{_JSON: np.frombuffer(text, np.uint8), **arrays})
    return buffer.getvalue()


def decode_state(data: bytes) -> dict[str, Any]:
    """Rebuild a state from `encode_state`'s result."""
    with np.load(io.BytesIO(data), allow_pickle=False) as held:
        state: dict[str, Any] = json.loads(held[_JSON].tobytes())
        for name in held.files:
            if name != _JSON:
                state[name.removeprefix("array_")] = held[name]
    return state


def array_bytes(array: np.ndarray) -> bytes:
    """Write an array in the .npy format."""
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, tuple):
        return list(value)
    return value
