"""What does a rank hold, and keep when its gang forms again? Its lanes' rows, and the newest state it was told of."""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from pipelines.training.blocks import BlockStore, Stored
from pipelines.training.checkpoint import Checkpoint
from pipelines.training.data import TrainingData
from pipelines.training.gang.context import Array, RankContext, Regroup
from pipelines.training.gang.process import give_back_memory
from pipelines.training.loading import Room, load_lane, measure

logger = logging.getLogger(__name__)

_HOLDING = "holding"
_WORD = struct.Struct("<qqqd")  # step of the newest state, of the checkpoint, last step heard of, age of the state


@dataclass(frozen=True)
class Snapshot:
    """A training's state after a step (`state.encode_state`), and when it was taken (of the rank's own clock)."""

    step: int
    state: bytes
    at: float


@dataclass
class Holding:
    """A rank's own, from the first formation to the last.

    Parameters
    ----------
    store : BlockStore
        Where the lanes' blocks are.
    lanes : dict of int to list of Stored
    measured : dict of int to ndarray
        `loading.measure` of each lane.
    newest : Snapshot, optional
    heard, heard_at : int, float
        The last step that work was done for, and when.
    """

    store: BlockStore
    lanes: dict[int, list[Stored]] = field(default_factory=dict)
    measured: dict[int, Array] = field(default_factory=dict)
    newest: Snapshot | None = None
    heard: int = -1
    heard_at: float = 0.0

    @classmethod
    def of(cls, context: RankContext, room: Callable[[], Room]) -> Holding:
        """Return what this process holds already, or begin to hold; `room` is asked once."""
        held = context.kept.values.get(_HOLDING)
        if not isinstance(held, cls):
            stack: ExitStack = context.kept.resources
            held = cls(stack.enter_context(BlockStore(context.scratch, room().blocks_bytes)))
            context.kept.values[_HOLDING] = held
        return held

    def load(
        self,
        context: RankContext,
        data: TrainingData,
        lanes: Mapping[int, Sequence[int]],
        in_flight_bytes: int,
        on_rows: Callable[[int], None],
        measured: Callable[[Sequence[Stored], int, int, int], Array] = measure,
    ) -> None:
        """Read the lanes that are not here yet, and give up those that others have now.

        Parameters
        ----------
        lanes : mapping of int to sequence of int
            This rank's lanes, each with the places of its shards in ``data.shards``.
        on_rows : callable
            Called with the number of rows so far, after every batch.
        measured : callable
            What `measured` holds of each lane.

        Raises
        ------
        Regroup
            The formation was given up meanwhile; lanes that are read stay.
        """
        for number in set(self.lanes) - set(lanes):
            self.store.release(self.lanes.pop(number))
            del self.measured[number]
        rows = sum(block.rows for blocks in self.lanes.values() for block in blocks)
        features, classes = data.features.width, len(data.target.classes)

        def count(more: int) -> None:
            on_rows(rows + more)
            if context.leaving():
                raise Regroup

        for number, places in lanes.items():
            if number not in self.lanes:
                shards = [data.shards.shards[place] for place in places]
                blocks = load_lane(data, shards, self.store, in_flight_bytes, threads=context.threads, on_rows=count)
                self.measured[number] = measured(blocks, features, classes, data.labels)
                self.lanes[number] = blocks
                rows += sum(block.rows for block in blocks)
            context.kept.holds = tuple(self.lanes)
        self.lanes = {number: self.lanes[number] for number in lanes}
        give_back_memory()
        memory, disk = self.store.memory_bytes >> 20, self.store.disk_bytes >> 20
        if disk:
            logger.info("%d MiB of rows are kept on disk, %d in memory", disk, memory)

    def take_over(self, context: RankContext, data: TrainingData, number: int, in_flight_bytes: int) -> list[Stored]:
        """Read one more lane, all of `data`, beside those that were dealt; returns its blocks."""
        if number not in self.lanes:
            shards = data.shards.shards
            blocks = load_lane(
                data, shards, self.store, in_flight_bytes, threads=context.threads, on_rows=lambda rows: None
            )  # fmt: skip
            self.measured[number] = measure(blocks, len(data.features.names), len(data.target.classes), data.labels)
            self.lanes[number] = blocks
            context.kept.holds = tuple(self.lanes)
        return self.lanes[number]

    def hear(self, step: int) -> None:
        """Note that work for `step` is done now."""
        self.heard, self.heard_at = step, time.monotonic()

    def forget(self) -> None:
        """Be done with one training, and ready for another on the same rows."""
        self.newest, self.heard, self.heard_at = None, -1, 0.0

    def keep(self, step: int, state: bytes) -> None:
        """Keep the training's newest state."""
        self.newest = Snapshot(step, state, time.monotonic())


@dataclass(frozen=True)
class Resumption:
    """Where a formation goes on: after `step`, from `state` (None: at the beginning).

    `lost_steps` were done after it and are done again, `lost_s` is how long they had taken. `stored` says that the
    state comes from a checkpoint on the store, and `saved_at` when that was saved (seconds since the epoch).
    """

    step: int
    state: bytes | None
    lost_steps: int
    lost_s: float
    stored: bool
    saved_at: float = 0.0


def resume(context: RankContext, held: Holding, checkpoint: Callable[[], Checkpoint | None]) -> Resumption:
    """Agree with the other ranks on the newest state that any of them, or the store, has. Called by all ranks.

    Parameters
    ----------
    checkpoint : callable
        The newest checkpoint on the store; asked on rank 0.
    """
    own = held.newest
    stored = checkpoint() if context.rank == 0 else None
    age = max(0.0, held.heard_at - own.at) if own is not None else 0.0
    word = _WORD.pack(-1 if own is None else own.step, -1 if stored is None else stored.step, held.heard, age)
    words = [_WORD.unpack(each) for each in context.collective.allgather(word)]
    best = max(range(context.size), key=lambda rank: (words[rank][0], -rank))
    step, on_store = words[best][0], words[0][1]
    heard = max(each[2] for each in words)
    if max(step, on_store) < 0:
        return Resumption(-1, None, max(0, heard), 0.0, stored=False)
    if on_store > step:
        state = context.collective.broadcast(None if stored is None else stored.payload, root=0)
        saved_at = 0.0 if stored is None else stored.at
        return Resumption(on_store, state, max(0, heard - on_store), 0.0, stored=True, saved_at=saved_at)
    state = context.collective.broadcast(own.state if own is not None and context.rank == best else None, root=best)
    return Resumption(step, state, max(0, heard - step), words[best][3], stored=False)
