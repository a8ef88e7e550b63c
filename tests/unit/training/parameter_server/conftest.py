"""Parameter servers for tests: the arbiter and every server in a thread of this process."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest

from pipelines.errors import MutiraoError
from pipelines.training.gang.mesh import listen
from pipelines.training.strategies.parameter_server import Arbiter, Client, Layout, Limits, Rule, serve


@dataclass
class Running:
    """An arbiter and its servers; `ends` holds what each server's loop raised, None when it just ended."""

    arbiter: Arbiter
    layout: Layout
    rule: Rule
    token: bytes
    limits: Limits
    free: tuple[int, ...]
    stop: threading.Event = field(default_factory=threading.Event)
    failure: MutiraoError | None = None
    """What the arbiter's `poll` has raised."""
    decider: threading.Thread = field(init=False)
    busy: threading.Lock = field(default_factory=threading.Lock)
    """Hold it, and the arbiter is not polled."""
    ends: list[MutiraoError | None] = field(default_factory=list)
    threads: list[threading.Thread] = field(default_factory=list)
    leaving: list[threading.Event] = field(default_factory=list)
    """Set one to end the server that was started in its place."""
    clients: ExitStack = field(default_factory=ExitStack)

    def client(self, name: int | None = None) -> Client:
        """Connect another client, which is closed at the end."""
        client = Client(self.arbiter.address, self.token, self.layout, limits=self.limits, name=name)
        return self.clients.enter_context(client)

    def add_server(self) -> None:
        """Start one more server."""
        leaving = threading.Event()
        self.leaving.append(leaving)

        def run() -> None:
            try:
                serve(
                    listen("127.0.0.1"),
                    self.arbiter.address,
                    self.token,
                    self.layout,
                    self.rule,
                    free=self.free,
                    limits=self.limits,
                    stop_requested=leaving.is_set,
                )
                self.ends.append(None)
            except MutiraoError as error:
                self.ends.append(error)

        self.threads.append(threading.Thread(target=run))
        self.threads[-1].start()

    def decide(self) -> None:
        """Be the arbiter's thread."""
        try:
            while not self.stop.is_set():
                with self.busy:
                    self.arbiter.poll(0.02)
            self.arbiter.stop()
        except MutiraoError as error:
            self.failure = error


Start = Callable[..., Running]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start servers: ``start(rule, size=…, servers=…, replicas=…, staleness=…)``, and what an arbiter's owner says."""
    with ExitStack() as stack:

        def begin(
            rule: Rule,
            *,
            size: int = 1000,
            servers: int = 2,
            replicas: bool = True,
            staleness: int | None = None,
            limits: Limits | None = None,
            free: tuple[int, ...] = (),
            **owners: Any,
        ) -> Running:
            token, limits = secrets.token_bytes(16), limits or Limits()
            arbiter = stack.enter_context(
                Arbiter(
                    "127.0.0.1", token, servers=servers, replicas=replicas, staleness=staleness, limits=limits, **owners
                )
            )  # fmt: skip
            running = Running(arbiter, Layout(size, servers), rule, token, limits, free)
            running.decider = threading.Thread(target=running.decide)

            def end() -> None:
                running.clients.close()
                running.stop.set()
                for thread in (running.decider, *running.threads):
                    thread.join(30)
                    assert not thread.is_alive()

            stack.callback(end)
            running.decider.start()
            for _ in range(servers):
                running.add_server()
            return running

        yield begin
