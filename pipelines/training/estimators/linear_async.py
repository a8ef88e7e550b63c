"""How do the ranks of a linear model train without waiting for each other? Rank 0 has the hub, all have workers."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipelines.training.batches import LaneStream
from pipelines.training.data import TrainingData
from pipelines.training.estimators.linear_setting import Job
from pipelines.training.estimators.linear_watch import Watching
from pipelines.training.gang import RankContext, Regroup, StopRequested
from pipelines.training.gang.context import Array
from pipelines.training.holding import Holding
from pipelines.training.loading import Room
from pipelines.training.optimisers import Outcome, Step
from pipelines.training.optimisers.first_order import Descent, descend
from pipelines.training.optimisers.oracle import State
from pipelines.training.passes import HEAD, Passes
from pipelines.training.reproducible import deposit
from pipelines.training.strategies.asynchronous import Course, Door, FarPort, HerePort, Hub, Port, Worker
from pipelines.training.strategies.penalty import Penalty

_WATCH_S = 0.05


@dataclass(frozen=True, eq=False)
class Ranks:
    """What each rank brings to an asynchronous training."""

    context: RankContext
    job: Job
    held: Holding
    room: Room
    passes: Passes
    streams: dict[int, LaneStream]
    staleness: int
    step_s: float

    def worker(self, ports: list[Port]) -> Worker:
        """Build this rank's workers."""
        guards = {number: threading.Lock() for number in self.streams}
        arrived = threading.Condition()
        shape = self.passes.loss.outputs, -1

        def wait_for(lane: int) -> None:
            """Wait until another worker of this rank has read a lane that came over."""
            with arrived:
                arrived.wait_for(lambda: lane in guards or self.context.leaving(), self.step_s)

        def compute(weights: Array, units: Any) -> bytes:
            rows = np.zeros((len(units), HEAD + weights.size))
            for unit, row in zip(units, rows, strict=True):
                wait_for(unit.lane)
                with guards[unit.lane]:
                    stream = self.streams[unit.lane]
                    self.passes.part(weights.reshape(shape), stream, unit.epoch, unit.part, unit.parts, row)
            return rows[0].tobytes() if self.staleness else deposit(rows).to_bytes()

        def load(number: int, plain: dict[str, Any]) -> None:
            data = TrainingData.from_plain(plain)
            blocks = self.held.take_over(self.context, data, number, self.room.in_flight_bytes)
            with arrived:
                self.streams[number] = LaneStream(number, blocks, self.job.config.random_state)
                guards[number] = threading.Lock()
                arrived.notify_all()

        return Worker(ports, compute, load, self.context.leaving)


def follow(ranks: Ranks) -> None:
    """Work until the hub says that the training is over. Raises ``StopRequested`` or ``Regroup`` when all leave."""
    context = ranks.context
    _tell_of_lanes(ranks)
    place = json.loads(context.collective.broadcast(None))
    address, token = (str(place["host"]), int(place["port"])), bytes.fromhex(place["token"])
    ports = [
        FarPort(
            address,
            token,
            context.rank,
            number,
            step_s=ranks.step_s,
            keep=ranks.held.keep,
            leaving=context.leaving,
        )
        for number in range(context.threads)
    ]
    try:
        ranks.worker(list(ports)).run()
    finally:
        for port in ports:
            port.close()


