"""Where weights are, when ranks don't wait for each other: rank 0 deals work, takes gradients in, and makes updates.

Every worker (a thread of a rank) has a thread here that speaks with it, or calls in directly on rank 0; all meet under
one lock. Two courses of action share it: updates as they come, within a bound of staleness (`Clock`), and a clock
that ticks when every lane's gradient is there (`tick`), which is the bound of zero.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pipelines.errors import DeadlineError, TrainingError
from pipelines.training.gang import wire
from pipelines.training.gang.context import Array, Regroup
from pipelines.training.gang.mesh import listen
from pipelines.training.optimisers.first_order import refuse_divergence, stopped_falling
from pipelines.training.optimisers.rules import Rule
from pipelines.training.reproducible import Binned, finish, merge
from pipelines.training.strategies.asynchronous.course import Course, Unit
from pipelines.training.strategies.clock import Clock, Ticket
from pipelines.training.strategies.penalty import Penalty

logger = logging.getLogger(__name__)

_LOOK_S = 0.2


@dataclass(frozen=True)
class Work:
    """What a worker does next: units at some weights; or ``end``, ``stop`` or ``regroup``.

    `load` is a lane that its rank has not read yet, with its data as `TrainingData.to_plain` gives them.
    """

    kind: str
    units: tuple[Unit, ...] = ()
    weights: bytes = b""
    load: tuple[int, dict[str, Any]] | None = None


@dataclass
class _Tick:
    """One step of the clock: who has which lanes still to do, and what has come."""

    weights: bytes
    epoch: int
    step: int
    steps: int
    left: dict[int, list[int]]
    came: list[Binned] = field(default_factory=list)
    missing: int = 0


class Hub:
    """The weights, and what is to be done.

    Parameters
    ----------
    weights : ndarray of float64, shape (size,)
    memory : ndarray of float64, shape (memories, size)
    rule : Rule
    penalty : Penalty
    course : Course
        Owners are ranks.
    staleness : int
        The bound; 0 makes `tick` the only way.
    lane_data : callable
        Gives a lane's data to a rank that takes it over.
    step_s : float
        The longest wait of a worker for its turn, and of a tick for its lanes.
    leaving : callable
        Says whether the formation is over.
    """

    def __init__(
        self,
        weights: Array,
        memory: Array,
        rule: Rule,
        penalty: Penalty,
        course: Course,
        *,
        staleness: int,
        threads: Mapping[int, int],
        lane_data: Callable[[int], dict[str, Any]],
        step_s: float,
        leaving: Callable[[], bool],
    ) -> None:
        self.weights, self.memory, self._rule, self._penalty, self.course = weights, memory, rule, penalty, course
        self.clock = Clock(staleness)
        self._staleness, self._threads, self._lane_data = staleness, dict(threads), lane_data
        self._step_s, self._leaving = step_s, leaving
        self._lock = threading.Condition()
        self._word = ""
        self._failure: BaseException | None = None
        self._tickets = 0
        self._holds = {rank: {lane for lane, owner in course.owners.items() if owner == rank} for rank in threads}
        self._workers: set[tuple[int, int]] = set()
        self._tick: _Tick | None = None
        self._kept: tuple[int, int, bytes] = (0, 0, b"")  # version, step, state
        self.number, self.first = 0, np.nan
        self.losses: dict[int, list[float]] = {}
        self.history: list[float] = []
        self.residual, self.converged, self.tol = np.inf, False, 0.0
        self.units: dict[int, int] = dict.fromkeys(threads, 0)
        """How many units each rank has done in this formation."""

    # --- for workers -------------------------------------------------------------------------------------------------

    def take(self, rank: int, worker: int) -> tuple[Work, Ticket]:
        """Wait for what a worker does next, with the ticket for its update."""
        with self._lock:
            self._workers.add((rank, worker))
            while True:
                if self._word:
                    return Work(self._word), (0, 0)
                found = self._tick_work(rank) if self._staleness == 0 else self._course_work(rank)
                if found is not None:
                    return found
                self._lock.wait(_LOOK_S)

    def _course_work(self, rank: int) -> tuple[Work, Ticket] | None:
        if self.course.epoch == self.course.epochs or self.converged:
            return None
        ticket = rank, self._tickets
        if not self.clock.open(ticket):
            return None
        unit = self.course.next(rank)
        if unit is None:
            self.clock.close(ticket)
            return None
        self._tickets += 1
        load = None
        if unit.lane not in self._holds[rank]:
            load = unit.lane, self._lane_data(unit.lane)
            self._holds[rank].add(unit.lane)
            logger.info("lane %d goes over to rank %d, which has nothing else to do", unit.lane, rank)
        return Work("units", (unit,), self.weights.tobytes(), load), ticket

    def _tick_work(self, rank: int) -> tuple[Work, Ticket] | None:
        tick = self._tick
        if tick is None or not tick.left.get(rank):
            return None
        own = tick.left[rank]
        count = -(-len(own) // self._threads[rank])
        lanes, tick.left[rank] = own[:count], own[count:]
        units = tuple(Unit(tick.epoch, lane, tick.step, tick.steps) for lane in lanes)
        return Work("units", units, tick.weights), (rank, 0)

    def give(self, rank: int, work: Work, ticket: Ticket, payload: bytes) -> None:
        """Take in a worker's sums over its units; waits for the update's turn."""
        with self._lock:
            if self._staleness == 0:
                assert self._tick is not None
                self._tick.came.append(Binned.from_bytes(payload, len(self.weights) + 2))
                self._tick.missing -= len(work.units)
                self.units[rank] += len(work.units)
            else:
                self._await_turn(ticket)
                if not self._word and self.course.is_under_way(rank, work.units[0]):
                    self._update(rank, work.units[0], np.frombuffer(payload))
                self.clock.commit(ticket)
            self._lock.notify_all()

    def _await_turn(self, ticket: Ticket) -> None:
        end = time.monotonic() + self._step_s
        while self.clock.turn(ticket) is None:
            if time.monotonic() > end:
                slow = self.clock.slowest
                raise DeadlineError(
                    f"an update did not get its turn within {self._step_s:g} s",
                    on=f"rank {ticket[0]}",
                    found=f"all wait for rank {slow[0]}" if slow else "nobody is waited for",
                    remedy="See what keeps that rank, or allow more staleness.",
                )
            self._lock.wait(_LOOK_S)

    def _update(self, rank: int, unit: Unit, sums: Array) -> None:
        if sums[1] > 0:
            loss, gradient = self._penalty.mean(self.weights, sums)
            self._check(loss)
            self._rule.update(self.weights, self.memory, gradient, self.number)
            self.residual = float(np.abs(gradient).max(initial=0.0))
            total = self.losses.setdefault(unit.epoch, [0.0, 0.0])
            total[0] += loss * float(sums[1])
            total[1] += float(sums[1])
        self.number += 1
        self.units[rank] += 1
        if self.course.done(rank, unit):
            self._close_epochs()

    def _close_epochs(self) -> None:
        """Take in the losses of epochs that are done, and see whether they have stopped falling."""
        while len(self.history) < self.course.epoch:
            total = self.losses.get(len(self.history), [0.0, 0.0])
            self.history.append(total[0] / max(total[1], 1e-300))
        self.converged = stopped_falling(self.history, self.tol)

    def _check(self, loss: float) -> None:
        if np.isnan(self.first):
            self.first = loss
        remedy = f"Use a smaller learning_rate than {self._rule.learning_rate:g}, or less staleness."
        refuse_divergence(loss, self.first, f"update {self.number + 1}", remedy)

    def heard(self, rank: int, worker: int) -> None:
        """Note that a worker has been told the word to leave."""
        with self._lock:
            self._workers.discard((rank, worker))
            self._lock.notify_all()

    def lose(self, rank: int, worker: int, error: BaseException | None) -> None:
        """Note that a worker is gone; an `error` of rank 0's own ends the training."""
        with self._lock:
            self._workers.discard((rank, worker))
            self.clock.leave(rank)
            self.course.drop(rank)
            self._failure = self._failure or error
            self._lock.notify_all()

    # --- for rank 0 --------------------------------------------------------------------------------------------------

    def wait(self, seconds: float) -> bool:
        """Wait for news; returns whether the course is done.

        Raises
        ------
        Regroup
            The formation is over.
        Exception
            What a worker of rank 0 has raised.
        """
        with self._lock:
            self._lock.wait(seconds)
            self._raise()
            return self.converged or self.course.epoch == self.course.epochs

    def tick(self, weights: Array, epoch: int, step: int, steps: int) -> Array:
        """Let the clock tick: return the sums of every lane's share of a step, to the bits of a synchronous one."""
        with self._lock:
            left: dict[int, list[int]] = {}
            for lane, owner in self.course.owners.items():
                left.setdefault(owner, []).append(lane)
            lanes = len(self.course.owners)
            self._tick = tick = _Tick(weights.tobytes(), epoch, step, steps, left, missing=lanes)
            self._lock.notify_all()
            end = time.monotonic() + self._step_s
            while tick.missing:
                self._lock.wait(_LOOK_S)
                self._raise()
                if time.monotonic() > end:
                    raise DeadlineError(
                        f"a step did not end within {self._step_s:g} s", found=f"{tick.missing} lanes are missing"
                    )  # fmt: skip
            self.clock.histogram[0] += 1
            self.number += 1
            return finish(merge(tick.came))

    def state(self) -> dict[str, Any]:
        """All that is needed to go on."""
        with self._lock:
            return {
                "weights": self.weights.copy(),
                "memory": self.memory.copy(),
                "number": self.number,
                "first": float(self.first),
                "losses": [[epoch, *total] for epoch, total in self.losses.items()],
                "history": list(self.history),
                "course": self.course.state(),
                "staleness": sorted(self.clock.histogram.items()),
            }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        self.weights[:] = state["weights"]
        self.memory[:] = state["memory"]
        self.number, self.first = int(state["number"]), float(state["first"])
        self.losses = {int(epoch): [loss, weight] for epoch, loss, weight in state["losses"]}
        self.history = [float(loss) for loss in state["history"]]
        self.course.restore(state["course"])
        self.clock.histogram.update({int(each): int(count) for each, count in state["staleness"]})

    def keep(self, step: int, state: bytes) -> None:
        """Give the other ranks a state, with their next work."""
        with self._lock:
            self._kept = self._kept[0] + 1, step, state

    def kept_since(self, version: int) -> tuple[int, int, bytes] | None:
        """Return the newest state that was given to keep, if it is newer than `version`."""
        with self._lock:
            return self._kept if self._kept[0] > version else None

    def dismiss(self, word: str, seconds: float = 10.0) -> None:
        """Tell all workers to leave; waits so long for them to hear it."""
        end = time.monotonic() + seconds
        with self._lock:
            self._word = word
            self._lock.notify_all()
            while self._workers and time.monotonic() < end and not self._leaving():
                self._lock.wait(_LOOK_S)

    def _raise(self) -> None:
        """Raise what ends the formation: an error of rank 0's own, or that a rank was lost."""
        if self._failure is not None:
            raise self._failure
        if self._leaving():
            raise Regroup


