"""A server that is killed or stopped costs neither weights nor the run: every update is applied once, to the bit."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines.errors import GangError, MutiraoError
from pipelines.training.strategies.parameter_server import Arbiter, Client, Ftrl, Layout, Limits, Sgd, serve
from pipelines.training.strategies.parameter_server.shard import Shard
from pipelines.training.strategies.parameter_server.views import View

pytestmark = pytest.mark.slow

SIZE = 20_000
RULES = {"ftrl": Ftrl(0.1, l1=0.01), "sgd": Sgd(1.0)}
LIMITS = Limits(silence_s=2.0, lease_s=1.0, failover_s=30.0)
WAIT_S = 60.0


class Servers:
    """An arbiter in a thread, and servers in processes of their own."""

    def __init__(self, rule: str, count: int, *, replicas: bool = True) -> None:
        self.layout, self.token, self.rule = Layout(SIZE, count), secrets.token_bytes(16), rule
        self._stack = ExitStack()
        self.views: list[View] = []
        self.arbiter = self._stack.enter_context(
            Arbiter(
                "127.0.0.1", self.token, servers=count, replicas=replicas, staleness=None, limits=LIMITS,
                on_view=self.views.append,
            )
        )  # fmt: skip
        self.failure: MutiraoError | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._decide)
        self._thread.start()
        self.processes: dict[int, subprocess.Popen[str]] = {}
        for number in range(count):
            self.add(number)

    def __enter__(self) -> Servers:
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(WAIT_S)
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(20)
        self._stack.close()

    def _decide(self) -> None:
        try:
            while not self._over.is_set():
                self.arbiter.poll(0.02)
            self.arbiter.stop()
        except MutiraoError as error:
            self.failure = error

    def add(self, number: int) -> None:
        """Start a server, and wait until the arbiter knows it: so its number is the one that is asked for."""
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        process = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, text=True, env=environment)
        assert process.stdin is not None
        setting = {"arbiter": self.arbiter.address, "token": self.token.hex(), "rule": self.rule}
        process.stdin.write(json.dumps(setting | {"shards": self.layout.shards}))
        process.stdin.close()
        self.processes[number] = process
        self.until(lambda: number in self.arbiter._servers)

    def client(self) -> Client:
        """Connect a client."""
        return self._stack.enter_context(Client(self.arbiter.address, self.token, self.layout, limits=LIMITS))

    def until(self, done: Callable[[], bool], meanwhile: Callable[[], object] = lambda: time.sleep(0.01)) -> None:
        """Wait, and do something meanwhile."""
        end = time.monotonic() + WAIT_S
        while not done():
            assert time.monotonic() < end, self.arbiter.view
            meanwhile()

    @property
    def whole(self) -> bool:
        """Whether every shard has its replica, and every server serves one."""
        view = self.arbiter.view
        assert view is not None
        return all(held.synced for held in view.shards) and len({held.primary for held in view.shards}) == len(
            view.shards
        )


class Reference:
    """A client and one process that does the same, update by update."""

    def __init__(self, servers: Servers) -> None:
        self.client, self.rng, self.clock = servers.client(), np.random.default_rng(0), 0
        self.alone = Shard(SIZE, RULES[servers.rule])

    def step(self) -> None:
        """Read, update; what is on its way stays on its way."""
        places = np.flatnonzero(self.rng.random(SIZE) < 0.05)
        gradient = self.rng.normal(size=len(places)).astype(np.float32)
        reading = self.client.read(places)
        self.client.wait(reading)
        self.client.push(reading, gradient)
        self.alone.push(places.astype(np.int32), gradient, self.clock)
        self.clock += 1

    def check(self) -> None:
        """Compare all weights, to the bit."""
        self.client.flush()
        np.testing.assert_array_equal(self.client.look(np.arange(SIZE)), self.alone.pull(np.arange(SIZE)))


FAULTS = [
    (servers, lost, word, step)
    for servers, lost in ((2, 0), (2, 1), (3, 2))
    for word, step in ((signal.SIGKILL, 7), (signal.SIGSTOP, 8))
]


@pytest.mark.parametrize(("count", "lost", "word", "step"), FAULTS)
def test_no_update_is_lost_or_doubled(count: int, lost: int, word: signal.Signals, step: int) -> None:
    with Servers("ftrl", count) as servers:
        reference = Reference(servers)
        for number in range(30):
            if number == step:
                servers.processes[lost].send_signal(word)
            reference.step()
        reference.check()
        view = servers.arbiter.view
        assert view is not None
        assert lost not in view.servers
        # A stopped server that goes on finds that it has been given up, serves nobody and ends.
        servers.processes[lost].send_signal(signal.SIGCONT)
        assert servers.processes[lost].wait(WAIT_S) != 0
        for _ in range(5):
            reference.step()
        reference.check()


@pytest.mark.parametrize("seed", [1, 2])
def test_servers_are_lost_and_replaced_again_and_again(seed: int) -> None:
    rng = np.random.default_rng(seed)
    with Servers("ftrl", 3) as servers:
        reference, newest = Reference(servers), 2
        for _ in range(3):
            alive = sorted(servers.arbiter.view.servers)  # type: ignore[union-attr]
            lost = int(rng.choice(alive))
            before = [each for each in servers.views if lost in each.servers][-1]
            killer = threading.Timer(rng.random() * 0.2, servers.processes[lost].kill)
            killer.start()
            for _ in range(int(rng.integers(5, 40))):
                reference.step()
            servers.until(lambda before=before: servers.arbiter.view is not before, reference.step)  # type: ignore[misc]
            newest += 1
            servers.add(newest)
            servers.until(lambda: servers.whole, reference.step)
            reference.check()


@pytest.mark.parametrize("word", [signal.SIGKILL, signal.SIGSTOP])
def test_updates_of_several_clients_are_each_applied_once(word: signal.Signals) -> None:
    # Sums of whole numbers are exact in any order.
    with Servers("sgd", 2) as servers:
        counts, failures = np.zeros(4, int), list[BaseException]()
        clients, over = [servers.client() for _ in range(4)], threading.Event()

        def work(number: int) -> None:
            try:
                places = np.arange(number, SIZE, 2)
                while not over.is_set():
                    reading = clients[number].read(places)
                    clients[number].wait(reading)
                    clients[number].push(reading, np.ones(len(places), np.float32))
                    counts[number] += 1
                clients[number].flush()
            except BaseException as error:  # noqa: BLE001 - told below
                failures.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        servers.until(lambda: counts.min() > 5)
        servers.processes[1].send_signal(word)
        servers.until(lambda: len(servers.arbiter.view.servers) == 1)  # type: ignore[union-attr]
        before = counts.copy()
        servers.until(lambda: bool((counts > before + 5).all()))
        over.set()
        for thread in threads:
            thread.join(WAIT_S)
        assert failures == []
        found = clients[0].look(np.arange(SIZE))
        expected = np.zeros(SIZE)
        for number in range(4):
            expected[number::2] -= counts[number]
        np.testing.assert_array_equal(found, expected)


def test_an_update_counts_only_when_the_replica_has_it_too() -> None:
    with Servers("sgd", 2) as servers:
        client, places = servers.client(), np.arange(10)  # all on shard 0, whose replica is on server 1
        for _ in range(2):
            reading = client.read(places)
            client.wait(reading)
            client.push(reading, np.ones(10, np.float32))
        client.flush()
        first = client.read(places)
        client.wait(first)
        servers.until(lambda: servers.arbiter.committed == 2)
        servers.processes[1].send_signal(signal.SIGSTOP)
        client.push(first, np.ones(10, np.float32))
        second = client.read(places)
        assert (client.wait(second) == -3).all()  # the primary has applied it
        client.push(second, np.ones(10, np.float32))  # its turn comes behind whatever was said to the arbiter before
        assert servers.arbiter.committed == 2
        client.flush()  # the primary goes on alone
        servers.until(lambda: servers.arbiter.committed == 4)


def test_without_replicas_the_loss_of_a_server_is_one_clear_error() -> None:
    with Servers("sgd", 2, replicas=False) as servers:
        reference = Reference(servers)
        reference.step()
        servers.processes[0].kill()
        with pytest.raises(GangError, match="shard 0 of the weights was lost with server 0"):
            servers.until(lambda: False, reference.step)
        reference.client.close()
        servers._thread.join(WAIT_S)
        assert isinstance(servers.failure, GangError)
        assert servers.processes[1].wait(WAIT_S) != 0


def main() -> None:
    """Be a server's process."""
    from pipelines.training.gang.mesh import listen

    setting: dict[str, Any] = json.loads(sys.stdin.read())
    host, port = setting["arbiter"]
    layout = Layout(SIZE, setting["shards"])
    try:
        serve(
            listen("127.0.0.1"), (host, port), bytes.fromhex(setting["token"]), layout, RULES[setting["rule"]],
            limits=LIMITS,
        )  # fmt: skip
    except GangError as error:
        print(error, file=sys.stderr, flush=True)
        sys.exit(3)


if __name__ == "__main__":
    main()
