"""What a rank does with parameter servers: host some, load its lanes, then read, compute and update without waiting."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from pipelines import codec
from pipelines.training.blocks import SparseBlock
from pipelines.training.config import ParameterServerConfig, TrainConfig
from pipelines.training.data import TrainingData
from pipelines.training.estimators.linear_setting import Job, Setting, make_setting
from pipelines.training.estimators.linear_watch import Telling
from pipelines.training.estimators.served_checkpoint import Saved, ServedCheckpoints
from pipelines.training.estimators.served_lanes import LaneBatch, batches, count_batches, measure_labels
from pipelines.training.estimators.served_ledger import Note
from pipelines.training.estimators.served_params import rule_of, strength
from pipelines.training.estimators.served_result import model_of
from pipelines.training.estimators.served_watch import ServedWatch
from pipelines.training.gang import RankContext, Regroup, StopRequested
from pipelines.training.holding import Holding
from pipelines.training.loading import Moments, own_rss_bytes, plan_room
from pipelines.training.reducers import ReproducibleSum
from pipelines.training.state import encode_state
from pipelines.training.strategies.parameter_server import Client, Layout, Limits, Objective, train
from pipelines.training.strategies.parameter_server.hosting import Hosting, Servers
from pipelines.training.strategies.parameter_server.rules import row_of

_SERVER_BYTES = 128 << 20
"""What a server's process takes beside its weights."""
_ROOM_FEATURES = 64
"""For the plan of memory: blocks of sparse rows are small, however many columns there are."""
_LEAVE_S = 5.0
"""For updates under way when the formation is left: longer than it takes to notice that a server is lost."""
_TRAFFIC = "traffic with parameter servers"


@dataclass(frozen=True)
class _Plan:
    """What the owner says to a rank in each formation.

    `positions`: of each lane the next batch, and later ones that are done. `begun`: all servers were there. `trained`:
    updates were made in this run. `saved`: the checkpoint to begin with.
    """

    positions: dict[int, tuple[int, list[int]]]
    begun: bool
    trained: bool
    saved: Saved | None


def program(context: RankContext) -> bytes:
    """Train; rank 0 returns the model, the others what they used."""
    arguments = context.arguments
    job = Job(
        data=TrainingData.from_plain(arguments["data"]),
        config=codec.from_plain(TrainConfig, arguments["config"]),
        lanes=dict(arguments["lanes"]),
        lanes_total=arguments["lanes_total"],
        checkpoint_url=arguments["checkpoint_url"],
        identity=arguments["identity"],
    )
    servers, plan = _servers(job, arguments["served"]), codec.from_plain(_Plan, arguments["served"]["plan"])
    hosting = Hosting.of(context)
    hosting.fill(context.collective, servers, begun=plan.begun)
    began, tell = time.monotonic(), Telling(context)
    held = _load(context, job, servers, tell)
    moments = _agree_on_moments(context, job, held)
    load_s = time.monotonic() - began
    setting = make_setting(job, moments)
    with _connect(context, servers) as client:
        try:
            if context.rank == 0 and not plan.trained:
                _begin(context, job, setting, client, servers, plan.saved)
            context.collective.barrier()
            result = _train(context, job, setting, moments, client, servers, hosting, held, plan)
        finally:
            came, went = context.kept.values.get(_TRAFFIC, (0, 0))
            context.kept.values[_TRAFFIC] = (came + client.traffic[0], went + client.traffic[1])
    came, went = context.kept.values[_TRAFFIC]
    used = {
        "rank": context.rank,
        "load_s": load_s,
        "memory_bytes": held.store.memory_bytes,
        "disk_bytes": held.store.disk_bytes,
        "pulled_bytes": came,
        "pushed_bytes": went,
        "servers_replaced": hosting.replaced,
    }
    return json.dumps(used).encode() if result is None else encode_state({**result, "rank": used})


def _servers(job: Job, plain: dict[str, Any]) -> Servers:
    host, port = plain["arbiter"]
    outputs = job.data.outputs
    first, size = job.data.features.width * outputs, (job.data.features.width + 1) * outputs
    free = tuple(range(first, size)) if job.params.fit_intercept else ()
    limits = Limits(**plain["limits"])
    return Servers(
        (host, port),
        bytes.fromhex(plain["token"]),
        Layout(size, plain["servers"]),
        rule_of(job.params),
        free,
        limits,
    )


