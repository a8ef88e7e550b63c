"""How do frames travel? Over sockets that never block, watched by one thread, after a proof of the token.

The proof is the gang's (`wire`): the side that was called sends random bytes, the caller answers with their HMAC, and
until it has nothing that it says is read. A `Hub` holds one process's ends: those it let in and those it dialled.
"""

from __future__ import annotations

import errno
import logging
import selectors
import socket
import time
from collections import deque
from types import TracebackType

from pipelines.training.gang import wire
from pipelines.training.strategies.parameter_server.frames import HEADER, Frame, Kind, Part, decode, encode
from pipelines.training.strategies.parameter_server.views import Address

logger = logging.getLogger(__name__)

_TURN_BYTES = 8 << 20
"""What is read from one stream before the others have their turn."""


class Stream:
    """One end of a connection. `role`, `name` and `server` are what its owner has written there."""

    def __init__(self, sock: socket.socket, *, dialled: bool) -> None:
        self.sock, self.dialled = sock, dialled
        self.role, self.name, self.server = "", 0, -1
        self.proven, self.closed = False, False
        self.nonce = wire.new_nonce()
        self.raw = bytearray()
        self.header, self.got = bytearray(HEADER.size), 0
        self.frame: Frame | None = None
        self.unsent: deque[memoryview] = deque()
        self.unsent_bytes = 0


