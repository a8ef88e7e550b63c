"""How do bytes go between ranks? In order, with a limit on every wait, and with an end that wakes whoever waits."""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

import numpy as np

from pipelines.training.gang import wire
from pipelines.training.gang.context import Array
from pipelines.training.gang.mesh import PeerError

_HEADER = struct.Struct(">BBxxIQ")  # operation, dtype, sequence number, bytes
OPERATIONS = {"sum": 1, "max": 2, "min": 3, "allgather": 4, "broadcast": 5, "barrier": 6, "gather": 7, "alltoall": 8}
_NAMES = {code: name for name, code in OPERATIONS.items()}


class Links:
    """One rank's sockets to the others. Every message starts with a header that says which operation it belongs to.

    Parameters
    ----------
    peers : mapping of int to socket
        Blocking sockets by rank (`mesh.meet`); closed with `close`.
    step_s : float
        Limit of one operation.
    """

    def __init__(self, peers: Mapping[int, socket.socket], step_s: float) -> None:
        self.peers, self._step_s = dict(peers), step_s
        self._limits = dict.fromkeys(self.peers, float("inf"))
        self._sequence = 0
        self._aborted = ""
        self._began = time.monotonic()

    def close(self) -> None:
        """Close all sockets."""
        for peer in self.peers.values():
            wire.close(peer)

    def abort(self, reason: str) -> None:
        """Make the running operation and all later ones raise; callable from any thread."""
        self._aborted = reason or "the gang is leaving"
        for peer in self.peers.values():
            with suppress(OSError):  # closed already
                peer.shutdown(socket.SHUT_RDWR)

    def start(self) -> None:
        """Begin the next operation, and its time."""
        self._began = time.monotonic()
        self._sequence += 1
        if self._aborted:
            raise self._failure(-1, "")

    def header(self, operation: str, count: int, kind: int = 0) -> bytes:
        """Build the header of a message of `count` bytes; `kind` is the number of a dtype."""
        return _HEADER.pack(OPERATIONS[operation], kind, self._sequence, count)

    def send(self, peer: int, parts: Sequence[bytes | memoryview]) -> None:
        """Send all of `parts`, one behind the other; blocks while the peer does not read and the buffers are full."""
        sock = self._armed(peer)
        try:
            total = sum(len(part) for part in parts)
            sent = sock.sendmsg(parts)
            if sent < total:
                sock.sendall(memoryview(b"".join(parts))[sent:])
        except OSError as error:
            raise self._failure(peer, "take", error) from error

    def send_some(self, peer: int, header: bytes, view: memoryview) -> memoryview:
        """Send the header and as much of `view` as fits into the socket's buffer; returns the rest."""
        self.send(peer, [header])
        try:
            return view[self.peers[peer].send(view, socket.MSG_DONTWAIT) :]
        except BlockingIOError:
            return view
        except OSError as error:
            raise self._failure(peer, "take", error) from error

    def receive(self, peer: int, view: memoryview) -> None:
        """Fill `view` with what `peer` sends."""
        sock = self._armed(peer)
        try:
            while len(view):
                count = sock.recv_into(view)
                if not count:
                    raise ConnectionError("closed")
                view = view[count:]
        except OSError as error:
            raise self._failure(peer, "send", error) from error

    def receive_like(self, peer: int, operation: str, own: Array) -> Array:
        """Receive an array like `own` behind its header, in one call where they come together."""
        buffer = bytearray(_HEADER.size + own.nbytes)
        sock, view, got, checked = self._armed(peer), memoryview(buffer), 0, False
        try:
            while got < len(buffer):
                count = sock.recv_into(view[got:] if got else view)
                if not count:
                    raise ConnectionError("closed")
                got += count
                if not checked and got >= _HEADER.size:
                    self._check_header(peer, buffer, operation, own.nbytes, own.dtype.num)
                    checked = True
        except OSError as error:
            raise self._failure(peer, "send", error) from error
        return np.frombuffer(buffer, own.dtype, offset=_HEADER.size).reshape(own.shape)

    def receive_header(self, peer: int, operation: str, count: int | None, kind: int = 0) -> int:
        """Receive a header, check that it is this operation's, and return how many bytes follow."""
        buffer = bytearray(_HEADER.size)
        self.receive(peer, memoryview(buffer))
        return self._check_header(peer, buffer, operation, count, kind)

    def _check_header(self, peer: int, buffer: bytearray, operation: str, count: int | None, kind: int) -> int:
        code, found_kind, sequence, found = _HEADER.unpack_from(buffer)
        same = (code, found_kind, sequence) == (OPERATIONS[operation], kind, self._sequence)
        if not same or (count is not None and found != count):
            ours = f"{operation} number {self._sequence}" + (f" of {count} bytes" if count is not None else "")
            theirs = f"{_NAMES.get(code, code)} number {sequence} of {found} bytes"
            raise PeerError("is at another operation", on=f"rank {peer}", expected=ours, found=theirs)
        return int(found)

    def _armed(self, peer: int) -> socket.socket:
        """Return a peer's socket, on which no call lasts longer than what is left of the operation's time.

        The limit is the kernel's own (SO_RCVTIMEO), so that a call is one system call; it is set anew only when a
        good part of the operation's time is gone.
        """
        sock = self.peers[peer]
        left = self._left_s()
        if left < 0.95 * self._limits[peer] or left > 1.05 * self._limits[peer]:
            self._limits[peer] = left
            limit = struct.pack("@ll", int(left), int(left % 1 * 1e6))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        return sock

    def exchange(self, outgoing: dict[int, memoryview], incoming: dict[int, memoryview]) -> None:
        """Send and receive at the same time, whatever the sizes."""
        outgoing = {peer: view for peer, view in outgoing.items() if len(view)}
        incoming = {peer: view for peer, view in incoming.items() if len(view)}
        numbers = {self.peers[peer].fileno(): peer for peer in {*outgoing, *incoming}}
        poll = select.poll()
        for number, peer in numbers.items():
            poll.register(number, _interest(peer, outgoing, incoming))
        while outgoing or incoming:
            ready = poll.poll(self._left_s() * 1000)
            if not ready and self._left_s() <= 1e-3:
                waiting = min({*incoming} or {*outgoing})
                raise self._failure(waiting, "send" if incoming else "take", TimeoutError())
            for number, _ in ready:
                peer = numbers[number]
                self._move(peer, outgoing, incoming)
                interest = _interest(peer, outgoing, incoming)
                if interest:
                    poll.modify(number, interest)
                else:
                    poll.unregister(number)

    def _move(self, peer: int, outgoing: dict[int, memoryview], incoming: dict[int, memoryview]) -> None:
        sock = self.peers[peer]
        try:
            if peer in incoming:
                _advance(incoming, peer, sock.recv_into(incoming[peer], 0, socket.MSG_DONTWAIT), closed=True)
        except BlockingIOError:
            pass  # it was ready to be written only
        except OSError as error:
            raise self._failure(peer, "send", error) from error
        try:
            if peer in outgoing:
                _advance(outgoing, peer, sock.send(outgoing[peer], socket.MSG_DONTWAIT))
        except BlockingIOError:
            pass  # it was ready to be read only
        except OSError as error:
            raise self._failure(peer, "take", error) from error

    def _failure(self, peer: int, verb: str, error: OSError | None = None) -> PeerError:
        if self._aborted:
            return PeerError(f"left the collective: {self._aborted}", on="the gang")
        operation = f"operation {self._sequence}"
        if isinstance(error, TimeoutError | BlockingIOError):  # the kernel's word for a limit that has passed
            return PeerError(f"did not {verb} its part of {operation} within {self._step_s:g} s", on=f"rank {peer}")
        return PeerError(f"has left the collective at {operation} ({error})", on=f"rank {peer}")

    def _left_s(self) -> float:
        return max(self._began + self._step_s - time.monotonic(), 1e-3)


def as_bytes(array: Array) -> memoryview:
    """View an array's bytes."""
    return array.reshape(-1).view(np.uint8).data


def _interest(peer: int, outgoing: dict[int, memoryview], incoming: dict[int, memoryview]) -> int:
    return (select.POLLIN if peer in incoming else 0) | (select.POLLOUT if peer in outgoing else 0)


def _advance(views: dict[int, memoryview], peer: int, count: int, *, closed: bool = False) -> None:
    if not count and closed:
        raise ConnectionError("closed")
    views[peer] = views[peer][count:]
    if not len(views[peer]):
        del views[peer]
