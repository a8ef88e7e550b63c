"""Whose turn is it to be harmed? Carries out a plan of faults as the words of the ranks come in; no I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pipelines.training.gang.chaos import Fault
from pipelines.training.gang.events import Arrived, Committed, Event, Order, Spoke, Strike

SPARED = 3
"""Formations in a row that faults may break without a step between them: a gang gives up after `PATIENCE` of them, and
a fault is to be survived."""


@dataclass(frozen=True)
class Struck:
    """A fault that is about to strike: where (rank -1: the driver), and after how many words."""

    fault: Fault
    rank: int
    worker: str
    words: int

    def __str__(self) -> str:
        where = f" (rank {self.rank} on {self.worker or 'a worker'})" if self.rank >= 0 else ""
        return f"{self.fault.number}. {self.fault}{where}"

    def to_plain(self) -> dict[str, Any]:
        """Turn it into JSON values."""
        return {**asdict(self.fault), "rank": self.rank, "worker": self.worker, "words": self.words}


class Strikes:
    """Deals out the faults of a plan, in their order.

    Parameters
    ----------
    faults : sequence of Fault
        Those that have not struck yet.
    on_strike : callable
        Called before each strikes. A fault of the driver is the callee's to carry out.
    """

    def __init__(self, faults: Sequence[Fault], on_strike: Callable[[Struck], None]) -> None:
        self._left = list(faults)
        self._on_strike = on_strike
        self._words = self._heard = 0
        self._ending: set[int] = set()

    def hear(self, event: Event) -> None:
        """Count what ranks say."""
        if isinstance(event, Arrived | Spoke | Committed):
            self._words += 1
            self._heard += 1

    def due(self, ranks: Sequence[tuple[int, str]], broken: int) -> list[Order]:
        """Return the strike whose time has come, if any.

        Parameters
        ----------
        ranks : sequence of (int, str)
            Members and workers of those that work in a formation now, by rank; empty while there is none.
        broken : int
            Formations that have broken in a row.
        """
        if not self._left or self._heard < self._left[0].gap or broken >= SPARED:
            return []
        whole = [(rank, *each) for rank, each in enumerate(ranks) if each[0] not in self._ending]
        if not whole:
            return []
        fault = self._left.pop(0)
        self._heard = 0
        if fault.harm == "driver":
            self._on_strike(Struck(fault, -1, "", self._words))
            return []
        rank, member, worker = whole[int(fault.draw * len(whole))]
        if fault.harm != "slow":
            self._ending.add(member)
        self._on_strike(Struck(fault, rank, worker, self._words))
        return [Strike(member, fault.harm, fault.factor)]
