"""How do ranks find and prove each other? A socket between every two of them."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Sequence

from pipelines.errors import GangError
from pipelines.training.gang import wire

_PROOF_S = 5.0


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
    rank: int, addresses: Sequence[tuple[str, int]], listener: socket.socket, token: bytes, start_s: float
) -> dict[int, socket.socket]:
    """Dial every lower rank, and let every higher one in; returns a blocking socket for each, by rank.

    Raises
    ------
    PeerError
        A rank can't be reached, or did not come within `start_s`.
    """
    end = time.monotonic() + start_s
    peers = {peer: _dial(rank, peer, addresses[peer], token, start_s) for peer in range(rank)}
    while len(peers) < len(addresses) - 1:
        missing = min(set(range(len(addresses))) - set(peers) - {rank})
        listener.settimeout(max(end - time.monotonic(), 1e-3))
        try:
            sock, _ = listener.accept()
        except TimeoutError as error:
            raise PeerError(f"did not connect within {start_s:g} s", on=f"rank {missing}") from error
        peer = _admit(sock, token)
        if peer is not None and rank < peer < len(addresses) and peer not in peers:
            peers[peer] = sock
        else:
            sock.close()
    for sock in peers.values():
        wire.tune(sock)
        sock.settimeout(None)
    return dict(sorted(peers.items()))


def _dial(rank: int, peer: int, address: tuple[str, int], token: bytes, start_s: float) -> socket.socket:
    try:
        sock = socket.create_connection(address, timeout=start_s)
        sock.sendall(wire.proof(token, wire.read_exactly(sock, wire.NONCE_BYTES)) + struct.pack(">I", rank))
    except OSError as error:
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
