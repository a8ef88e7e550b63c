"""What do servers, workers and the arbiter say to each other? A fixed header, then arrays as they lie in memory.

No pickle, and no JSON but in what is said a few times in a run (hello, views, statistics).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeAlias

import numpy as np

from pipelines.training.gang import wire
from pipelines.training.gang.context import Array

HEADER = struct.Struct("<BxHIQQ")  # kind, shard, term, number, bytes of the body
TURN = struct.Struct("<Q")  # an update's number in the run
UPDATE = struct.Struct("<QQ")  # the same, and its number among those of its client for the shard, from 1
FORWARD = struct.Struct("<QQI")  # client, its number for the shard, keys
KEYS = struct.Struct("<I")
RANGE = struct.Struct("<QQ")
BODY_LIMIT = 1 << 30
"""Bytes of a body; whoever announces more speaks another language."""

Part: TypeAlias = bytes | memoryview


class Kind(IntEnum):
    """What a frame says. Answers carry the number of what they answer."""

    HELLO = 1
    """First word of every connection: who is calling (JSON)."""
    VIEW = 2
    """Arbiter to all: who holds which shard (JSON)."""
    FAILED = 3
    """Why it can't go on, in words: the whole run from the arbiter, one request from a server."""
    STOP = 4
    """Arbiter to servers: the work is done. To clients: no more updates are wanted."""
    BEAT = 5
    """Server to arbiter, and back: both are alive."""
    PULL = 10
    """Client to primary: keys. Answered by WEIGHTS."""
    WEIGHTS = 11
    PUSH = 12
    """Client to primary: an update. Answered by DONE once the replica has it."""
    DONE = 13
    MOVED = 14
    """Server to client: I do not serve this shard, or lack an update that comes before this one."""
    READ = 15
    """Client to primary: a range of rows. Answered by ROWS, those that are not zero."""
    ROWS = 16
    WRITE = 17
    """Client to primary: rows to be set. Answered by DONE once the replica has them."""
    STATS = 18
    """Client to server: how are you? Answered in kind (JSON)."""
    COPY = 20
    """Primary to replica: new rows, of an update or of what the replica lacks. Answered by KEPT."""
    KEPT = 21
    WHOLE = 22
    """Primary to replica: with this you have everything (JSON: the last number of every client). Answered by KEPT."""
    SYNCED = 23
    """Primary to arbiter: the shard's replica is complete."""
    BROKEN = 24
    """Primary to arbiter: my connection to the replica has broken."""
    OPEN = 30
    """Client to arbiter: may I read? Answered in kind."""
    TURN = 31
    """Client to arbiter: may I update? Answered in kind, with the update's number in the run."""
    COMMIT = 32
    """Client to arbiter: all servers have my update."""
    PAUSE = 33
    """Client to arbiter: give no turns. Answered in kind when every update that had its turn is committed."""
    RESUME = 34
    HEARD = 35
    """Client to arbiter: have you heard all that I have said? Answered in kind."""


@dataclass(slots=True)
class Frame:
    """One message."""

    kind: int
    shard: int
    term: int
    number: int
    body: bytearray


def encode(kind: Kind, shard: int, term: int, number: int, parts: Sequence[Part]) -> bytes:
    """Build a frame's header; `parts` go behind it."""
    return HEADER.pack(kind, shard, term, number, sum(len(part) for part in parts))


def decode(header: bytes | bytearray) -> tuple[Frame, int]:
    """Read a header; returns the frame without its body, and the body's size."""
    kind, shard, term, number, size = HEADER.unpack(header)
    if size > BODY_LIMIT:
        raise wire.Malformed(f"a body of {size} bytes")
    return Frame(kind, shard, term, number, bytearray()), size


def to_json(value: Any) -> bytes:
    """Encode a rare message's body."""
    return json.dumps(value, separators=(",", ":")).encode()


def from_json(body: bytearray) -> Any:
    """Undo `to_json`."""
    try:
        return json.loads(bytes(body))
    except ValueError as error:
        raise wire.Malformed(str(error)) from error


def view(array: Array) -> memoryview:
    """View an array's bytes; it must not change until they are sent."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def keys_of(frame: Frame) -> Array:
    """Keys of a PULL."""
    return _array(frame, np.int32, 0, None)


def update_of(frame: Frame) -> tuple[int, int, Array, Array]:
    """An update's number in the run and among its client's, keys and gradient, of a PUSH."""
    clock, number = _unpack(UPDATE, frame)
    count = (len(frame.body) - UPDATE.size) // 8
    start = UPDATE.size + 4 * count
    return clock, number, _array(frame, np.int32, UPDATE.size, count), _array(frame, np.float32, start, count)


def turn_of(frame: Frame) -> int:
    """An update's number in the run, of the answer to TURN."""
    return _unpack(TURN, frame)[0]


def rows_of(frame: Frame, columns: int) -> tuple[Array, Array]:
    """Keys and rows, of ROWS and WRITE."""
    count = _unpack(KEYS, frame)[0]
    return _keys_and_rows(frame, KEYS.size, count, columns)


def any_rows_of(frame: Frame) -> tuple[Array, Array]:
    """Keys and rows, of ROWS, for whoever does not know how many numbers a row has."""
    count = _unpack(KEYS, frame)[0]
    columns = (len(frame.body) - KEYS.size - 4 * count) // (4 * count) if count else 1
    return _keys_and_rows(frame, KEYS.size, count, columns)


def copy_of(frame: Frame, columns: int) -> tuple[int, int, Array, Array]:
    """Client, number, keys and rows, of a COPY."""
    client, number, count = _unpack(FORWARD, frame)
    return client, number, *_keys_and_rows(frame, FORWARD.size, count, columns)


def range_of(frame: Frame) -> tuple[int, int]:
    """Start and stop of a READ."""
    start, stop = _unpack(RANGE, frame)
    return start, stop


def _keys_and_rows(frame: Frame, offset: int, count: int, columns: int) -> tuple[Array, Array]:
    keys = _array(frame, np.int32, offset, count)
    rows = _array(frame, np.float32, offset + 4 * count, count * columns)
    return keys, rows.reshape(count, columns)


def _unpack(fields: struct.Struct, frame: Frame) -> tuple[int, ...]:
    if len(frame.body) < fields.size:
        raise wire.Malformed(f"a body of {len(frame.body)} bytes in a frame of kind {frame.kind}")
    return fields.unpack_from(frame.body)


def _array(frame: Frame, dtype: type, offset: int, count: int | None) -> Array:
    try:
        return np.frombuffer(frame.body, dtype, -1 if count is None else count, offset)
    except ValueError as error:
        if not len(frame.body) - offset and not count:
            return np.empty(0, dtype)
        raise wire.Malformed(f"a body of {len(frame.body)} bytes in a frame of kind {frame.kind}: {error}") from error
