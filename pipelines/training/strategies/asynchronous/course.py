"""Which part of which lane next, and by whom? Every part once an epoch, whatever happens to workers.

A lane's rows are cut into parts, a mini-batch each; a worker goes through its own lanes in turn, so that successive
mini-batches come from different shards. Who has nothing left in the epoch takes over a lane of the worker that has most
left, and keeps it: so a slow worker ends up with as few lanes as it can serve. A lane may be one epoch ahead of the
slowest, so that nobody waits at an epoch's end for a part that is under way.

No input or output: requests in, units of work out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Unit(NamedTuple):
    """A mini-batch: part `part` of the `parts` that a lane is cut into, in an epoch."""

    epoch: int
    lane: int
    part: int
    parts: int


@dataclass
class _Lane:
    parts: int
    epoch: int = 0
    following: int = 0
    again: list[tuple[int, int]] = field(default_factory=list)
    """(epoch, part) that were dealt, and were not done."""

    def left(self, epoch: int) -> int:
        """Parts up to the end of an epoch."""
        behind = sum(each <= epoch for each, _ in self.again)
        return behind + max(0, (epoch - self.epoch + 1) * self.parts - self.following)

    def take(self) -> tuple[int, int]:
        if self.again:
            return self.again.pop(0)
        found = self.epoch, self.following
        self.following += 1
        if self.following == self.parts:
            self.epoch, self.following = self.epoch + 1, 0
        return found

    @property
    def at(self) -> tuple[int, float]:
        """How far it is."""
        if self.again:
            return self.again[0][0], self.again[0][1] / self.parts
        return self.epoch, self.following / self.parts


class Course:
    """The way through all epochs.

    Parameters
    ----------
    parts : mapping of int to int
        How many parts each lane is cut into; 0 for a lane without rows.
    epochs : int
    owners : mapping of int to int
        Which worker has each lane.
    """

    def __init__(self, parts: Mapping[int, int], epochs: int, owners: Mapping[int, int]) -> None:
        self._lanes = {lane: _Lane(count) for lane, count in sorted(parts.items()) if count}
        self.epochs = epochs
        self.owners = {lane: owners[lane] for lane in self._lanes}
        self._under_way: dict[int, list[Unit]] = {}
        self._undone = dict.fromkeys(range(epochs), sum(lane.parts for lane in self._lanes.values()))

    @property
    def epoch(self) -> int:
        """The first epoch that is not done; `epochs` when all are."""
        return next((epoch for epoch, count in self._undone.items() if count), self.epochs)

    def next(self, worker: int) -> Unit | None:
        """Deal the next unit to a worker; None: there is nothing for it now.

        The unit's lane is the worker's own from then on, if it was not before.
        """
        epoch = self.epoch
        for until in (epoch, epoch + 1):
            lane = self._own(worker, until)
            if lane is None and until == epoch:
                lane = self._anothers(worker, epoch)
            if lane is not None:
                self.owners[lane] = worker
                unit = Unit(self._lanes[lane].at[0], lane, self._lanes[lane].take()[1], self._lanes[lane].parts)
                self._under_way.setdefault(worker, []).append(unit)
                return unit
        return None

    def is_under_way(self, worker: int, unit: Unit) -> bool:
        """Whether a worker has been dealt a unit, and was not given up since."""
        return unit in self._under_way.get(worker, ())

    def done(self, worker: int, unit: Unit) -> bool:
        """Note that a unit is done; returns whether its epoch is done with it."""
        self._under_way[worker].remove(unit)
        self._undone[unit.epoch] -= 1
        return not self._undone[unit.epoch]

    def drop(self, worker: int) -> None:
        """Take back what a worker has under way."""
        for unit in self._under_way.pop(worker, []):
            self._lanes[unit.lane].again.append((unit.epoch, unit.part))
            self._lanes[unit.lane].again.sort()

    def state(self) -> dict[str, Any]:
        """Say how far all lanes are, as JSON values: what is under way counts as not done."""
        again = {lane: list(each.again) for lane, each in self._lanes.items()}
        for units in self._under_way.values():
            for unit in units:
                again[unit.lane].append((unit.epoch, unit.part))
        return {
            "lanes": [[lane, each.epoch, each.following, sorted(again[lane])] for lane, each in self._lanes.items()]
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of a course of the same lanes and parts."""
        for number, epoch, following, again in state["lanes"]:
            lane = self._lanes[number]
            lane.epoch, lane.following = epoch, following
            lane.again = sorted((int(at), int(part)) for at, part in again)
        self._under_way = {}
        for epoch in self._undone:
            self._undone[epoch] = sum(self._undone_of(lane, epoch) for lane in self._lanes.values())

    @staticmethod
    def _undone_of(lane: _Lane, epoch: int) -> int:
        ahead = 0 if epoch < lane.epoch else lane.parts - (lane.following if epoch == lane.epoch else 0)
        return ahead + sum(at == epoch for at, _ in lane.again)

    def _own(self, worker: int, epoch: int) -> int | None:
        """Return the worker's lane that is least far, among those with parts left."""
        own = (lane for lane, owner in self.owners.items() if owner == worker)
        return self._least_far(own, epoch)

    def _anothers(self, worker: int, epoch: int) -> int | None:
        """Return a lane of whoever has most left, if that is more than what it is about to do anyway."""
        epoch = min(epoch, self.epochs - 1)
        left: dict[int, int] = {}
        lanes: dict[int, list[int]] = {}
        for lane, owner in self.owners.items():
            count = self._lanes[lane].left(epoch)
            if owner != worker and count:
                left[owner] = left.get(owner, 0) + count
                lanes.setdefault(owner, []).append(lane)
        victim = max(left, key=lambda owner: (left[owner], -owner), default=None)
        if victim is None or (self._under_way.get(victim) and left[victim] < 2):
            return None
        return max(lanes[victim], key=lambda lane: (self._lanes[lane].left(epoch), -lane))

    def _least_far(self, lanes: Iterable[int], epoch: int) -> int | None:
        limit = min(epoch, self.epochs - 1)
        able = [lane for lane in lanes if self._lanes[lane].left(limit) > 0]
        return min(able, key=lambda lane: (self._lanes[lane].at, lane), default=None)
