"""How do ranks find and prove each other? A socket between every two of them."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from pipelines.errors import GangError
from pipelines.training.gang import wire

_PROOF_S = 5.0
_CONNECT_S = 10.0
_LOOK_S = 0.1
"""Between two looks for whether there is still a reason to wait."""


class PeerError(GangError):
    """Another rank did not answer, or left; `rank` is its number (-1: the gang was told to leave)."""

    @property
    def rank(self) -> int:
        """The rank that is blamed."""
        return int(self.on.removeprefix("rank ")) if self.on.startswith("rank ") else -1


def listen(host: str) -> socket.socket:
    """Open a listening socket at a free port of `host`."""
    return socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=128)


def meet(
    rank: int,
    addresses: Sequence[tuple[str, int]],
    listener: socket.socket,
    token: bytes,
    start_s: float,
    leaving: Callable[[], str] = str,
) -> dict[int, socket.socket]:
    """Dial every lower rank, and let every higher one in; returns a blocking socket for each, by rank.

    Raises
    ------
    PeerError
        A rank can't be reached, did not come within `start_s`, or `leaving` gave a reason to leave.
    """
    wait = _Wait(start_s, leaving)
    peers: dict[int, socket.socket] = {}
    try:
        for peer in range(rank):
            peers[peer] = _dial(rank, peer, addresses[peer], token, wait)
        while len(peers) < len(addresses) - 1:
            missing = min(set(range(len(addresses))) - set(peers) - {rank})
            sock = _accept(listener, missing, wait)
            caller = _admit(sock, token)
            if caller is not None and rank < caller < len(addresses) and caller not in peers:
                peers[caller] = sock
            else:
                sock.close()
    except PeerError:
        for sock in peers.values():
            wire.close(sock)
        raise
    for sock in peers.values():
        wire.tune(sock)
        sock.settimeout(None)
    return dict(sorted(peers.items()))


class _Wait:
    """What is left of the time for building the mesh."""

    def __init__(self, start_s: float, leaving: Callable[[], str]) -> None:
        self.start_s, self._leaving = start_s, leaving
        self._end = time.monotonic() + start_s

    def check(self, peer: int) -> None:
        """Raise when there is no reason to wait any longer."""
        reason = self._leaving()
        if reason:
            raise PeerError(f"left the collective: {reason}", on="the gang")
        if time.monotonic() > self._end:
            raise PeerError(f"did not connect within {self.start_s:g} s", on=f"rank {peer}")


def _accept(listener: socket.socket, missing: int, wait: _Wait) -> socket.socket:
    listener.settimeout(_LOOK_S)
    while True:
        wait.check(missing)
        try:
            return listener.accept()[0]
        except TimeoutError:
            continue


def _dial(rank: int, peer: int, address: tuple[str, int], token: bytes, wait: _Wait) -> socket.socket:
    """Connect to a rank that listens already; its process may be stopped, and answer late or never."""
    try:
        sock = socket.create_connection(address, timeout=min(wait.start_s, _CONNECT_S))
    except OSError as error:
        raise PeerError(f"can't be reached at {address[0]}:{address[1]} ({error})", on=f"rank {peer}") from error
    try:
        sock.settimeout(_LOOK_S)
        nonce = b""
        while len(nonce) < wire.NONCE_BYTES:
            wait.check(peer)
            with suppress(TimeoutError):
                nonce += wire.read_exactly(sock, 1)
        sock.settimeout(_PROOF_S)
        sock.sendall(wire.proof(token, nonce) + struct.pack(">I", rank))
    except PeerError:
        sock.close()
        raise
    except OSError as error:
        sock.close()
        raise PeerError(f"can't be reached at {address[0]}:{address[1]} ({error})", on=f"rank {peer}") from error
    return sock


def _admit(sock: socket.socket, token: bytes) -> int | None:
    """Return the rank that a caller has proven to be; None for a stranger."""
    nonce = wire.new_nonce()
    try:
        sock.settimeout(_PROOF_S)
        sock.sendall(nonce)
        answer = wire.read_exactly(sock, wire.PROOF_BYTES + 4)
    except OSError:
        return None
    if not wire.proven(token, nonce, answer[: wire.PROOF_BYTES]):
        return None
    return int(struct.unpack(">I", answer[wire.PROOF_BYTES :])[0])
