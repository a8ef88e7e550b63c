"""What a rank of a linear model does that has some of its columns: load them, then run the optimiser on its part.

All ranks run the same optimiser, each on the weights of its own blocks. What the optimiser decides on (losses, inner
products) is computed by all together, to the same bits, so that all decide the same.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import pairwise
from typing import Any

import numpy as np

from pipelines import codec
from pipelines.errors import DataError, TrainingError
from pipelines.training.batches import LaneStream
from pipelines.training.blocks import BlockStore, Stored
from pipelines.training.certificate import Certificate, machines_of
from pipelines.training.columns import WEIGHT_BYTES, ColumnBlock, widest
from pipelines.training.config import TrainConfig
from pipelines.training.data import TrainingData
from pipelines.training.estimators.linear_columns_checkpoints import ColumnCheckpoints
from pipelines.training.estimators.linear_columns_ending import column_ending
from pipelines.training.estimators.linear_columns_watch import ColumnWatching, go_on
from pipelines.training.estimators.linear_ending import sharpening
from pipelines.training.estimators.linear_rank import minimise, result_of
from pipelines.training.estimators.linear_setting import (
    COARSE_VALUES,
    NEWTON_WEIGHTS,
    Job,
    Setting,
    bound_diagonal,
    choose_solver,
    make_setting,
)
from pipelines.training.estimators.linear_watch import Telling
from pipelines.training.gang import RankContext, Regroup
from pipelines.training.gang.context import Array
from pipelines.training.gang.process import give_back_memory
from pipelines.training.loading import Moments, Room, check_finite, measure, own_rss_bytes, plan_room
from pipelines.training.optimisers import Outcome
from pipelines.training.optimisers.oracle import State
from pipelines.training.pages import digest_of, load_pages
from pipelines.training.state import decode_state, encode_state
from pipelines.training.strategies.model_parallel import ColumnObjective, ColumnPasses, Layout, ScoreExchange
from pipelines.training.strategies.model_parallel_space import BlockSpace
from pipelines.training.strategies.model_parallel_state import Parts, join_state

logger = logging.getLogger(__name__)

_STREAMS = 32
"""A mini-batch takes its share of so many runs of pages, so that it has rows from all over the data."""


@dataclass
class ColumnHolding:
    """A rank's own, from the first formation to the last: its blocks' pages, and parts of the training's state.

    Parameters
    ----------
    store : BlockStore
        Where the pages are.
    pages : dict of int to list of Stored
        By block.
    measured : dict of int to ndarray
        `loading.measure` of each block.
    digests : dict of int to bytes
        `pages.digest_of` each block.
    parts : Parts
    """

    store: BlockStore
    pages: dict[int, list[Stored]] = field(default_factory=dict)
    measured: dict[int, Array] = field(default_factory=dict)
    digests: dict[int, bytes] = field(default_factory=dict)
    parts: Parts = field(default_factory=Parts)

    @classmethod
    def of(cls, context: RankContext, room: Callable[[], Room]) -> ColumnHolding:
        """Return what this process holds already, or begin to hold; `room` is asked once."""
        held = context.kept.values.get("columns")
        if not isinstance(held, cls):
            stack: ExitStack = context.kept.resources
            held = cls(stack.enter_context(BlockStore(context.scratch, room().blocks_bytes)))
            context.kept.values["columns"] = held
        return held

    def load(
        self,
        context: RankContext,
        data: TrainingData,
        blocks: Sequence[ColumnBlock],
        page_rows: int,
        in_flight_bytes: int,
        on_rows: Callable[[int], None],
    ) -> None:
        """Read the blocks that are not here yet, and give up those that others have now.

        Raises
        ------
        Regroup
            The formation was given up meanwhile; blocks that are read stay.
        """
        for number in set(self.pages) - {block.number for block in blocks}:
            self.store.release(self.pages.pop(number))
            del self.measured[number], self.digests[number]
        rows = sum(page.rows for pages in self.pages.values() for page in pages)

        def count(more: int) -> None:
            on_rows(rows + more)
            if context.leaving():
                raise Regroup

        for block in blocks:
            if block.number not in self.pages:
                pages = load_pages(
                    data, block, self.store, page_rows, in_flight_bytes, threads=context.threads, on_rows=count
                )
                self.measured[block.number] = measure(pages, block.width, len(data.target.classes), data.labels)
                self.digests[block.number] = digest_of(pages)
                self.pages[block.number] = pages
                rows += sum(page.rows for page in pages)
            context.kept.holds = tuple(self.pages)
        self.pages = {block.number: self.pages[block.number] for block in blocks}
        give_back_memory()
        memory, disk = self.store.memory_bytes >> 20, self.store.disk_bytes >> 20
        if disk:
            logger.info("%d MiB of columns are kept on disk, %d in memory", disk, memory)


def program(context: RankContext) -> bytes:
    """Train; rank 0 returns the model, the others what they used."""
    arguments = context.arguments
    job = Job(
        data=TrainingData.from_plain(arguments["data"]),
        config=codec.from_plain(TrainConfig, arguments["config"]),
        lanes={},
        lanes_total=arguments["blocks_total"],
        checkpoint_url=arguments["checkpoint_url"],
        identity=arguments["identity"],
    )
    blocks = [ColumnBlock.from_plain(each) for each in arguments["blocks"]]
    room = cache(lambda: _room(context, job, blocks))
    held = ColumnHolding.of(context, room)
    began, tell = time.monotonic(), Telling(context)
    held.load(context, job.data, blocks, arguments["page_rows"], room().in_flight_bytes, tell.loaded)
    load_s = time.monotonic() - began
    hosts, head = _agree_on_rows(context, held)
    moments = Moments.of(head, len(job.data.target.classes), job.data.labels)
    setting = make_setting(job, moments)
    layout = Layout(hosts, {block.number: block.width for block in blocks}, setting.loss.outputs)
    training = _Training(context, job, blocks, held, setting, layout, moments, tell)
    used = {
        "rank": context.rank,
        "blocks": list(layout.widths),
        "features": sum(layout.widths.values()),
        "load_s": load_s,
        "memory_bytes": held.store.memory_bytes,
        "disk_bytes": held.store.disk_bytes,
    }
    with closing(training.passes):
        checkpoints = ColumnCheckpoints(context, job) if job.checkpoint_url else None
        result = training.run(arguments["features"], checkpoints)
    used["exchange_s"] = training.exchange.seconds
    return json.dumps(used).encode() if result is None else encode_state({**result, "rank": used})


def _room(context: RankContext, job: Job, blocks: Sequence[ColumnBlock]) -> Room:
    """Share out the memory, of which the weights take a part that grows with the features."""
    state = WEIGHT_BYTES * job.data.outputs * sum(block.width for block in blocks)
    return plan_room(context.memory_bytes, own_rss_bytes() + state, widest(blocks), context.threads)


def _agree_on_rows(context: RankContext, held: ColumnHolding) -> tuple[tuple[tuple[int, ...], ...], Array]:
    """Tell each other who hosts what; all blocks must have the same rows.

    Returns
    -------
    hosts : tuple of tuple of int
        For each rank its blocks.
    head : ndarray
        `measure` of the first block, which all take the labels' part of.

    Raises
    ------
    DataError
        Ranks have read different rows.
    """
    own: dict[str, Any] = {"blocks": list(held.pages), "digests": [held.digests[each].hex() for each in held.pages]}
    own["rows"] = [sum(page.rows for page in pages) for pages in held.pages.values()]
    if 0 in held.pages:
        own["head"] = held.measured[0]
    everyones = [decode_state(each) for each in context.collective.allgather(encode_state(own))]
    seen = {
        (rows, told): (number, rank)
        for rank, each in enumerate(everyones)
        for number, rows, told in zip(each["blocks"], each["rows"], each["digests"], strict=True)
    }
    if len(seen) > 1:
        listed = [f"{rows} rows in block {number} on rank {rank}" for (rows, _), (number, rank) in seen.items()]
        raise DataError(
            "ranks have read different rows, or other labels or weights",
            on="training rows",
            expected="the same rows, in the same order, for all column blocks",
            found="; ".join(listed[:5]),
            remedy="See whether files are written to while they are read, and run again.",
        )
    head = next(each["head"] for each in everyones if "head" in each)
    return tuple(tuple(each["blocks"]) for each in everyones), head


class _Training:
    """A rank's part of one formation's training."""

    def __init__(
        self,
        context: RankContext,
        job: Job,
        blocks: Sequence[ColumnBlock],
        held: ColumnHolding,
        setting: Setting,
        layout: Layout,
        moments: Moments,
        tell: Telling,
    ) -> None:
        self._context, self._job, self._held, self._setting = context, job, held, setting
        self._layout, self._moments, self._tell = layout, moments, tell
        self._blocks, classes, labels = blocks, len(job.data.target.classes), job.data.labels
        self._own = {block.number: Moments.of(held.measured[block.number], classes, labels) for block in blocks}
        for block in blocks:
            check_finite(self._own[block.number], block.names)
        self.exchange = ScoreExchange(context.collective, layout.hosts, setting.loss)
        self.passes = ColumnPasses(
            layout,
            held.pages,
            self.exchange,
            labels=labels,
            class_weight=setting.class_weight,
            threads=context.threads,
            look=self._look,
        )

    def run(self, features: int, checkpoints: ColumnCheckpoints | None) -> dict[str, Any] | None:
        """Train, and on rank 0 put the model together."""
        job, layout, params, setting = self._job, self._layout, self._job.params, self._setting
        # More columns than Newton's method is for, whatever their number: it needs them all in one place.
        solver = choose_solver(params, setting, max(features, NEWTON_WEIGHTS + 1))
        space = BlockSpace(self._context.collective, layout.hosts, layout.segments)
        objective = ColumnObjective(
            self.passes,
            layout,
            space,
            {number: self._streams(pages) for number, pages in self._held.pages.items()},
            l2=setting.l2,
            l1=setting.l1,
            fit_intercept=params.fit_intercept,
            diagonal=np.concatenate([bound_diagonal(setting, self._own[number]) for number in layout.widths]),
            coarse_pays=self._moments.rows * features >= COARSE_VALUES,
            steps_per_epoch=max(1, round(self._moments.rows / params.batch_rows)),
            on_rows=lambda share: self._tell.passed(share * self._moments.rows),
        )
        certificate = Certificate("step")
        certificate.note_machines(self._context.formation, machines_of(self._context.collective))
        beginning = go_on(self._context, self._held.parts, layout.hosts, checkpoints)
        watch = ColumnWatching(
            self._context,
            job,
            self._held.parts,
            layout.segments,
            self._tell,
            unit=setting.unit,
            total=params.max_iter if solver in ("lbfgs", "owlqn") else None,
            beginning=beginning,
            checkpoints=checkpoints,
            certificate=certificate,
        )
        start = self._start()
        if beginning.parts is not None:
            start = watch.go_on(join_state(beginning.parts, layout.segments))
        began = time.monotonic()
        with watch.keeping():
            solve = sharpening(partial(minimise, job, space=space), setting.loss, self.exchange, space)
            outcome = solve(solver, objective, start, watch, params)
            if not np.isfinite([outcome.loss, space.largest(outcome.weights)]).all():
                raise TrainingError(
                    "the loss is not finite",
                    on=f"solver {solver}",
                    found=f"{outcome.loss} after {outcome.steps} steps",
                    remedy="Scale the features, or add l2.",
                )
            end = column_ending(
                objective, space, setting, outcome, params.tol, layout, self._blocks, self._context.collective
            )
            fit_s = time.monotonic() - began
            watch.finish()
            whole = self._gathered(outcome)
        if whole is None:
            return None
        weights, moments = whole
        outcome = replace(outcome, weights=weights)
        found = result_of(job, setting, moments, outcome, solver, watch, fit_s, self._tell.rows, end)
        summary = {name: value for name, value in found["summary"].items() if name != "lanes"}
        return {**found, "summary": {**summary, "blocks": job.lanes_total}}

    def _start(self) -> State:
        weights = np.zeros(self._layout.size)
        if self._job.params.fit_intercept and 0 in self._layout.widths:
            self._layout.matrix(weights, 0)[:, -1] = self._setting.start
        return {"weights": weights}

    def _streams(self, pages: Sequence[Stored]) -> list[LaneStream]:
        """Deal a block's pages into streams: the same for all blocks, since their pages have the same rows."""
        count = min(_STREAMS, len(pages))
        cuts = [len(pages) * at // max(count, 1) for at in range(count + 1)]
        runs = enumerate(pairwise(cuts))
        return [LaneStream(at, pages[first:stop], self._job.config.random_state) for at, (first, stop) in runs]

    def _gathered(self, outcome: Outcome) -> tuple[Array, Moments] | None:
        """Bring all weights, and what was seen of all features, to rank 0."""
        own = {f"w{number}": outcome.weights[part] for number, part in self._layout.segments.items()}
        own |= {f"x{number}": np.stack([each.x, each.x2]) for number, each in self._own.items()}
        payloads = self._context.collective.gather(encode_state(own))
        if payloads is None:
            return None
        found: dict[str, Array] = {}
        for payload in payloads:
            found |= decode_state(payload)
        outputs, numbers = self._layout.outputs, range(self._job.lanes_total)
        matrices = [found[f"w{number}"].reshape(outputs, -1) for number in numbers]
        weights = np.concatenate([*(each[:, :-1] for each in matrices), matrices[0][:, -1:]], axis=1)
        sums = np.concatenate([found[f"x{number}"] for number in numbers], axis=1)
        return weights.reshape(-1), replace(self._moments, x=sums[0], x2=sums[1])

    def _look(self) -> None:
        if self._context.leaving():
            raise Regroup
