"""A worker's loop: read the weights of the next batches while this one is computed, push, go on."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from pipelines.errors import TrainingError
from pipelines.training.blocks import SparseBlock
from pipelines.training.strategies.parameter_server.batch import Batch, Objective, evaluate, prepare
from pipelines.training.strategies.parameter_server.client import Client, Reading
from pipelines.training.strategies.parameter_server.layout import Layout

AHEAD = 1
"""Batches whose weights are asked for before the one that is computed is pushed."""


Note: TypeAlias = Callable[[float, float, int], bytes]


@dataclass(frozen=True)
class Done:
    """One batch that was pushed: the update's number in the run, the sum of losses before it, and of rows' weights."""

    turn: int
    loss: float
    weight: float
    rows: int


def ahead(staleness: int | None) -> int:
    """How many batches to read ahead: a worker's own open tickets must fit into the bound."""
    return AHEAD if staleness is None else min(AHEAD, staleness)


def train(
    client: Client,
    layout: Layout,
    objective: Objective,
    batches: Iterable[SparseBlock],
    *,
    staleness: int | None,
    note: Note = lambda loss, weight, rows: b"",
    on_batch: Callable[[Done], object] = lambda done: None,
    stop_requested: Callable[[], bool] = lambda: False,
) -> None:
    """Go through `batches`, one update each; returns when all servers have all of them.

    Parameters
    ----------
    staleness : int or None
        The arbiter's bound.
    note : callable
        Called with the sum of losses, of rows' weights, and the number of rows of every batch, in their order; gives
        what the arbiter's owner is told about the update (`Client.push`).
    on_batch : callable
        Called after every push.
    stop_requested : callable
        Looked at after every push: leave early, with everything pushed that was begun.

    Raises
    ------
    TrainingError
        A loss is not finite.
    GangError, DeadlineError
        See `Client`.
    """
    waiting: deque[tuple[Batch, Reading]] = deque()
    depth = ahead(staleness)
    for block in batches:
        batch = prepare(block, layout, objective)
        waiting.append((batch, client.read(batch.places)))
        if len(waiting) > depth:
            on_batch(_step(client, objective, note, *waiting.popleft()))
        if stop_requested():
            break
    for batch, reading in waiting:
        on_batch(_step(client, objective, note, batch, reading))
    client.flush()


def cut(blocks: Iterable[SparseBlock], rows: int) -> Iterator[SparseBlock]:
    """Cut blocks into mini-batches of at most `rows` rows."""
    for block in blocks:
        for start in range(0, block.rows, rows):
            part = slice(start, start + rows)
            yield SparseBlock(block.X[part], block.y[part], None if block.weight is None else block.weight[part])


def _step(client: Client, objective: Objective, note: Note, batch: Batch, reading: Reading) -> Done:
    weights = client.wait(reading)
    client.poll()  # the next reading's ticket, if it has come, so that its weights travel meanwhile
    loss, total, gradient = evaluate(batch, weights, objective)
    if not math.isfinite(loss):
        raise TrainingError(
            "the training diverged",
            expected="a finite loss",
            found=f"{loss:g} in a batch of {batch.block.rows} rows",
            remedy="Use a smaller learning rate, and scale the features.",
        )
    return Done(client.push(reading, gradient, note(loss, total, batch.block.rows)), loss, total, batch.block.rows)