def lead(
    ranks: Ranks,
    every: Mapping[str, Any],
    penalty: Penalty,
    descent: Descent,
    l1: Array | None,
    steps: int,
    batch_rows: int,
    start: State,
    watch: Watching,
) -> tuple[Outcome, dict[str, Any]]:
    """Train; returns the outcome and what is worth knowing about the way.

    Parameters
    ----------
    every : mapping
        All data and all lanes: ``{"data": TrainingData.to_plain(), "lanes": places of each lane's shards}``.
    steps : int
        Steps of an epoch under a bound of 0.
    batch_rows : int
        Rows of a mini-batch.
    """
    context, size = ranks.context, len(penalty.penalised)
    rows, owners = _tell_of_lanes(ranks)
    clocked = ranks.staleness == 0
    parts = {lane: 1 if clocked else max(1, round(count / batch_rows)) for lane, count in rows.items() if count}
    if clocked:  # a lane without rows adds nothing, and its sums are waited for all the same
        parts = dict.fromkeys(rows, 1)
    rule = descent.made(steps if clocked else sum(parts.values()), l1)
    whole = TrainingData.from_plain(every["data"])
    hub = Hub(
        np.array(start["weights"], np.float64),
        np.zeros((rule.memories, size)),
        rule,
        penalty,
        Course(parts, descent.epochs, owners),
        staleness=ranks.staleness,
        threads=dict.fromkeys(range(context.size), context.threads),
        lane_data=lambda lane: whole.subset(every["lanes"][lane]).to_plain(),
        step_s=ranks.step_s,
        leaving=context.leaving,
    )
    hub.tol = descent.tol
    if "course" in start:
        hub.restore(start)
    token = secrets.token_bytes(32)
    with Door(hub, context.host, token, ranks.step_s) as door:
        place = {"host": door.address[0], "port": door.address[1], "token": token.hex()}
        context.collective.broadcast(json.dumps(place).encode())
        own = threading.Thread(target=_work_here, args=(ranks, hub), daemon=True, name="own workers")
        own.start()
        watch.team = HubTeam(hub, watch.team.held, alone=context.size == 1)
        try:
            outcome = _ticking(hub, penalty, descent, l1, steps, start, watch) if clocked else _coming(hub, watch)
        finally:
            hub.dismiss("end")
        own.join(timeout=10)
    told: dict[str, Any] = {
        "staleness": {str(each): count for each, count in sorted(hub.clock.histogram.items())},
        "units_by_rank": [hub.units[rank] for rank in range(context.size)],
        "updates": hub.number,
    }
    return outcome, told


def _coming(hub: Hub, watch: Watching) -> Outcome:
    """Let updates come until the course is done."""
    number, over = -1, False
    while not over:
        over = hub.wait(_WATCH_S)
        if hub.number != number or over:
            number = hub.number
            losses = list(hub.losses.get(hub.course.epoch, hub.losses.get(hub.course.epoch - 1, [0.0, 1.0])))
            mean = losses[0] / max(losses[1], 1e-300)
            watch(Step(number, mean, hub.residual, {"epoch": float(hub.course.epoch)}), hub.state)
    reason = "tolerance" if hub.converged else "max_iter"
    last = hub.history[-1] if hub.history else np.nan
    return Outcome(hub.weights, last, hub.residual, hub.number, reason, hub.converged, tuple(hub.history))


def _ticking(
    hub: Hub, penalty: Penalty, descent: Descent, l1: Array | None, steps: int, start: State, watch: Watching
) -> Outcome:
    """Let the clock tick for every step of the optimiser."""

    class Ticks:
        size = len(penalty.penalised)
        penalised = penalty.penalised
        steps_per_epoch = steps

        def __init__(self) -> None:
            self.l1 = 0.0 if l1 is None else float(l1.max())

        def batch(self, weights: Array, epoch: int, step: int) -> tuple[float, Array]:
            return penalty.mean(weights, hub.tick(weights, epoch, step, steps))

    return descend(Ticks(), start, watch, descent)


class HubTeam:
    """What `Watching` needs of a team, by way of the hub."""

    keeps_lanes = False

    def __init__(self, hub: Hub, held: Holding, *, alone: bool) -> None:
        self._hub, self.held, self.alone = hub, held, alone
        self.number = 0

    def lane_state(self) -> dict[str, Any]:
        """Nothing is kept by lanes."""
        return {}

    def keep(self, step: int, state: bytes) -> None:
        """Give everybody the state, with their next work."""
        self._hub.keep(step, state)
        self.held.keep(step, state)

    def stop(self) -> None:
        """Make all leave for good."""
        self._hub.dismiss("stop")
        raise StopRequested

    def regroup(self) -> None:
        """Make all leave for a new formation."""
        self._hub.dismiss("regroup")
        raise Regroup


def _work_here(ranks: Ranks, hub: Hub) -> None:
    ports: list[Port] = [HerePort(hub, 0, number) for number in range(ranks.context.threads)]
    try:
        ranks.worker(ports).run()
    except (StopRequested, Regroup):
        pass  # the hub has said so, and its owner knows
    except Exception as error:  # noqa: BLE001 - a thread's boundary: the hub's owner raises it
        hub.lose(0, -1, error)


def _tell_of_lanes(ranks: Ranks) -> tuple[dict[int, int], dict[int, int]]:
    """Tell all ranks how many rows each lane has, and who has it. Called by all together."""
    own = {number: stream.rows for number, stream in ranks.streams.items()}
    told = [json.loads(each) for each in ranks.context.collective.allgather(json.dumps(own).encode())]
    rows = {int(lane): int(count) for each in told for lane, count in each.items()}
    owners = {int(lane): rank for rank, each in enumerate(told) for lane in each}
    return rows, owners
