"""Frames between the coordinator, watchers and ranks: a JSON header and bytes, after a proof of the gang's token.

No pickle: whoever reaches the port can neither join nor make anyone run code.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import socket
import struct
import threading
from contextlib import suppress
from typing import Any, TypeAlias

Frame: TypeAlias = tuple[dict[str, Any], bytes]

_SIZES = struct.Struct(">IQ")
NONCE_BYTES = 16
PROOF_BYTES = 32
UNPROVEN_LIMIT = 4096
"""Bytes that a peer may send before it has proven the token."""


class Malformed(Exception):
    """Bytes that are no frame of ours."""


def encode(header: dict[str, Any], payload: bytes = b"") -> bytes:
    """Build one frame."""
    text = json.dumps(header, separators=(",", ":")).encode()
    return _SIZES.pack(len(text), len(payload)) + text + payload


class Decoder:
    """Frames out of a stream that arrives in pieces."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def __len__(self) -> int:
        return len(self._buffer)

    def feed(self, data: bytes) -> list[Frame]:
        """Take in `data` and return the frames that it completes."""
        self._buffer += data
        frames: list[Frame] = []
        while len(self._buffer) >= _SIZES.size:
            head, body = _SIZES.unpack_from(self._buffer)
            end = _SIZES.size + head + body
            if len(self._buffer) < end:
                break
            frames.append(_parse(bytes(self._buffer[_SIZES.size : end]), head))
            del self._buffer[:end]
        return frames


def _parse(data: bytes, head: int) -> Frame:
    try:
        header = json.loads(data[:head])
    except ValueError as error:
        raise Malformed(str(error)) from error
    if not isinstance(header, dict):
        raise Malformed("a header that is no object")
    return header, data[head:]


class Connection:
    """A client's blocking end of a proven connection; sends are safe from several threads."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._decoder = Decoder()
        self._ready: list[Frame] = []
        self._sending = threading.Lock()

    def send(self, header: dict[str, Any], payload: bytes = b"") -> None:
        """Send one frame; raises ``OSError`` when the other side is gone."""
        frame = encode(header, payload)
        with self._sending:
            self.sock.sendall(frame)

    def receive(self, timeout_s: float | None) -> Frame | None:
        """Return the next frame, None when none came in time; raises ``ConnectionError`` at the end of the stream."""
        if self._ready:
            return self._ready.pop(0)
        try:
            self.sock.settimeout(timeout_s)
            data = self.sock.recv(1 << 16)
        except TimeoutError:
            return None
        finally:
            # Sending has a bound of its own: the peer always reads, or the connection's user timeout ends it.
            self.sock.settimeout(None)
        if not data:
            raise ConnectionError("the other side has closed the connection")
        self._ready = self._decoder.feed(data)
        return self._ready.pop(0) if self._ready else None

    def close(self) -> None:
        """Close both directions."""
        close(self.sock)


def dial(address: tuple[str, int], token: bytes, hello: dict[str, Any], timeout_s: float) -> Connection:
    """Connect, prove the token, and say hello. Raises ``OSError``."""
    sock = socket.create_connection(address, timeout=timeout_s)
    try:
        tune(sock)
        nonce = read_exactly(sock, NONCE_BYTES)
        sock.sendall(proof(token, nonce))
        connection = Connection(sock)
        connection.send(hello)
        sock.settimeout(None)
    except OSError:
        sock.close()
        raise
    return connection


def new_nonce() -> bytes:
    """Random bytes for one handshake."""
    return os.urandom(NONCE_BYTES)


def proof(token: bytes, nonce: bytes) -> bytes:
    """Show knowledge of the token without sending it."""
    return hmac.digest(token, b"mutirao gang" + nonce, hashlib.sha256)


def derived(token: bytes, formation: int) -> bytes:
    """Make the secret of one formation, so that nobody joins another one by mistake."""
    return hmac.digest(token, b"mutirao formation %d" % formation, hashlib.sha256)


def proven(token: bytes, nonce: bytes, answer: bytes) -> bool:
    """Check a `proof`."""
    return hmac.compare_digest(proof(token, nonce), answer)


def read_exactly(sock: socket.socket, size: int) -> bytes:
    """Read `size` bytes or raise ``ConnectionError``."""
    data = b""
    while len(data) < size:
        piece = sock.recv(size - len(data))
        if not piece:
            raise ConnectionError("the other side has closed the connection")
        data += piece
    return data


def tune(sock: socket.socket) -> None:
    """Send small frames at once, and notice a machine that vanished without a word within half a minute."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000)


def close(sock: socket.socket) -> None:
    """Close a socket, waking whoever is blocked in it."""
    with suppress(OSError):  # never connected, or gone already
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()
