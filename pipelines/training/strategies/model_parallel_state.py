"""Where is the state of a training that no rank has all of, and how does a new formation go on from it?

A *part* is one column block's share of an optimiser's state after a step, with all its numbers. Every rank holds the
parts of its own blocks, and, of the last time they were shared, those of its neighbour's. A step is there when the
parts of all blocks are, on whichever ranks: so losing one rank loses what came after the last sharing, and losing
neighbours at once takes the training back to its last checkpoint.

While parts are shared, those of the time before are kept, until it is certain that every rank has taken in the new
ones: the word after the next step comes from a rank that has seen all others go on.
"""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pipelines.training.gang import Collective
from pipelines.training.optimisers.oracle import State
from pipelines.training.state import decode_state, encode_state

_HEAD = struct.Struct("<QQ")


@dataclass
class Parts:
    """The parts that a rank holds: by step, then by block.

    Parameters
    ----------
    steps : dict of int to dict of int to bytes
    taken_at : dict of int to float
        When each step's were taken (of the rank's own clock).
    heard, heard_at : int, float
        The last step that work was done for, and when.
    """

    steps: dict[int, dict[int, bytes]] = field(default_factory=dict)
    taken_at: dict[int, float] = field(default_factory=dict)
    heard: int = -1
    heard_at: float = 0.0

    def hear(self, step: int) -> None:
        """Note that work for `step` is done."""
        self.heard, self.heard_at = step, time.monotonic()

    def keep(self, step: int, parts: Mapping[int, bytes]) -> None:
        """Keep parts of a step, beside those of it that are here."""
        self.steps.setdefault(step, {}).update(parts)
        self.taken_at.setdefault(step, time.monotonic())

    def forget_all_but(self, steps: Iterable[int]) -> None:
        """Give up the parts of other steps."""
        for step in set(self.steps) - set(steps):
            del self.steps[step], self.taken_at[step]

    def share(self, collective: Collective, step: int, own: Mapping[int, bytes]) -> None:
        """Give own parts to the next rank, and take in those of the one before. Called by all ranks."""
        self.keep(step, own)
        following = (collective.rank + 1) % collective.size
        payloads = [pack(own) if rank == following != collective.rank else b"" for rank in range(collective.size)]
        for payload in collective.alltoall(payloads):
            self.keep(step, unpack(payload))


@dataclass(frozen=True)
class Beginning:
    """Where a formation goes on: after `step`, from these blocks' parts (None: at the beginning).

    `lost_steps` were done after it and are done again, `lost_s` is how long they had taken. `stored` says that the
    parts come from a checkpoint on the store, and `saved_at` when it was saved (seconds since the epoch; rank 0 knows).
    """

    step: int
    parts: dict[int, bytes] | None
    lost_steps: int
    lost_s: float
    stored: bool = False
    saved_at: float = 0.0


def agree(collective: Collective, held: Parts, blocks: tuple[tuple[int, ...], ...], stored: int) -> Beginning | int:
    """Find the newest step whose parts are all here, and bring them to the ranks that need them. Called by all ranks.

    Parameters
    ----------
    blocks : tuple of tuple of int
        For each rank those that it hosts now.
    stored : int
        The step of the newest checkpoint on the store, as rank 0 knows it; -1 for none.

    Returns
    -------
    Beginning, or int
        The number of steps that are lost, when the checkpoint on the store is newer than what ranks hold.
    """
    word = {
        "steps": {str(step): list(parts) for step, parts in held.steps.items()},
        "ages": {str(step): max(0.0, held.heard_at - at) for step, at in held.taken_at.items()},
        "heard": held.heard,
        "stored": stored,
    }
    words = [json.loads(each) for each in collective.allgather(json.dumps(word).encode())]
    heard, on_store = max(each["heard"] for each in words), words[0]["stored"]
    step = _newest(words, sum(len(own) for own in blocks))
    if on_store > step:
        return max(0, heard - on_store)
    if step < 0:
        return Beginning(-1, None, max(0, heard), 0.0)
    givers = _givers(words, step)
    own = held.steps.get(step, {})
    mine = [number for number, rank in givers.items() if rank == collective.rank]
    payloads = [pack({number: own[number] for number in mine if number in wanted}) for wanted in blocks]
    found: dict[int, bytes] = {}
    for payload in collective.alltoall(payloads):
        found.update(unpack(payload))
    age = max(float(each["ages"].get(str(step), 0.0)) for each in words)
    return Beginning(step, found, max(0, heard - step), age)


def _newest(words: list[dict[str, Any]], blocks: int) -> int:
    """The newest step of which all blocks' parts are held by somebody, or -1."""
    steps = {step for each in words for step in each["steps"]}
    whole = [int(step) for step in steps if len({b for each in words for b in each["steps"].get(step, [])}) == blocks]
    return max(whole, default=-1)


def _givers(words: list[dict[str, Any]], step: int) -> dict[int, int]:
    """For each block the first rank that has its part."""
    found: dict[int, int] = {}
    for rank, each in enumerate(words):
        for number in each["steps"].get(str(step), []):
            found.setdefault(number, rank)
    return found


def cut_state(state: State, segments: Mapping[int, slice], size: int) -> dict[int, bytes]:
    """Cut a rank's state into its blocks' parts: arrays along their last axis, which has `size` elements."""
    return {
        number: encode_state(
            {
                name: np.ascontiguousarray(value[..., part])
                if isinstance(value, np.ndarray) and value.shape[-1:] == (size,)
                else value
                for name, value in state.items()
            }
        )
        for number, part in segments.items()
    }


def join_state(parts: Mapping[int, bytes], segments: Mapping[int, slice]) -> State:
    """Put a rank's state together again from its blocks' parts."""
    states = [decode_state(parts[number]) for number in segments]
    return {
        name: np.concatenate([each[name] for each in states], axis=-1) if isinstance(value, np.ndarray) else value
        for name, value in states[0].items()
    }


def pack(parts: Mapping[int, bytes]) -> bytes:
    """Write parts one behind the other."""
    return b"".join(piece for number, part in parts.items() for piece in (_HEAD.pack(number, len(part)), part))


def unpack(payload: bytes) -> dict[int, bytes]:
    """Read what `pack` has written."""
    found, at = {}, 0
    while at < len(payload):
        number, size = _HEAD.unpack_from(payload, at)
        at += _HEAD.size
        found[number] = payload[at : at + size]
        at += size
    return found
