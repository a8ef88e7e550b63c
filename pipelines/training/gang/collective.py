"""A collective over TCP: rank-ordered sums, a deadline on every wait, and an end that wakes whoever waits.

Small arrays go from every rank to every other in one hop, at two ranks large ones too; at more ranks large arrays are
cut into one piece per rank, which adds the pieces of all and hands the sum to everyone (reduce-scatter and all-gather,
2(n-1)/n of the bytes each way). All add in the order of the ranks, so the size of a message does not change its result.
See README.md for the measurements behind the choice.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from itertools import pairwise
from types import TracebackType
from typing import Any

import numpy as np

from pipelines.training.gang.context import Array, Op
from pipelines.training.gang.links import Links, as_bytes
from pipelines.training.gang.mesh import PeerError, listen, meet

__all__ = ["DIRECT_BYTES", "PeerError", "TcpCollective", "listen"]

DIRECT_BYTES = 32 * 1024
"""Largest payload that is sent in one piece with its header: two of them fit into the sockets' buffers as they are.

(Setting the buffers' sizes would stop the kernel from growing them, and cost half of the rate of large messages.)
"""
_COMBINE: dict[str, Callable[..., Any]] = {"sum": np.add, "max": np.maximum, "min": np.minimum}


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
    leaving : callable
        Returns why the gang leaves, empty as long as it does not: building the mesh ends then.
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
        leaving: Callable[[], str] = str,
    ) -> None:
        self._rank, self._size = rank, len(addresses)
        with listener:
            self._links = Links(meet(rank, addresses, listener, token, start_s, leaving), step_s)
        self._peers = tuple(self._links.peers)
        # Two ranks are never more than one message ahead of each other, more may be two.
        self._direct_bytes = DIRECT_BYTES * (2 if self._size == 2 else 1)

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
        self._links.close()

    def abort(self, reason: str) -> None:
        """Make the running operation and all later ones raise; callable from any thread."""
        self._links.abort(reason)

    def allreduce(self, array: Array, op: Op = "sum") -> Array:
        """See `Collective.allreduce`."""
        own = np.ascontiguousarray(array)
        self._links.start()
        if self._size == 1:
            return own.copy() if own is array else own
        if own.nbytes <= self._direct_bytes:
            return self._reduce_small(own, op)
        return self._reduce_pair(own, op) if self._size == 2 else self._reduce_pieces(own, op)

    def allgather(self, payload: bytes) -> list[bytes]:
        """See `Collective.allgather`."""
        return self._swap("allgather", [payload] * self._size)

    def alltoall(self, payloads: Sequence[bytes]) -> list[bytes]:
        """See `Collective.alltoall`."""
        if len(payloads) != self._size:
            raise ValueError(f"an all-to-all of {self._size} ranks takes as many payloads, not {len(payloads)}")
        return self._swap("alltoall", payloads)

    def gather(self, payload: bytes, root: int = 0) -> list[bytes] | None:
        """See `Collective.gather`."""
        self._links.start()
        if self._rank != root:
            self._links.send(root, [self._links.header("gather", len(payload)), payload])
            return None
        return [payload if rank == root else self._receive(rank, "gather") for rank in range(self._size)]

    def broadcast(self, payload: bytes | None, root: int = 0) -> bytes:
        """See `Collective.broadcast`."""
        self._links.start()
        if self._rank != root:
            return self._receive(root, "broadcast")
        if payload is None:
            raise ValueError("the root of a broadcast must give the payload")
        for peer in self._peers:
            self._links.send(peer, [self._links.header("broadcast", len(payload)), payload])
        return payload

    def barrier(self) -> None:
        """See `Collective.barrier`."""
        self._links.start()
        for peer in self._peers:
            self._links.send(peer, [self._links.header("barrier", 0)])
        for peer in self._peers:
            self._links.receive_header(peer, "barrier", 0)

    def _swap(self, operation: str, payloads: Sequence[bytes]) -> list[bytes]:
        """Give each rank its payload: small ones in one piece with their headers, then large ones all at once."""
        links = self._links
        links.start()
        outgoing: dict[int, memoryview] = {}
        for peer in self._peers:
            small = len(payloads[peer]) <= DIRECT_BYTES
            links.send(peer, [links.header(operation, len(payloads[peer])), payloads[peer] if small else b""])
            if not small:
                outgoing[peer] = memoryview(payloads[peer])
        found: dict[int, bytes | bytearray] = {self._rank: payloads[self._rank]}
        large: dict[int, memoryview] = {}
        for peer in self._peers:
            buffer = bytearray(links.receive_header(peer, operation, None))
            found[peer] = buffer
            if len(buffer) <= DIRECT_BYTES:
                links.receive(peer, memoryview(buffer))
            else:
                large[peer] = memoryview(buffer)
        links.exchange(outgoing, large)
        return [bytes(found[rank]) for rank in range(self._size)]

    def _receive(self, peer: int, operation: str) -> bytes:
        buffer = bytearray(self._links.receive_header(peer, operation, None))
        self._links.receive(peer, memoryview(buffer))
        return bytes(buffer)

    def _reduce_small(self, own: Array, op: Op) -> Array:
        """Give everything to everyone, each message in one piece."""
        message = self._links.header(op, own.nbytes, own.dtype.num) + own.tobytes()
        for peer in self._peers:
            self._links.send(peer, [message])
        parts = {self._rank: own}
        for peer in self._peers:
            parts[peer] = self._links.receive_like(peer, op, own)
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
        self._links.exchange(
            dict.fromkeys(self._peers, as_bytes(result[pieces[self._rank]])),
            {peer: as_bytes(result[pieces[peer]]) for peer in self._peers},
        )
        return result.reshape(own.shape)

    def _trade(self, op: Op, own: Array, outgoing: dict[int, Array], incoming: dict[int, Array]) -> None:
        """Exchange arrays behind headers, which show that all are at the same operation before any byte is taken in."""
        header = self._links.header(op, own.nbytes, own.dtype.num)
        unsent = {peer: self._links.send_some(peer, header, as_bytes(array)) for peer, array in outgoing.items()}
        for peer in incoming:
            self._links.receive_header(peer, op, own.nbytes, own.dtype.num)
        self._links.exchange(unsent, {peer: as_bytes(array) for peer, array in incoming.items()})

    def _combined(self, parts: dict[int, Array], op: Op) -> Array:
        """Combine in rank order, in the space of a part that was received."""
        result = parts[1 if self._rank == 0 else 0]
        _COMBINE[op](parts[0], parts[1], out=result)
        for rank in range(2, self._size):
            _COMBINE[op](result, parts[rank], out=result)
        return result
