"""The gang's meeting place: a small TCP server without a thread of its own, in the process that calls `run_gang`.

It turns what watchers and ranks say into events of `membership`, and membership's orders into frames. Nobody gets in
without the gang's token.
"""

from __future__ import annotations

import logging
import selectors
import socket
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipelines.training.gang import events, wire
from pipelines.training.gang.events import Cause, Event, Introduce, Kill, Order, Recruit, Strike, Tell

logger = logging.getLogger(__name__)


@dataclass
class _Peer:
    """One connection: nameless until it has proven the token and said which member it speaks for."""

    sock: socket.socket
    nonce: bytes
    role: str = ""
    member: int = -1
    proven: bool = False
    raw: bytearray = field(default_factory=bytearray)
    decoder: wire.Decoder = field(default_factory=wire.Decoder)
    unsent: deque[memoryview] = field(default_factory=deque)
    last_words: bool = False


class Coordinator:
    """Accepts the gang's connections, and speaks for it. Owned by one thread; close it with ``with``.

    Parameters
    ----------
    host : str
        Address to listen at, reachable from the workers.
    token : bytes
    deal : callable
        From an `Introduce` to what is handed to each rank, by rank.
    """

    def __init__(self, host: str, token: bytes, deal: Callable[[Introduce], Sequence[bytes]]) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family, backlog=256)
        self._listener.setblocking(False)
        self._token, self._deal = token, deal
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._peers: dict[tuple[str, int], _Peer] = {}
        self._expected: set[tuple[str, int]] = set()
        self.address = (host, int(self._listener.getsockname()[1]))

    def __enter__(self) -> Coordinator:
        return self

    def __exit__(self, *_: object) -> None:
        for key in list(self._selector.get_map().values()):
            sock = key.fileobj
            assert isinstance(sock, socket.socket)
            self._selector.unregister(sock)
            wire.close(sock)
        self._selector.close()

    def expect(self, member: int) -> None:
        """Let a member and its watcher in, once each."""
        self._expected |= {("watcher", member), ("member", member)}

    def poll(self, timeout_s: float) -> list[Event]:
        """Wait for something to happen, at most `timeout_s`, and return it as events."""
        found: list[Event] = []
        for key, mask in self._selector.select(timeout_s):
            if key.data is None:
                self._accept()
                continue
            peer: _Peer = key.data
            if mask & selectors.EVENT_WRITE:
                self._flush(peer)
            if mask & selectors.EVENT_READ:
                found += self._read(peer)
        return found

    def obey(self, orders: Sequence[Order]) -> None:
        """Send what `membership` has ordered. A peer that is gone is told nothing; its end is an event of its own."""
        for order in orders:
            match order:
                case Introduce(formation, members, addresses):
                    header = {"kind": "introduce", "formation": formation, "addresses": addresses}
                    dealt = self._deal(order)
                    for rank, (member, arguments) in enumerate(zip(members, dealt, strict=True)):
                        self._send("member", member, {**header, "rank": rank}, arguments)
                case Tell(member, word, reason):
                    self._send("member", member, {"kind": word, "reason": reason})
                case Kill(member):
                    self._send("watcher", member, {"kind": "kill"})
                case Strike(member, harm, factor):
                    self._send("watcher", member, {"kind": "strike", "harm": harm, "factor": factor})
                case Recruit():
                    raise ValueError("calling for members is the launcher's work")

    def say(self, member: int, word: dict[str, Any]) -> None:
        """Hand a word of the gang's owner to a member."""
        self._send("member", member, {"kind": "word", "word": word})

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return
        sock.setblocking(False)
        wire.tune(sock)
        peer = _Peer(sock, wire.new_nonce())
        self._selector.register(sock, selectors.EVENT_READ, peer)
        peer.unsent.append(memoryview(peer.nonce))
        self._flush(peer)

    def _send(self, role: str, member: int, header: dict[str, Any], payload: bytes = b"") -> None:
        peer = self._peers.get((role, member))
        if peer is not None:
            peer.unsent.append(memoryview(wire.encode(header, payload)))
            self._flush(peer)

    def _flush(self, peer: _Peer) -> None:
        try:
            while peer.unsent:
                rest = peer.unsent[0][peer.sock.send(peer.unsent[0]) :]
                if len(rest):
                    peer.unsent[0] = rest
                else:
                    peer.unsent.popleft()
        except BlockingIOError:
            pass
        except OSError:
            peer.unsent.clear()  # its end will be read
        interest = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.unsent else 0)
        self._selector.modify(peer.sock, interest, peer)

    def _read(self, peer: _Peer) -> list[Event]:
        try:
            data = peer.sock.recv(1 << 20)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            return self._lost(peer)
        try:
            found = [event for frame in self._frames(peer, data) for event in self._understand(peer, *frame)]
            # A watcher waits for its last words to be read: its worker is free for another member then.
            return found + self._lost(peer) if peer.last_words else found
        except (wire.Malformed, KeyError, TypeError, ValueError) as error:
            logger.warning("a connection was closed that does not speak as a gang does: %s", error)
            return self._lost(peer)

    def _frames(self, peer: _Peer, data: bytes) -> list[wire.Frame]:
        if not peer.proven:
            peer.raw += data
            if len(peer.raw) > wire.UNPROVEN_LIMIT:
                raise wire.Malformed("too many bytes before the proof of the token")
            if len(peer.raw) < wire.PROOF_BYTES:
                return []
            if not wire.proven(self._token, peer.nonce, bytes(peer.raw[: wire.PROOF_BYTES])):
                raise wire.Malformed("a wrong token")
            peer.proven, data = True, bytes(peer.raw[wire.PROOF_BYTES :])
        return peer.decoder.feed(data)

    def _understand(self, peer: _Peer, header: dict[str, Any], payload: bytes) -> list[Event]:
        if not peer.role:
            return self._welcome(peer, header)
        member, kind = peer.member, header["kind"]
        match kind:
            case "arrived":
                host, port = header["address"]
                return [events.Arrived(member, (str(host), int(port)), tuple(map(int, header["holds"])))]
            case "beat":
                return [events.Beat(member, header["state"], header["cpu_s"], header["rss_bytes"])]
            case "report":
                return [events.Spoke(member, header["message"])]
            case "committed":
                return [events.Committed(member, int(header["step"]))]
            case "left":
                return [events.Left(member, header["text"], header["blamed"])]
            case "returned":
                return [events.Returned(member, payload)]
            case "complained":
                details, leaving = header.get("details", {}), header.get("leaving", False)
                return [events.Complained(member, Cause(header["cause"]), header["text"], details, leaving)]
            case "gone":
                peer.last_words = True
                details = {"log": header["log"], "peak_rss_bytes": header["peak_rss_bytes"]}
                return [events.Gone(member, Cause(header["cause"]), header["text"], details)]
        raise wire.Malformed(f"an unknown word {kind!r}")

    def _welcome(self, peer: _Peer, hello: dict[str, Any]) -> list[Event]:
        role, member = str(hello["role"]), int(hello["member"])
        if (role, member) not in self._expected:
            raise wire.Malformed(f"a second or an unknown {role} {member}")
        peer.role, peer.member = role, member
        self._peers[role, member] = peer
        self._expected.discard((role, member))
        return [events.Watched(member, str(hello["worker"]))] if role == "watcher" else []

    def _lost(self, peer: _Peer) -> list[Event]:
        self._selector.unregister(peer.sock)
        wire.close(peer.sock)
        self._peers.pop((peer.role, peer.member), None)
        if peer.role == "watcher" and not peer.last_words:
            return [events.Gone(peer.member, Cause.KILLED, "its worker was lost: the watcher's connection broke")]
        return []