class Door:
    """Lets the workers of other ranks in: a listening socket, and a thread for each of them.

    Parameters
    ----------
    hub : Hub
    host : str
        Where to listen.
    token : bytes
        The workers' proof.
    """

    def __init__(self, hub: Hub, host: str, token: bytes, step_s: float) -> None:
        self._hub, self._token, self._step_s = hub, token, step_s
        self._listener = listen(host)
        self.address = host, int(self._listener.getsockname()[1])
        self._connections: list[wire.Connection] = []
        self._thread = threading.Thread(target=self._admit, daemon=True, name="door of the hub")
        self._thread.start()

    def __enter__(self) -> Door:
        return self

    def __exit__(self, *_: object) -> None:
        wire.close(self._listener)
        for connection in self._connections:
            connection.close()

    def _admit(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._speak, args=(sock,), daemon=True, name="worker of the hub").start()

    def _speak(self, sock: socket.socket) -> None:
        rank = worker = -1
        with suppress(OSError, wire.Malformed):
            wire.tune(sock)
            nonce = wire.new_nonce()
            sock.settimeout(5.0)
            sock.sendall(nonce)
            if not wire.proven(self._token, nonce, wire.read_exactly(sock, wire.PROOF_BYTES)):
                return
            sock.settimeout(None)
            connection = wire.Connection(sock)
            self._connections.append(connection)
            hello = self._hear(connection)[0]
            rank, worker = int(hello["rank"]), int(hello["worker"])
            try:
                self._serve(connection, rank, worker)
            except (DeadlineError, TrainingError) as error:
                self._hub.lose(rank, worker, error)
                # The cause is rank 0's to tell; a worker that only saw its connection end would blame rank 0.
                connection.send({"kind": "end", "units": [], "load": None})
            return
        if rank >= 0:
            self._hub.lose(rank, worker, None)

    def _serve(self, connection: wire.Connection, rank: int, worker: int) -> None:
        version = 0
        while True:
            work, ticket = self._hub.take(rank, worker)
            newer = self._hub.kept_since(version) if worker == 0 else None
            if newer is not None:
                version, step, state = newer
                connection.send({"kind": "keep", "step": step}, state)
            header = {"kind": work.kind, "units": work.units, "load": work.load}
            connection.send(header, work.weights)
            if work.kind != "units":
                self._hub.heard(rank, worker)
                return
            self._hub.give(rank, work, ticket, self._hear(connection)[1])

    def _hear(self, connection: wire.Connection) -> wire.Frame:
        end = time.monotonic() + self._step_s
        while time.monotonic() < end:
            frame = connection.receive(min(self._step_s, 5.0))
            if frame is not None:
                return frame
        raise ConnectionError("a worker has been silent for too long")
