"""What did a training that survives go through? Told as it happens, and summed up at its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from pipelines.training.gang import GangResult, Loss
from pipelines.training.gang.events import Introduce
from pipelines.training.gang.queue import Place
from pipelines.training.happenings import Happened, Happening, ranks_told, steps_told


class Story:
    """Turns what a gang and its ranks say into happenings. Used in the thread that runs the gang.

    Parameters
    ----------
    happened : callable
        Told everything.
    clock : callable
        Seconds, for the waits between formations.
    """

    def __init__(self, happened: Happened, clock: Callable[[], float] = time.monotonic) -> None:
        self._happened, self._clock = happened, clock
        self._since: float | None = None
        self._heard: float | None = None
        self._sizes: list[int] = []
        self._lost = False
        self.resumptions: list[dict[str, Any]] = []
        """For each formation that went on from something, or again from the beginning: from where, and at what cost."""

    def waits(self, place: Place) -> None:
        """The gang stands in line for workers."""
        self._since = self._since or self._clock()
        holders = [{"name": each.name, "workers": each.workers} for each in place.holders]
        data = {"position": place.position, "ahead": list(place.ahead), "holders": holders, "wanted": place.wanted}
        self._happened(Happening("waits", f"waits for workers: {place}", {**data, "free": place.free}))

    def spoke(self) -> None:
        """A rank has said something: the work goes on."""
        self._heard = self._clock()

    def formed(self, order: Introduce) -> None:
        """Ranks have met."""
        waited = 0.0 if self._since is None else self._clock() - self._since
        self._since = self._heard = None
        self._sizes.append(len(order.members))
        data = {"formation": order.formation, "ranks": len(order.members), "waited_s": round(waited, 3)}
        self._happened(Happening("formation", _met(len(order.members)), data))

    def lost(self, loss: Loss) -> None:
        """A rank was lost, and the gang goes on."""
        # The work stands still from the last word on: a stopped rank is lost seconds later.
        self._since, self._lost = self._since or self._heard or self._clock(), True
        why = loss.text.partition("\n")[0]
        it = "it " if why.startswith(("was ", "ended ")) else ""
        text = f"rank {loss.rank} on {loss.worker or 'a worker'} was lost: {it}{why}"
        self._happened(Happening("loss", text, asdict(loss)))

    def began(self, message: dict[str, Any]) -> None:
        """Rank 0 says from which step its formation goes on."""
        data = {name: value for name, value in message.items() if name != "unit"}
        if data["formation"] > 1 or data["stored"]:
            self.resumptions.append(data)
        size, before = self._sizes[-1], self._sizes[-2] if len(self._sizes) > 1 else 0
        self._happened(Happening("resumption", self._went_on(data, size, before), {**data, "ranks": size}))
        self._lost = False

    def _went_on(self, data: dict[str, Any], size: int, before: int) -> str:
        step, again = data["step"], data["lost_steps"]
        grown = size > before and not self._lost and data["formation"] > 1
        if data["formation"] == 1 and not data["stored"]:
            return f"the training begins with {ranks_told(size)}"
        if data["formation"] == 1:
            who = f"the training goes on with {ranks_told(size)}"
        elif grown:
            who = f"the training has grown from {before} to {ranks_told(size)}"
        elif size >= before:
            who = f"the training goes on with a replacement ({ranks_told(size)})"
        else:
            who = f"the training goes on with {ranks_told(size)}"
        where = f"from step {step:,}" + (" of its last checkpoint" if data["stored"] else "")
        cost = f"; {steps_told(again)} {'is' if again == 1 else 'are'} done again" if again else ""
        return f"{who} {where if step > 0 else 'from the beginning'}{cost}"

    def noticed(self, text: str) -> None:
        """A rank says something that a reader should know."""
        self._happened(Happening("notice", text))


def _met(ranks: int) -> str:
    return "1 rank is there" if ranks == 1 else f"{ranks} ranks have met"


def history(gang: GangResult, resumptions: Sequence[dict[str, Any]], slow: Mapping[int, float]) -> dict[str, Any]:
    """Sum up what a training went through: formations, losses, what was done again, and which ranks were slow."""
    again = [each for each in resumptions if each["formation"] > 1]
    return {
        "formations": gang.formations,
        "losses": [asdict(loss) for loss in gang.losses],
        "waits_s": [round(seconds, 3) for seconds in gang.waits_s],
        "resumptions": list(resumptions),
        "stragglers": {str(rank): round(ratio, 2) for rank, ratio in slow.items()},
        "lost_steps": sum(each["lost_steps"] for each in again),
        "lost_s": round(sum(each["lost_s"] for each in again) + sum(gang.waits_s), 3),
    }
