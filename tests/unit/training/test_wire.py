"""Frames arrive whole, whatever the pieces; who has not the token is not heard."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.training.gang import wire

HEADERS = st.dictionaries(st.text(max_size=5), st.one_of(st.integers(), st.text(max_size=5), st.none()), max_size=3)


@given(st.lists(st.tuples(HEADERS, st.binary(max_size=50)), max_size=5), st.integers(1, 40))
def test_frames_survive_any_cutting(frames: list[tuple[dict[str, object], bytes]], size: int) -> None:
    stream = b"".join(wire.encode(header, payload) for header, payload in frames)
    decoder = wire.Decoder()
    found = [frame for at in range(0, len(stream), size) for frame in decoder.feed(stream[at : at + size])]
    assert found == frames
    assert len(decoder) == 0


@pytest.mark.parametrize("header", [b"no json", b"[1]"])
def test_what_is_no_frame_is_refused(header: bytes) -> None:
    data = len(header).to_bytes(4, "big") + (0).to_bytes(8, "big") + header
    with pytest.raises(wire.Malformed):
        wire.Decoder().feed(data)


def test_a_proof_holds_for_its_token_and_nonce_only() -> None:
    nonce = wire.new_nonce()
    answer = wire.proof(b"secret", nonce)
    assert wire.proven(b"secret", nonce, answer)
    assert not wire.proven(b"other", nonce, answer)
    assert not wire.proven(b"secret", wire.new_nonce(), answer)
