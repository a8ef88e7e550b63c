"""What every collective must do: the protocol's promises, held by the one over TCP at one to five ranks."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pipelines.errors import GangError
from pipelines.training.gang.collective import DIRECT_BYTES, PeerError, TcpCollective

RANKS = [1, 2, 3, 5]
SIZES = [0, 1, 7, 1000, DIRECT_BYTES // 8, DIRECT_BYTES // 8 + 1, 300_001]
DTYPES = ["<f4", "<f8", "<i4", "<i8", "u1"]


def values(rank: int, size: int, dtype: str) -> np.ndarray:
    rng = np.random.default_rng([rank, size])
    return (rng.normal(size=size) * 50 + 60).astype(dtype)


@pytest.mark.parametrize(("op", "ranks"), [("sum", 1), ("sum", 2), ("sum", 3), ("sum", 5), ("max", 3), ("min", 2)])
def test_allreduce_combines_in_rank_order_whatever_size_and_type(mesh: Any, ranks: int, op: str) -> None:
    def program(collective: TcpCollective) -> list[np.ndarray]:
        return [
            collective.allreduce(values(collective.rank, size, dtype), op)  # type: ignore[arg-type]
            for size in SIZES
            for dtype in DTYPES
        ]

    outcomes = mesh.run([program] * ranks)
    combine = {"sum": np.add, "max": np.maximum, "min": np.minimum}[op]
    at = 0
    for size in SIZES:
        for dtype in DTYPES:
            expected = values(0, size, dtype)
            for rank in range(1, ranks):
                expected = combine(expected, values(rank, size, dtype))
            for outcome in outcomes:
                # Bit for bit: the order of addition is the ranks', whichever way the bytes went.
                assert outcome[at].tobytes() == expected.tobytes()
                assert outcome[at].dtype == expected.dtype
            at += 1


@pytest.mark.parametrize("shape", [(), (3, 4), (0, 5), (200, 300)])
def test_allreduce_keeps_shapes_and_its_argument(mesh: Any, shape: tuple[int, ...]) -> None:
    def program(collective: TcpCollective) -> tuple[np.ndarray, np.ndarray]:
        given = np.full(shape, collective.rank + 1.0)
        return collective.allreduce(given), given

    for rank, (result, given) in enumerate(mesh.run([program] * 3)):
        np.testing.assert_array_equal(result, np.full(shape, 6.0))
        np.testing.assert_array_equal(given, np.full(shape, rank + 1.0))


def test_allreduce_takes_arrays_that_are_not_contiguous(mesh: Any) -> None:
    def program(collective: TcpCollective) -> np.ndarray:
        return collective.allreduce(np.arange(12.0).reshape(3, 4).T)

    for result in mesh.run([program] * 2):
        np.testing.assert_array_equal(result, 2 * np.arange(12.0).reshape(3, 4).T)


def test_the_result_is_the_callers_own(mesh: Any) -> None:
    def program(collective: TcpCollective) -> float:
        given = np.ones(3)
        collective.allreduce(given)[:] = 9
        return float(given.sum())

    assert mesh.run([program]) == [3.0]
    assert mesh.run([program] * 2) == [3.0, 3.0]


@pytest.mark.parametrize("ranks", RANKS)
def test_allgather_brings_payloads_of_any_length(mesh: Any, ranks: int) -> None:
    lengths = [0, 5, DIRECT_BYTES, DIRECT_BYTES + 1, 2_000_000]

    def program(collective: TcpCollective) -> list[list[bytes]]:
        # Every rank has another length, and some are large where others are small.
        return [
            collective.allgather(bytes([collective.rank]) * lengths[(turn + collective.rank) % len(lengths)])
            for turn in range(len(lengths))
        ]

    for outcome in mesh.run([program] * ranks):
        for turn, gathered in enumerate(outcome):
            assert gathered == [bytes([rank]) * lengths[(turn + rank) % len(lengths)] for rank in range(ranks)]


@pytest.mark.parametrize("ranks", RANKS)
def test_alltoall_gives_each_rank_its_own_payload(mesh: Any, ranks: int) -> None:
    lengths = [0, 5, DIRECT_BYTES, DIRECT_BYTES + 1, 3_000_000]

    def payload(turn: int, sender: int, receiver: int) -> bytes:
        # Every pair of ranks has another length each way, and some are large where others are small.
        return bytes([16 * sender + receiver]) * lengths[(turn + sender + 2 * receiver) % len(lengths)]

    def program(collective: TcpCollective) -> list[list[bytes]]:
        return [
            collective.alltoall([payload(turn, collective.rank, receiver) for receiver in range(ranks)])
            for turn in range(len(lengths))
        ]

    for rank, outcome in enumerate(mesh.run([program] * ranks)):
        for turn, received in enumerate(outcome):
            assert received == [payload(turn, sender, rank) for sender in range(ranks)]


@pytest.mark.parametrize("count", [0, 1, 3])
def test_an_alltoall_takes_one_payload_per_rank(mesh: Any, count: int) -> None:
    for outcome in mesh.run([lambda collective: collective.alltoall([b""] * count)] * 2):
        assert isinstance(outcome, ValueError)
        assert f"not {count}" in str(outcome)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("length", [0, 9, 1_500_000])
def test_gather_brings_payloads_to_the_root_only(mesh: Any, ranks: int, length: int) -> None:
    def program(collective: TcpCollective) -> list[list[bytes] | None]:
        return [collective.gather(bytes([collective.rank]) * length, root) for root in range(collective.size)]

    for rank, outcome in enumerate(mesh.run([program] * ranks)):
        for root, gathered in enumerate(outcome):
            assert gathered == ([bytes([each]) * length for each in range(ranks)] if rank == root else None)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("length", [0, 9, 1_500_000])
def test_broadcast_gives_the_roots_payload(mesh: Any, ranks: int, length: int) -> None:
    def program(collective: TcpCollective) -> list[bytes]:
        return [
            collective.broadcast(bytes([root]) * length if collective.rank == root else None, root)
            for root in range(collective.size)
        ]

    for outcome in mesh.run([program] * ranks):
        assert outcome == [bytes([root]) * length for root in range(ranks)]


def test_broadcast_without_a_payload_at_its_root_is_refused(mesh: Any) -> None:
    [outcome] = mesh.run([lambda collective: collective.broadcast(None)])
    assert isinstance(outcome, ValueError)


@pytest.mark.parametrize("ranks", RANKS)
def test_nobody_leaves_a_barrier_before_all_have_come(mesh: Any, ranks: int) -> None:
    arrived: list[int] = []

    def program(collective: TcpCollective) -> int:
        time.sleep(0.05 * collective.rank)
        arrived.append(collective.rank)
        collective.barrier()
        return len(arrived)

    assert mesh.run([program] * ranks) == [ranks] * ranks


def test_operations_may_follow_each_other_in_any_mixture(mesh: Any) -> None:
    def program(collective: TcpCollective) -> float:
        total = 0.0
        for turn in range(60):
            total += float(collective.allreduce(np.full(1 + turn * 97, float(collective.rank)))[0])
            collective.broadcast(b"x" * (turn * 5000), turn % collective.size)
            total += sum(len(each) for each in collective.allgather(b"y" * (turn * collective.rank)))
            given = collective.alltoall([b"z" * (turn * 3000 * rank) for rank in range(collective.size)])
            assert [len(each) for each in given] == [turn * 3000 * collective.rank] * collective.size
            collective.barrier()
        return total

    outcomes = mesh.run([program] * 3)
    assert outcomes[0] == outcomes[1] == outcomes[2] == 60 * 3 + sum(3 * turn for turn in range(60))


@pytest.mark.slow
@pytest.mark.parametrize("size", [10, 500_000])
@pytest.mark.parametrize("ranks", [2, 3])
def test_a_silent_peer_is_named_when_the_deadline_passes(mesh: Any, size: int, ranks: int) -> None:
    def silent(collective: TcpCollective) -> None:
        time.sleep(1.0)

    def program(collective: TcpCollective) -> None:
        collective.allreduce(np.ones(size))

    outcomes = mesh.run([program] * (ranks - 1) + [silent], step_s=0.3)
    for outcome in outcomes[:-1]:
        assert isinstance(outcome, PeerError)
    assert any(outcome.rank == ranks - 1 for outcome in outcomes[:-1])
    assert "within 0.3 s" in str(outcomes[0])


@pytest.mark.slow
@pytest.mark.parametrize("length", [10, 4_000_000])
@pytest.mark.parametrize("ranks", [2, 3])
def test_an_alltoall_ends_at_its_deadline_and_names_who_was_silent(mesh: Any, length: int, ranks: int) -> None:
    def silent(collective: TcpCollective) -> None:
        time.sleep(1.0)

    def program(collective: TcpCollective) -> None:
        collective.alltoall([bytes(length)] * collective.size)

    outcomes = mesh.run([program] * (ranks - 1) + [silent], step_s=0.3)
    for outcome in outcomes[:-1]:
        assert isinstance(outcome, PeerError)
    assert any(outcome.rank == ranks - 1 for outcome in outcomes[:-1])
    assert "within 0.3 s" in str(outcomes[0])


@pytest.mark.parametrize("size", [10, 2_000_000])
def test_a_peer_that_leaves_is_named_at_once(mesh: Any, size: int) -> None:
    def leaver(collective: TcpCollective) -> None:
        collective.barrier()

    def program(collective: TcpCollective) -> None:
        collective.barrier()
        collective.allreduce(np.ones(size))

    began = time.monotonic()
    first, second, _ = mesh.run([program, program, leaver])
    assert time.monotonic() - began < 10
    for outcome in (first, second):
        assert isinstance(outcome, GangError)
    # Whichever survivor sees it first names the leaver; the other may see the first one's end.
    assert 2 in (first.rank, second.rank)


def test_an_abort_wakes_whoever_waits_and_says_why(mesh: Any) -> None:
    def waiting(collective: TcpCollective) -> None:
        collective.allreduce(np.ones(5))

    def aborting(collective: TcpCollective) -> None:
        time.sleep(0.2)
        collective.abort("rank 7: was killed")
        collective.barrier()

    began = time.monotonic()
    waited, aborted = mesh.run([waiting, aborting], step_s=60)
    assert time.monotonic() - began < 10
    assert isinstance(waited, PeerError)
    assert "rank 7: was killed" in str(aborted)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda c: c.allreduce(np.ones(4)), lambda c: c.barrier()),
        (lambda c: c.allreduce(np.ones(4)), lambda c: c.allreduce(np.ones(5))),
        (lambda c: c.allreduce(np.ones(4)), lambda c: c.allreduce(np.ones(4, np.int64))),
        (lambda c: c.allreduce(np.ones(4)), lambda c: c.allreduce(np.ones(4), "max")),
        (lambda c: c.allgather(b""), lambda c: c.barrier()),
        (lambda c: c.alltoall([b"", b""]), lambda c: c.allgather(b"")),
    ],
)
def test_ranks_at_different_operations_are_told_apart(
    mesh: Any, one: Callable[[TcpCollective], Any], other: Callable[[TcpCollective], Any]
) -> None:
    outcomes = mesh.run([one, other])
    assert any(isinstance(each, PeerError) and "another operation" in str(each) for each in outcomes)


def test_strangers_do_not_get_into_the_mesh(mesh: Any) -> None:
    def program(collective: TcpCollective) -> float:
        return float(collective.allreduce(np.ones(1))[0])

    original = TcpCollective.__init__

    def intruded(self: TcpCollective, rank: int, addresses: Any, listener: Any, **options: Any) -> None:
        if rank == 0:
            stranger = socket.create_connection(listener.getsockname())
            stranger.sendall(b"\0" * 36)
        original(self, rank, addresses, listener, **options)

    TcpCollective.__init__ = intruded  # type: ignore[method-assign]
    try:
        assert mesh.run([program, program]) == [2.0, 2.0]
    finally:
        TcpCollective.__init__ = original  # type: ignore[method-assign]
