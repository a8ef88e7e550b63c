"""A collective over TCP: rank-ordered sums, a deadline on every wait, and an end that wakes whoever waits.

Small arrays go from every rank to every other in one hop; large ones are cut into one piece per rank, which adds the
pieces of all in rank order and hands the sum to everyone (reduce-scatter and all-gather, 2(n-1)/n of the bytes each
way). Both add in the order of the ranks, so the size of a message does not change its result. See README.md for the
measurements behind the choice.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from types import TracebackType
from typing import Any

import numpy as np

from pipelines.errors import GangError
from pipelines.training.gang import wire
from pipelines.training.gang.context import Array, Op

DIRECT_BYTES = 32 * 1024
"""Largest payload that is sent in one piece with its header: two of them fit into the sockets' buffers as they are.

(Setting the buffers' sizes would stop the kernel from growing them, and cost half of the rate of large messages.)
"""
_HEADER = struct.Struct(">BBxxIQ")  # operation, dtype, sequence number, bytes
_OPERATIONS = {"sum": 1, "max": 2, "min": 3, "allgather": 4, "broadcast": 5, "barrier": 6, "gather": 7}
_NAMES = {code: name for name, code in _OPERATIONS.items()}
_COMBINE: dict[str, Callable[..., Any]] = {"sum": np.add, "max": np.maximum, "min": np.minimum}


class PeerError(GangError):
    """Another rank did not answer, or left; `rank` is its number (-1: the gang was told to leave)."""

    @property
    def rank(self) -> int:
        """The rank that is blamed."""
        return int(self.on.removeprefix("rank ")) if self.on.startswith("rank ") else -1


class TcpCollective:
    """One rank's end of the mesh.

    Parameters
    ----------
    rank : int
    addresses : sequence of (host, port)
        Where every rank listens, by rank.
    listener : socket
        This rank's listening socket (`listen`); closed once the mesh stands.
    token : bytes
        The gang's secret, which keeps strangers out.
    step_s, start_s : float
        Deadline of one operation, and of building the mesh.
    """

    def __init__(
        self,
        rank: int,
        addresses: Sequence[tuple[str, int]],
        listener: socket.socket,
        *,
        token: bytes,
        step_s: float,
        start_s: float,
    ) -> None:
        self._rank, self._size, self._step_s = rank, len(addresses), step_s
        self._peers: dict[int, socket.socket] = {}
        self._limits: dict[int, float] = {}
        # Two ranks are never more than one message ahead of each other, more may be two.
        self._direct_bytes = DIRECT_BYTES * (2 if self._size == 2 else 1)
        self._sequence = 0
        self._aborted = ""
        self._began = time.monotonic()
        with listener:
            self._meet(addresses, listener, token, start_s)

    @property
    def rank(self) -> int:
        """This rank's number."""
        return self._rank

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self._size

    def __enter__(self) -> TcpCollective:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        for peer in self._peers.values():
            wire.close(peer)

    def abort(self, reason: str) -> None:
        """Make the running operation and all later ones raise; callable from any thread."""
        self._aborted = reason or "the gang is leaving"
        for peer in self._peers.values():
            with suppress(OSError):  # closed already
                peer.shutdown(socket.SHUT_RDWR)

    def allreduce(self, array: Array, op: Op = "sum") -> Array:
        """See `Collective.allreduce`."""
        own = np.ascontiguousarray(array)
        self._start(op)
        if self._size == 1:
            return own.copy() if own is array else own
        if own.nbytes <= self._direct_bytes:
            return self._reduce_small(own, op)
        return self._reduce_pair(own, op) if self._size == 2 else self._reduce_pieces(own, op)

    def allgather(self, payload: bytes) -> list[bytes]:
        """See `Collective.allgather`."""
        self._start("allgather")
        inline = payload if len(payload) <= DIRECT_BYTES else b""
        for peer in self._peers:
            self._send(peer, [self._header("allgather", len(payload)), inline])
        found: dict[int, bytes | bytearray] = {self._rank: payload}
        large: dict[int, memoryview] = {}
        for peer in self._peers:
            buffer = bytearray(self._receive_header(peer, "allgather", None))
            found[peer] = buffer
            if len(buffer) <= DIRECT_BYTES:
                self._receive(peer, memoryview(buffer))
            else:
                large[peer] = memoryview(buffer)
        outgoing = dict.fromkeys(self._peers, memoryview(payload)) if len(payload) > DIRECT_BYTES else {}
        self._exchange(outgoing, large)
        return [bytes(found[rank]) for rank in range(self._size)]

    def gather(self, payload: bytes, root: int = 0) -> list[bytes] | None:
        """See `Collective.gather`."""
        self._start("gather")
        if self._rank != root:
            self._send(root, [self._header("gather", len(payload)), payload])
            return None
        found: list[bytes] = []
        for rank in range(self._size):
            if rank == root:
                found.append(payload)
                continue
            buffer = bytearray(self._receive_header(rank, "gather", None))
            self._receive(rank, memoryview(buffer))
            found.append(bytes(buffer))
        return found

    def broadcast(self, payload: bytes | None, root: int = 0) -> bytes:
        """See `Collective.broadcast`."""
        self._start("broadcast")
        if self._rank == root:
            if payload is None:
                raise ValueError("the root of a broadcast must give the payload")
            for peer in self._peers:
                self._send(peer, [self._header("broadcast", len(payload)), payload])
            return payload
        buffer = bytearray(self._receive_header(root, "broadcast", None))
        self._receive(root, memoryview(buffer))
        return bytes(buffer)

    def barrier(self) -> None:
        """See `Collective.barrier`."""
        self._start("barrier")
        for peer in self._peers:
            self._send(peer, [self._header("barrier", 0)])
        for peer in self._peers:
            self._receive_header(peer, "barrier", 0)

    # --- reductions ---------------------------------------------------------------------------------------------------

    def _reduce_small(self, own: Array, op: Op) -> Array:
        """Give everything to everyone, each message in one piece."""
        message = self._header(op, own.nbytes, own.dtype.num) + own.tobytes()
        for peer in self._peers:
            self._send(peer, [message])
        parts = {self._rank: own}
        for peer in self._peers:
            parts[peer] = self._receive_message(peer, op, own)
        return self._combined(parts, op)

    def _reduce_pair(self, own: Array, op: Op) -> Array:
        """Swap large arrays between two ranks: one hop, and no more bytes than pieces would move."""
        [peer] = self._peers
        parts = {self._rank: own, peer: np.empty_like(own)}
        self._trade(op, own, {peer: own}, {peer: parts[peer]})
        return self._combined(parts, op)

    def _reduce_pieces(self, own: Array, op: Op) -> Array:
        """Add up one piece of everyone's, and collect the sums of the other pieces: two hops."""
        flat = own.reshape(-1)
        bounds = [flat.size * rank // self._size for rank in range(self._size + 1)]
        pieces = [slice(low, high) for low, high in pairwise(bounds)]
        mine = flat[pieces[self._rank]]
        parts = {rank: mine if rank == self._rank else np.empty_like(mine) for rank in range(self._size)}
        self._trade(
            op, own, {peer: flat[pieces[peer]] for peer in self._peers}, {peer: parts[peer] for peer in self._peers}
        )
        result = np.empty_like(flat)
        result[pieces[self._rank]] = self._combined(parts, op)
        self._exchange(
            dict.fromkeys(self._peers, _bytes(result[pieces[self._rank]])),
            {peer: _bytes(result[pieces[peer]]) for peer in self._peers},
        )
        return result.reshape(own.shape)

    def _trade(self, op: Op, own: Array, outgoing: dict[int, Array], incoming: dict[int, Array]) -> None:
        """Exchange arrays behind headers, which show that all are at the same operation before any byte is taken in."""
        header = self._header(op, own.nbytes, own.dtype.num)
        unsent = {peer: self._send_some(peer, header, _bytes(array)) for peer, array in outgoing.items()}
        for peer in incoming:
            self._receive_header(peer, op, own.nbytes, own.dtype.num)
        self._exchange(unsent, {peer: _bytes(array) for peer, array in incoming.items()})

    def _combined(self, parts: dict[int, Array], op: Op) -> Array:
        """Combine in rank order, in the space of a part that was received."""
        result = parts[1 if self._rank == 0 else 0]
        _COMBINE[op](parts[0], parts[1], out=result)
        for rank in range(2, self._size):
            _COMBINE[op](result, parts[rank], out=result)
        return result

    # --- waits --------------------------------------------------------------------------------------------------------

    def _start(self, operation: str) -> None:
        self._began = time.monotonic()
        self._sequence += 1
        if self._aborted:
            raise self._failure(-1, "")

    def _left_s(self) -> float:
        return max(self._began + self._step_s - time.monotonic(), 1e-3)

    def _header(self, operation: str, count: int, kind: int = 0) -> bytes:
        return _HEADER.pack(_OPERATIONS[operation], kind, self._sequence, count)

    def _send(self, peer: int, parts: Sequence[bytes | memoryview]) -> None:
        sock = self._armed(peer)
        try:
            total = sum(len(part) for part in parts)
            sent = sock.sendmsg(parts)
            if sent < total:
                sock.sendall(memoryview(b"".join(parts))[sent:])
        except OSError as error:
            raise self._failure(peer, "take", error) from error

    def _send_some(self, peer: int, header: bytes, view: memoryview) -> memoryview:
        """Send the header and as much of `view` as fits into the socket's buffer; returns the rest."""
        self._send(peer, [header])
        try:
            return view[self._peers[peer].send(view, socket.MSG_DONTWAIT) :]
        except BlockingIOError:
            return view
        except OSError as error:
            raise self._failure(peer, "take", error) from error

    def _receive(self, peer: int, view: memoryview) -> None:
        sock = self._armed(peer)
        try:
            while len(view):
                count = sock.recv_into(view)
                if not count:
                    raise ConnectionError("closed")
                view = view[count:]
        except OSError as error:
            raise self._failure(peer, "send", error) from error

    def _receive_message(self, peer: int, op: Op, own: Array) -> Array:
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
                    self._check_header(peer, buffer, op, own.nbytes, own.dtype.num)
                    checked = True
        except OSError as error:
            raise self._failure(peer, "send", error) from error
        return np.frombuffer(buffer, own.dtype, offset=_HEADER.size).reshape(own.shape)

    def _receive_header(self, peer: int, operation: str, count: int | None, kind: int = 0) -> int:
        buffer = bytearray(_HEADER.size)
        self._receive(peer, memoryview(buffer))
        return self._check_header(peer, buffer, operation, count, kind)

    def _check_header(self, peer: int, buffer: bytearray, operation: str, count: int | None, kind: int) -> int:
        code, found_kind, sequence, found = _HEADER.unpack_from(buffer)
        same = (code, found_kind, sequence) == (_OPERATIONS[operation], kind, self._sequence)
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
        sock = self._peers[peer]
        left = self._left_s()
        if left < 0.95 * self._limits[peer] or left > 1.05 * self._limits[peer]:
            self._limits[peer] = left
            limit = struct.pack("@ll", int(left), int(left % 1 * 1e6))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        return sock

    def _exchange(self, outgoing: dict[int, memoryview], incoming: dict[int, memoryview]) -> None:
        """Send and receive at the same time, whatever the sizes."""
        outgoing = {peer: view for peer, view in outgoing.items() if len(view)}
        incoming = {peer: view for peer, view in incoming.items() if len(view)}
        numbers = {self._peers[peer].fileno(): peer for peer in {*outgoing, *incoming}}
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
        sock = self._peers[peer]
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

    # --- the mesh -----------------------------------------------------------------------------------------------------

    def _meet(
        self, addresses: Sequence[tuple[str, int]], listener: socket.socket, token: bytes, start_s: float
    ) -> None:
        """Dial every lower rank, and let every higher one in."""
        end = time.monotonic() + start_s
        for peer in range(self._rank):
            try:
                sock = socket.create_connection(addresses[peer], timeout=start_s)
                sock.sendall(
                    wire.proof(token, wire.read_exactly(sock, wire.NONCE_BYTES)) + struct.pack(">I", self._rank)
                )
            except OSError as error:
                where = f"{addresses[peer][0]}:{addresses[peer][1]}"
                raise PeerError(f"can't be reached at {where} ({error})", on=f"rank {peer}") from error
            self._adopt(peer, sock)
        while len(self._peers) < self._size - 1:
            missing = min(set(range(self._size)) - set(self._peers) - {self._rank})
            listener.settimeout(max(end - time.monotonic(), 1e-3))
            try:
                sock, _ = listener.accept()
            except TimeoutError as error:
                raise PeerError(f"did not connect within {start_s:g} s", on=f"rank {missing}") from error
            self._admit(sock, token)

    def _admit(self, sock: socket.socket, token: bytes) -> None:
        nonce = wire.new_nonce()
        try:
            sock.settimeout(5)
            sock.sendall(nonce)
            answer = wire.read_exactly(sock, wire.PROOF_BYTES + 4)
        except OSError:
            sock.close()
            return
        peer = struct.unpack(">I", answer[wire.PROOF_BYTES :])[0]
        if wire.proven(token, nonce, answer[: wire.PROOF_BYTES]) and self._rank < peer < self._size:
            self._adopt(peer, sock)
        else:
            sock.close()

    def _adopt(self, peer: int, sock: socket.socket) -> None:
        wire.tune(sock)
        sock.settimeout(None)
        self._limits[peer] = float("inf")
        self._peers[peer] = sock
        self._peers = dict(sorted(self._peers.items()))


def listen(host: str) -> socket.socket:
    """Open a listening socket at a free port of `host`."""
    return socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=128)


def _bytes(array: Array) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _interest(peer: int, outgoing: dict[int, memoryview], incoming: dict[int, memoryview]) -> int:
    return (select.POLLIN if peer in incoming else 0) | (select.POLLOUT if peer in outgoing else 0)


def _advance(views: dict[int, memoryview], peer: int, count: int, *, closed: bool = False) -> None:
    if not count and closed:
        raise ConnectionError("closed")
    views[peer] = views[peer][count:]
    if not len(views[peer]):
        del views[peer]