class Hub:
    """One thread's streams; close it with ``with``.

    Parameters
    ----------
    token : bytes
    listener : socket or None
        Where strangers may knock; closed with the hub.
    """

    def __init__(self, token: bytes, listener: socket.socket | None = None) -> None:
        self._token, self._listener = token, listener
        self._selector = selectors.DefaultSelector()
        self.streams: set[Stream] = set()
        self._broken: list[Stream] = []
        self.received_bytes, self.sent_bytes = 0, 0
        if listener is not None:
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ)

    def __enter__(self) -> Hub:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for stream in list(self.streams):
            self.close(stream)
        if self._listener is not None:
            self._listener.close()
        self._selector.close()

    def dial(self, address: Address, hello: bytes) -> Stream:
        """Begin to connect and say `hello`; returns at once. What can't be reached ends like a stream that breaks."""
        sock = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET, socket.SOCK_STREAM)
        sock.setblocking(False)
        stream = Stream(sock, dialled=True)
        code = sock.connect_ex(address)
        wire.tune(sock)
        self.streams.add(stream)
        self._selector.register(sock, selectors.EVENT_READ, stream)
        if code not in (0, errno.EINPROGRESS):
            self._broken.append(stream)
        self.send(stream, Kind.HELLO, 0, 0, 0, hello)
        return stream

    def send(self, stream: Stream, kind: Kind, shard: int, term: int, number: int, *parts: Part) -> None:
        """Send a frame, or as much as the socket takes now and the rest while polling. A broken stream takes all."""
        if stream.closed:
            return
        pieces = [encode(kind, shard, term, number, parts), *(part for part in parts if len(part))]
        total = sum(len(piece) for piece in pieces)
        self.sent_bytes += total
        sent = 0
        if stream.proven and not stream.unsent:
            try:
                sent = stream.sock.sendmsg(pieces)
            except BlockingIOError:
                pass
            except OSError:
                self._broken.append(stream)
                return
        if sent < total:
            self._queue(stream, pieces, sent)

    def poll(self, timeout_s: float) -> list[tuple[Stream, Frame | None]]:
        """Wait for frames, at most `timeout_s`, and return them with their streams; None: the stream has ended."""
        found: list[tuple[Stream, Frame | None]] = []
        for key, mask in self._selector.select(0 if self._broken else timeout_s):
            if key.data is None:
                self._accept()
                continue
            stream: Stream = key.data
            if mask & selectors.EVENT_WRITE and stream.proven:
                self._flush(stream)
            if mask & selectors.EVENT_READ and not stream.closed:
                self._read(stream, found)
        broken, self._broken = self._broken, []
        for stream in broken:
            if not stream.closed:
                self.close(stream)
                found.append((stream, None))
        return found

    def drain(self, limit_s: float) -> None:
        """Send what is queued, for at most `limit_s`; whatever comes meanwhile is dropped."""
        end = time.monotonic() + limit_s
        while any(stream.unsent for stream in self.streams) and time.monotonic() < end:
            self.poll(max(end - time.monotonic(), 0))

    def close(self, stream: Stream) -> None:
        """End a stream; nothing more comes from it."""
        if not stream.closed:
            stream.closed = True
            self.streams.discard(stream)
            self._selector.unregister(stream.sock)
            wire.close(stream.sock)
            stream.unsent.clear()

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return
        sock.setblocking(False)
        wire.tune(sock)
        stream = Stream(sock, dialled=False)
        self.streams.add(stream)
        self._selector.register(sock, selectors.EVENT_READ, stream)
        try:
            sock.send(stream.nonce)  # a new socket's buffer takes 16 bytes
        except OSError:
            self._broken.append(stream)

    def _queue(self, stream: Stream, pieces: list[bytes | memoryview], sent: int) -> None:
        for piece in pieces:
            if sent < len(piece):
                rest = memoryview(piece)[sent:]
                stream.unsent.append(rest)
                stream.unsent_bytes += len(rest)
            sent = max(sent - len(piece), 0)
        if stream.proven:
            self._selector.modify(stream.sock, selectors.EVENT_READ | selectors.EVENT_WRITE, stream)

    def _flush(self, stream: Stream) -> None:
        try:
            while stream.unsent:
                count = stream.sock.send(stream.unsent[0])
                stream.unsent_bytes -= count
                if count == len(stream.unsent[0]):
                    stream.unsent.popleft()
                else:
                    stream.unsent[0] = stream.unsent[0][count:]
        except BlockingIOError:
            return
        except OSError:
            self._broken.append(stream)
            return
        self._selector.modify(stream.sock, selectors.EVENT_READ, stream)

    def _read(self, stream: Stream, found: list[tuple[Stream, Frame | None]]) -> None:
        try:
            if not stream.proven:
                self._prove(stream)
            before = self.received_bytes
            while stream.proven and self.received_bytes - before < _TURN_BYTES:
                frame = self._receive(stream)
                if frame is not None:
                    found.append((stream, frame))
        except BlockingIOError:
            pass
        except (OSError, wire.Malformed) as error:
            if isinstance(error, wire.Malformed):
                logger.warning("a connection was closed that does not speak as it should: %s", error)
            self._broken.append(stream)

    def _prove(self, stream: Stream) -> None:
        """Take the next bytes of a handshake."""
        wanted = wire.NONCE_BYTES if stream.dialled else wire.PROOF_BYTES
        data = stream.sock.recv(wanted - len(stream.raw))
        if not data:
            raise ConnectionError("closed")
        stream.raw += data
        if len(stream.raw) < wanted:
            return
        if stream.dialled:
            stream.unsent.appendleft(memoryview(wire.proof(self._token, bytes(stream.raw))))
            stream.unsent_bytes += wire.PROOF_BYTES
        elif not wire.proven(self._token, stream.nonce, bytes(stream.raw)):
            raise wire.Malformed("a wrong token")
        stream.proven = True
        if stream.unsent:
            self._selector.modify(stream.sock, selectors.EVENT_READ | selectors.EVENT_WRITE, stream)
            self._flush(stream)

    def _receive(self, stream: Stream) -> Frame | None:
        """Read once: a part of a header, or a part of a body; returns a frame when it is whole."""
        frame = stream.frame
        target = stream.header if frame is None else frame.body
        if stream.got < len(target):
            count = stream.sock.recv_into(memoryview(target)[stream.got :])
            if not count:
                raise ConnectionError("closed")
            stream.got += count
            self.received_bytes += count
            if stream.got < len(target):
                return None
        stream.got = 0
        if frame is None:
            stream.frame, size = decode(stream.header)
            stream.frame.body = bytearray(size)
            if size:
                return None
            frame = stream.frame
        stream.frame = None
        return frame
