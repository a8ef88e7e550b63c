"""Frames arrive whole and in order, whatever their size; who has not the token, or speaks otherwise, is not heard."""

from __future__ import annotations

import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.training.gang import wire
from pipelines.training.gang.mesh import listen
from pipelines.training.strategies.parameter_server.frames import BODY_LIMIT, HEADER, Frame, Kind
from pipelines.training.strategies.parameter_server.streams import Hub, Stream

TOKEN = b"secret"


def hear(hub: Hub, others: tuple[Hub, ...], count: int) -> list[tuple[Stream, Frame | None]]:
    found: list[tuple[Stream, Frame | None]] = []
    for _ in range(20_000):
        found += hub.poll(0.001)
        for other in others:
            other.poll(0)
        if len(found) >= count:
            return found
    raise AssertionError(f"{len(found)} of {count} frames have come")


# Beyond some megabytes a frame does not fit into the sockets' buffers.
SIZES = st.lists(st.sampled_from([0, 1, 23, 24, 25, 4096, 1 << 16, 5 << 20]), min_size=1, max_size=6)


@given(SIZES)
def test_frames_arrive_whole_and_in_order(sizes: list[int]) -> None:
    listener = listen("127.0.0.1")
    with Hub(TOKEN, listener) as called, Hub(TOKEN) as caller:
        stream = caller.dial(listener.getsockname(), b"hello")
        for number, size in enumerate(sizes):
            caller.send(stream, Kind.PULL, 7, number, 2**40 + number, bytes([number]) * size)
        frames = [frame for _, frame in hear(called, (caller,), 1 + len(sizes))]
        assert frames[0] is not None
        assert bytes(frames[0].body) == b"hello"
        for number, (size, frame) in enumerate(zip(sizes, frames[1:], strict=True)):
            assert frame is not None
            assert (frame.kind, frame.shard, frame.term, frame.number) == (Kind.PULL, 7, number, 2**40 + number)
            assert frame.body == bytes([number]) * size
        assert called.received_bytes == caller.sent_bytes
        assert stream.unsent_bytes == 0


def test_a_wrong_token_is_not_heard() -> None:
    listener = listen("127.0.0.1")
    with Hub(TOKEN, listener) as called, Hub(b"other") as caller:
        stream = caller.dial(listener.getsockname(), b"hello")
        assert hear(caller, (called,), 1) == [(stream, None)]
        assert called.streams == set()


def test_where_nobody_listens_a_stream_ends() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        address = gone.getsockname()
    with Hub(TOKEN) as caller:
        stream = caller.dial(address, b"hello")
        assert hear(caller, (), 1) == [(stream, None)]
        caller.send(stream, Kind.PULL, 0, 0, 0, b"lost")


def test_a_body_beyond_the_limit_ends_the_stream() -> None:
    listener = listen("127.0.0.1")
    with Hub(TOKEN, listener) as called, socket.create_connection(listener.getsockname()) as sock:
        sock.setblocking(False)
        nonce = b""
        while len(nonce) < wire.NONCE_BYTES:
            called.poll(0.01)
            try:
                nonce += sock.recv(wire.NONCE_BYTES - len(nonce))
            except BlockingIOError:
                continue
        sock.sendall(wire.proof(TOKEN, nonce) + HEADER.pack(Kind.PULL, 0, 0, 0, BODY_LIMIT + 1))
        assert [frame for _, frame in hear(called, (), 1)] == [None]


@pytest.mark.parametrize("body", [b"", b"123"])
def test_bodies_that_are_too_short_are_malformed(body: bytes) -> None:
    from pipelines.training.strategies.parameter_server import frames

    frame = Frame(Kind.PUSH, 0, 0, 0, bytearray(body))
    for read in (frames.update_of, frames.turn_of, frames.range_of, lambda f: frames.copy_of(f, 2), frames.any_rows_of):
        with pytest.raises(wire.Malformed):
            read(frame)
    with pytest.raises(wire.Malformed):
        frames.rows_of(Frame(Kind.ROWS, 0, 0, 0, bytearray(struct.pack("<I", 3) + bytes(20))), 2)