def _load(context: RankContext, job: Job, servers: Servers, tell: Telling) -> Holding:
    limit = context.memory_bytes
    # A rank that hosts none now may have to later.
    free = None if limit is None else limit - servers.bytes_each - _SERVER_BYTES
    width = min(servers.layout.size, _ROOM_FEATURES) if job.data.features.sparse else servers.layout.size
    room = cache(lambda: plan_room(free, own_rss_bytes(), width, context.threads))
    held = Holding.of(context, room)
    held.load(context, job.data, job.lanes, room().in_flight_bytes, tell.loaded, measure_labels)
    rows = {lane: sum(block.rows for block in blocks) for lane, blocks in held.lanes.items()}
    counts = [[lane, count_batches(count, job.params.batch_rows)] for lane, count in rows.items()]
    context.report({"unit": "lanes", "batches": counts})
    return held


def _agree_on_moments(context: RankContext, job: Job, held: Holding) -> Moments:
    classes = len(job.data.target.classes)
    measured = np.array(list(held.measured.values())).reshape(len(held.measured), -1)
    total = ReproducibleSum(context.collective).sum(measured)
    everyones = context.collective.broadcast(None if total is None else total.tobytes())
    return Moments.of(np.frombuffer(everyones), classes, job.data.labels)


def _connect(context: RankContext, servers: Servers) -> Client:
    left_at: list[float] = []

    def aborted() -> str:
        if not context.leaving():
            return ""
        left_at.append(time.monotonic())
        return "the gang leaves" if left_at[-1] > left_at[0] + _LEAVE_S else ""

    return Client(servers.arbiter, servers.token, servers.layout, limits=servers.limits, aborted=aborted)


def _begin(
    context: RankContext, job: Job, setting: Setting, client: Client, servers: Servers, saved: Saved | None
) -> None:
    """Set the weights that the training begins with. May be done again as long as no update was made."""
    if saved is not None:
        client.restore(_checkpoints(job).pieces(saved, servers.layout, context.scratch))
    else:
        for free, start in zip(servers.free, setting.start, strict=False):
            shard, key = servers.layout.find(free)
            client.restore([(shard, np.array([key]), row_of(servers.rule, float(start)))])


def _checkpoints(job: Job) -> ServedCheckpoints:
    assert job.checkpoint_url is not None
    return ServedCheckpoints(job.checkpoint_url, job.identity, job.config.checkpoint.keep)


def _train(
    context: RankContext,
    job: Job,
    setting: Setting,
    moments: Moments,
    client: Client,
    servers: Servers,
    hosting: Hosting,
    held: Holding,
    plan: _Plan,
) -> dict[str, Any] | None:
    """Go through the lanes until no more updates are wanted; returns the result on rank 0.

    Raises
    ------
    Regroup, StopRequested
        With every update that was begun on the servers.
    """
    params, strategy = job.params, job.config.strategy
    assert isinstance(strategy, ParameterServerConfig)
    objective = Objective(setting.loss, job.data.features.width, strength(params, setting), params.fit_intercept)
    leads = context.rank == 0
    checkpoints = _checkpoints(job) if job.checkpoint_url and leads else None
    watch = ServedWatch(context, job, client, servers, hosting, checkpoints, setting.unit)

    def leaving() -> bool:
        return context.leaving() or (leads and context.regroup_requested())

    def stop() -> bool:
        return client.halted or context.stop_requested() or leaving()

    todo = batches(
        held.lanes,
        plan.positions,
        batch_rows=params.batch_rows,
        epochs=params.epochs,
        seed=job.config.random_state,
        class_weight=setting.class_weight,
    )
    blocks, note = _noted(todo)
    train(
        client, servers.layout, objective, blocks,
        staleness=strategy.staleness, note=note, on_batch=watch.pushed, stop_requested=stop,
    )  # fmt: skip
    # The gang ends a wait in which nobody makes progress; others may have more to do, however long it takes.
    while not stop():
        client.poll(0.1)
        watch.idle()
    if leaving():
        raise Regroup
    if b"done" not in context.collective.allgather(b"done" if client.halted else b"stopped"):
        if checkpoints is not None:
            watch.save()
            watch.finish()
        context.collective.barrier()
        raise StopRequested
    watch.finish()
    return model_of(job, setting, moments, client, servers) if leads else None


def _noted(todo: Iterator[LaneBatch]) -> tuple[Iterator[SparseBlock], Callable[[float, float, int], bytes]]:
    """Split batches into their rows, and what is noted when they are pushed, in the same order."""
    waiting: deque[LaneBatch] = deque()

    def blocks() -> Iterator[SparseBlock]:
        for batch in todo:
            waiting.append(batch)
            yield batch.block

    def note(loss: float, weight: float, rows: int) -> bytes:
        batch = waiting.popleft()
        return Note(batch.lane, batch.number, batch.batches, loss, weight, rows).pack()

    return blocks(), note
