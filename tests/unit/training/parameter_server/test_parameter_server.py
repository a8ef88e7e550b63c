"""Servers, arbiter and clients together do what one process would do: same bits, each update once, bounded waits."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.sparse import csr_matrix

from pipelines.errors import DataError, DeadlineError, GangError, MutiraoError, TrainingError
from pipelines.training.blocks import SparseBlock
from pipelines.training.gang import wire
from pipelines.training.objectives import Logistic
from pipelines.training.strategies.parameter_server import (
    Adagrad,
    Arbiter,
    Client,
    Ftrl,
    Layout,
    Limits,
    Objective,
    Rule,
    Sgd,
    collect_weights,
    train,
)
from pipelines.training.strategies.parameter_server.batch import evaluate, prepare
from pipelines.training.strategies.parameter_server.shard import Shard
from pipelines.training.strategies.parameter_server.worker import Done, cut

SIZE = 1000


def updates(count: int, seed: int = 0) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Places and gradients of mini-batches."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        places = np.flatnonzero(rng.random(SIZE) < 0.1)
        yield places, rng.normal(size=len(places)).astype(np.float32)


def apply_all(client: Client, work: Iterator[tuple[np.ndarray, np.ndarray]]) -> None:
    for places, gradient in work:
        reading = client.read(places)
        client.wait(reading)
        client.push(reading, gradient)
    client.flush()


def weights(client: Client, size: int = SIZE) -> np.ndarray:
    return client.look(np.arange(size))


def in_threads(*works: Callable[[], Any]) -> None:
    failures: list[BaseException] = []

    def run(work: Callable[[], Any]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - told below
            failures.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    if failures:
        raise failures[0]


@pytest.mark.parametrize("rule", [Sgd(0.1, power=0.5), Adagrad(0.1), Ftrl(0.1, l1=0.01)], ids=str)
@pytest.mark.parametrize(("servers", "replicas"), [(1, False), (2, False), (2, True), (3, True)])
def test_one_clients_updates_give_the_bits_of_one_process(start: Any, rule: Rule, servers: int, replicas: bool) -> None:
    running = start(rule, size=SIZE, servers=servers, replicas=replicas, free=(3,))
    client = running.client()
    apply_all(client, updates(30))
    layout = running.layout
    place = layout.bounds[layout.find(3)[0]] + layout.find(3)[1]
    alone = Shard(SIZE, rule, [place])
    for clock, (places, gradient) in enumerate(updates(30)):
        alone.push(places.astype(np.int32), gradient, clock)
    np.testing.assert_array_equal(weights(client), alone.pull(np.arange(SIZE)))
    stats = client.stats()
    assert [each["server"] for each in stats] == list(range(servers))
    primaries = [held for each in stats for held in each["shards"].values() if held["role"] == "primary"]
    assert sum(held["keys_touched"] for held in primaries) == alone.occupied
    assert sum(held["keys_updated"] for held in primaries) == sum(len(places) for places, _ in updates(30))
    copies = [held for each in stats for held in each["shards"].values() if held["role"] == "replica"]
    assert len(copies) == (servers if replicas else 0)
    assert sum(held["keys_touched"] for held in copies) == (alone.occupied if replicas else 0)
    # Unbounded, a client's own update may overtake the word that the one before it is committed.
    assert set(running.arbiter.histogram) <= {0, 1, 2}


def test_many_clients_updates_are_all_applied_once(start: Any) -> None:
    # Sums of whole numbers below 2^24 are exact in any order.
    running = start(Sgd(1.0), size=SIZE, servers=3)
    clients = [running.client() for _ in range(4)]

    def work(number: int) -> None:
        apply_all(clients[number], ((places, np.round(g * 4)) for places, g in updates(40, seed=number)))

    in_threads(*(lambda n=n: work(n) for n in range(4)))
    expected = np.zeros(SIZE, np.float32)
    for number in range(4):
        for places, gradient in updates(40, seed=number):
            expected[places] -= np.round(gradient * 4)
    np.testing.assert_array_equal(weights(clients[0]), expected)
    assert sum(running.arbiter.histogram.values()) == 160


@pytest.mark.parametrize("bound", [0, 1, 4])
def test_staleness_stays_within_its_bound(start: Any, bound: int) -> None:
    running = start(Sgd(1.0), size=SIZE, staleness=bound)
    clients = [running.client() for _ in range(3)]
    in_threads(*(lambda c=c, n=n: apply_all(c, updates(30, seed=n)) for n, c in enumerate(clients)))
    assert sum(running.arbiter.histogram.values()) == 90
    assert max(running.arbiter.histogram) <= bound


def test_a_read_under_bound_0_sees_all_updates_before_it(start: Any) -> None:
    running = start(Sgd(1.0), size=1, servers=1, replicas=False, staleness=0)
    clients, seen = [running.client() for _ in range(3)], []

    def count(client: Client) -> None:
        for _ in range(20):
            reading = client.read(np.zeros(1, np.int64))
            seen.append(float(client.wait(reading)[0]))
            client.push(reading, np.ones(1, np.float32))
        client.flush()

    in_threads(*(lambda c=c: count(c) for c in clients))
    assert sorted(seen) == sorted(-float(number) for number in range(60))


def test_a_worker_that_does_not_finish_is_named_to_those_who_wait(start: Any) -> None:
    running = start(Sgd(1.0), size=SIZE, staleness=1, limits=Limits(step_s=0.3))
    slow, fast = running.client(name=77), running.client()
    reading = slow.read(np.arange(5))
    slow.wait(reading)
    with pytest.raises(DeadlineError, match=r"waited 0\.3 s for the others: worker 77 does not finish its batch"):
        apply_all(fast, updates(5))


def test_a_wait_can_be_aborted(start: Any) -> None:
    running, reason = start(Sgd(1.0), size=SIZE, staleness=0), list[str]()
    slow = running.client()
    slow.wait(slow.read(np.arange(5)))
    told = Client(running.arbiter.address, running.token, running.layout, aborted=lambda: "".join(reason))
    with told:
        threading.Timer(0.1, reason.append, ("another rank has failed",)).start()
        with pytest.raises(GangError, match="left the parameter servers: another rank has failed"):
            told.wait(told.read(np.arange(5)))


def test_a_worker_that_dies_holds_nobody_up(start: Any) -> None:
    running = start(Sgd(1.0), size=SIZE, staleness=1)
    with Client(running.arbiter.address, running.token, running.layout) as dying:
        dying.wait(dying.read(np.arange(5)))
        waiting = running.client()
        waiting.wait(waiting.read(np.arange(5)))
    apply_all(running.client(), updates(0))


def test_a_snapshot_is_between_two_updates_and_restores_to_the_same_weights(start: Any) -> None:
    # Every update adds 1 to all weights: a state in the midst of one would show two values.
    running = start(Adagrad(1.0), size=SIZE, servers=2)
    writer, reader, places = running.client(), running.client(), np.arange(SIZE)
    over, snapshots = threading.Event(), []
    apply_all(writer, iter([(places, np.ones(SIZE, np.float32))]))

    def write() -> None:
        while not over.is_set():
            reading = writer.read(places)
            writer.wait(reading)
            writer.push(reading, np.ones(SIZE, np.float32))
        writer.flush()

    def look() -> None:
        try:
            snapshots.extend(list(reader.snapshot()) for _ in range(5))
        finally:
            over.set()

    in_threads(write, look)
    for snapshot in snapshots:
        squares = np.concatenate([rows[:, 1] for _, _, rows in snapshot if len(rows)])
        assert len(squares) == SIZE
        assert len(set(squares.tolist())) == 1
    assert len(snapshots[-1]) == 2
    other = start(Adagrad(1.0), size=SIZE, servers=2)
    other_client = other.client()
    other_client.restore(snapshots[-1])
    again = list(other_client.snapshot())
    for (shard, keys, rows), (expected_shard, expected_keys, expected) in zip(again, snapshots[-1], strict=True):
        assert shard == expected_shard
        np.testing.assert_array_equal(keys, expected_keys)
        np.testing.assert_array_equal(rows, expected)


def test_a_snapshot_is_a_model_with_its_zeros_left_out(start: Any) -> None:
    rule = Ftrl(0.1, l1=0.5)
    running = start(rule, size=SIZE, servers=3, free=(3,))
    client, layout = running.client(), running.layout
    places = np.arange(SIZE)
    gradient = np.random.default_rng(0).normal(size=SIZE).astype(np.float32)
    gradient[layout.place(np.array([3]))] = 0.1  # below l1: of any other key, a zero
    apply_all(client, iter([(places, gradient)]))
    keys, found = collect_weights(client.snapshot(), layout, rule, [3])
    dense = weights(client)[layout.place(np.arange(SIZE))]
    np.testing.assert_array_equal(keys, np.flatnonzero(dense))
    np.testing.assert_array_equal(found, dense[keys])
    assert 3 in keys
    assert len(keys) < 0.7 * SIZE  # of normal gradients 62 % are beyond 0.5


def rows(count: int, seed: int = 5) -> SparseBlock:
    rng = np.random.default_rng(seed)
    X = csr_matrix((rng.random((count, 20)) < 0.3).astype(np.float32) * rng.normal(size=(count, 20)), dtype=np.float32)
    truth = X @ np.linspace(-2, 2, 20) - 0.5
    return SparseBlock(X, (rng.random(count) < 1 / (1 + np.exp(-truth))).astype(np.float32), None)


@pytest.mark.slow
@pytest.mark.parametrize(("staleness", "workers"), [(0, 1), (None, 2), (1, 3), (3, 3)])
def test_workers_come_to_the_optimum(start: Any, staleness: int | None, workers: int) -> None:
    data, objective = rows(2000), Objective(Logistic(), 20, l2=0.01)
    running = start(Adagrad(0.3), size=objective.size, staleness=staleness, free=(20,))
    layout, done = running.layout, []

    def work(client: Client, number: int) -> None:
        mine = SparseBlock(data.X[number::workers], data.y[number::workers], None)
        epochs = (batch for _ in range(60) for batch in cut([mine], 500))
        train(client, layout, objective, epochs, staleness=staleness, on_batch=done.append)

    clients = [running.client() for _ in range(workers)]
    in_threads(*(lambda c=c, n=n: work(c, n) for n, c in enumerate(clients)))
    found = weights(clients[0], 21)[layout.place(np.arange(21))].astype(float)
    whole = prepare(data, layout, objective)
    keys = layout.keys(whole.places)

    def loss(w: np.ndarray) -> tuple[float, np.ndarray]:
        total, weight, gradient = evaluate(whole, w[keys].astype(np.float32), objective)
        scattered = np.zeros(21)
        scattered[keys] = gradient
        return total / weight + 0.005 * float(w[:20] @ w[:20]), scattered

    best = minimize(loss, np.zeros(21), jac=True, method="L-BFGS-B")
    # Steps of Adagrad after 240 updates and more are some 0.01 long; the excess loss is the sum of their squares.
    assert loss(found)[0] < best.fun + 5e-3
    assert loss(found)[0] < loss(np.zeros(21))[0] - 0.1
    assert sum(each.rows for each in done) == 2000 * 60
    assert sorted(each.turn for each in done) == list(range(len(done)))


def test_a_worker_leaves_when_asked_with_everything_pushed(start: Any) -> None:
    running, done = start(Sgd(0.1), size=21), list[Done]()
    objective, client = Objective(Logistic(), 20), running.client()
    batches = cut([rows(1000)], 10)
    train(
        client, running.layout, objective, batches, staleness=None, on_batch=done.append,
        stop_requested=lambda: len(done) == 3,
    )  # fmt: skip
    assert len(done) == 4  # one was read ahead
    assert sum(running.arbiter.histogram.values()) == 4


def test_a_loss_that_is_not_finite_ends_the_training(start: Any) -> None:
    running = start(Sgd(0.1), size=21)
    data = rows(10)
    data.X.data[3] = np.inf
    with np.errstate(invalid="ignore"), pytest.raises(TrainingError, match="expected a finite loss"):
        train(
            running.client(), running.layout, Objective(Logistic(), 20), [data, data], staleness=None
        )  # fmt: skip


def test_a_server_refuses_a_gradient_that_is_not_finite(start: Any) -> None:
    client = start(Sgd(0.1), size=SIZE).client()
    reading = client.read(np.arange(3))
    client.wait(reading)
    client.push(reading, np.array([1, np.inf, 1], np.float32))
    with pytest.raises(DataError, match=r"shard \d of the weights: an update was refused"):
        client.flush()


def eventually(done: Callable[[], bool], meanwhile: Callable[[], object]) -> None:
    end = time.monotonic() + 30
    while not done():
        assert time.monotonic() < end
        meanwhile()


def test_a_replacement_is_filled_while_training_goes_on_and_may_lose_the_first_server(start: Any) -> None:
    running = start(Adagrad(0.1), size=SIZE, servers=1)
    client, alone, clock = running.client(), Shard(SIZE, Adagrad(0.1)), iter(range(10**6))

    def step(seed: int = 9) -> None:
        for places, gradient in updates(1, seed=seed):
            apply_all(client, iter([(places, gradient)]))
            alone.push(places.astype(np.int32), gradient, next(clock))

    for seed in range(20):
        step(seed)
    running.add_server()
    eventually(lambda: running.arbiter.view.shards[0].synced, step)
    running.leaving[0].set()
    eventually(lambda: running.arbiter.view.shards[0].primary == 1, step)
    step()
    np.testing.assert_array_equal(weights(client), alone.pull(np.arange(SIZE)))


def test_a_replacement_is_given_a_shard_of_the_server_that_serves_two(start: Any) -> None:
    running = start(Sgd(1.0), size=SIZE, servers=2)
    client, count = running.client(), 0

    def step() -> None:
        nonlocal count
        count += 1
        apply_all(client, iter([(np.arange(SIZE), np.ones(SIZE, np.float32))]))

    step()
    running.leaving[0].set()
    eventually(lambda: len(running.arbiter.view.servers) == 1, step)
    assert len({held.primary for held in running.arbiter.view.shards}) == 1
    running.add_server()
    eventually(lambda: len({held.primary for held in running.arbiter.view.shards}) == 2, step)
    eventually(lambda: all(held.synced for held in running.arbiter.view.shards), step)
    step()
    assert (weights(client) == -count).all()


def test_the_loss_of_a_shards_only_copy_is_told_to_all(start: Any) -> None:
    running = start(Sgd(0.1), size=SIZE, servers=2, replicas=False)
    client = running.client()
    apply_all(client, updates(3))
    running.leaving[0].set()
    with pytest.raises(GangError, match=r"shard \d of the weights was lost with server \d.*Resume from the last check"):
        eventually(lambda: False, lambda: apply_all(client, updates(1)))
    running.clients.close()
    running.decider.join(30)
    for thread in running.threads:
        thread.join(30)
    assert isinstance(running.failure, GangError)
    assert any(isinstance(end, GangError) for end in running.ends)


@pytest.mark.slow
def test_an_arbiter_that_was_busy_gives_nobody_up_and_leases_end_meanwhile(start: Any) -> None:
    running = start(Sgd(1.0), size=SIZE, limits=Limits(silence_s=0.8, lease_s=0.4, failover_s=1.0))
    client = running.client()
    apply_all(client, updates(3))
    before = weights(client)
    view = running.arbiter.view
    with running.busy:
        end = time.monotonic() + 1.5
        while time.monotonic() < end:  # beyond all limits
            client.poll()
        with pytest.raises(
            DeadlineError, match=r"waited 1 s for weights: server \d at .* does not answer for shard \d"
        ):
            weights(client)
    np.testing.assert_array_equal(weights(client), before)
    assert running.arbiter.view == view


def test_a_stranger_without_the_token_is_not_heard(start: Any) -> None:
    running = start(Sgd(0.1), size=SIZE)
    apply_all(running.client(), updates(1))
    server = next(iter(running.arbiter.view.servers.values()))
    for address in (running.arbiter.address, server):
        with socket.create_connection(address, timeout=10) as sock:
            nonce = wire.read_exactly(sock, wire.NONCE_BYTES)
            sock.sendall(wire.proof(b"another token", nonce) + bytes(100))
            with pytest.raises(ConnectionError):  # closed, or reset
                wire.read_exactly(sock, 1)
    apply_all(running.client(), updates(1))


def test_servers_that_do_not_come_are_a_failure_with_their_number() -> None:
    limits = Limits(start_s=0.2)
    with Arbiter("127.0.0.1", b"secret", servers=3, replicas=True, staleness=None, limits=limits) as arbiter:

        def wait() -> None:
            while True:
                arbiter.poll(0.05)

        with pytest.raises(DeadlineError, match=r"within 0\.2 s; expected 3 servers; found 0"):
            wait()


def test_a_client_whose_arbiter_ends_is_told() -> None:
    limits = Limits(start_s=30)
    arbiter = Arbiter("127.0.0.1", b"secret", servers=1, replicas=False, staleness=None, limits=limits)
    address = arbiter.address
    threading.Timer(0.2, arbiter.__exit__, (None, None, None)).start()
    with pytest.raises(MutiraoError, match="the arbiter of the parameter servers is gone"):
        Client(address, b"secret", Layout(10, 1), limits=limits)


def test_nothing_listens_where_the_arbiter_should_be() -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        address = sock.getsockname()
    with pytest.raises(GangError, match="the arbiter of the parameter servers is gone"):
        Client(address, b"secret", Layout(10, 1))


def test_the_owner_hears_of_every_update_and_of_none_twice(start: Any) -> None:
    notes: list[bytes] = []
    running = start(Sgd(0.1), size=SIZE, first_turn=7, on_commit=notes.append, on_pause=lambda: b"%d" % len(notes))
    client = running.client()
    turns = []
    for number, (places, gradient) in enumerate(updates(20)):
        reading = client.read(places)
        client.wait(reading)
        turns.append(client.push(reading, gradient, b"update %d" % number))
    said: list[bytes] = []
    pieces = list(client.snapshot(said.append))
    assert pieces
    assert said == [b"20"]
    assert sorted(notes) == sorted(b"update %d" % number for number in range(20))
    assert turns == list(range(7, 27))
    assert running.arbiter.committed == 27


def test_clients_hear_that_no_more_is_wanted_also_those_that_come_later(start: Any) -> None:
    running = start(Sgd(0.1), size=SIZE)
    first = running.client()
    assert not first.halted
    with running.busy:
        running.arbiter.halt()
    for client in (first, running.client()):
        end = time.monotonic() + 20
        while not client.halted and time.monotonic() < end:
            client.poll(0.05)
        assert client.halted
        apply_all(client, updates(1))  # what is under way may be finished


def test_a_snapshot_has_no_empty_pieces(start: Any) -> None:
    client = start(Ftrl(0.1), size=SIZE, servers=3).client()
    assert list(client.snapshot()) == []
