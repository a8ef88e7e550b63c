"""What a rank does in a series of fits: load its lanes once, then train what rank 0 is told, one after the other."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import Any

from pipelines import codec
from pipelines.errors import TrainingError
from pipelines.training.config import TrainConfig
from pipelines.training.estimators.linear_rank import Loaded, job_of, train
from pipelines.training.estimators.linear_watch import Checkpoints, GivenUp, Telling
from pipelines.training.gang import RankContext, Regroup, StopRequested

WAIT_S = 10.0
"""Between two words of rank 0 to the others, and to the coordinator, while there is nothing to train."""
_AT_WORK = "fit of the series"
_STOP, _REGROUP = "stop", "regroup"


def program(context: RankContext) -> bytes:
    """Train until there is nothing more to train. A new formation goes on with the fit that was at work."""
    base = job_of(context.arguments)
    loaded = Loaded.of(context, base, Telling(context))
    count = 0
    while (order := _next(context, f"{context.formation}.{count}")) is not None:
        count += 1
        number = order["fit"]
        if context.kept.values.get(_AT_WORK) != number:
            loaded.held.forget()
            Checkpoints.forget(context)
            context.kept.values[_AT_WORK] = number
        config = codec.from_plain(TrainConfig, order["config"])
        job = replace(base, config=config, checkpoint_url=order["checkpoint_url"], identity=order["identity"])
        told = _train(context, Telling(context, every=True, given_up=_GivingUp(context, number)), job, loaded)
        if context.rank == 0:
            context.report({**told, "fit": number})
    return b""


def _train(context: RankContext, tell: Telling, job: Any, loaded: Loaded) -> dict[str, Any]:
    try:
        result = train(context, job, loaded, tell)
    except GivenUp:
        return {"unit": "given_up"}
    except TrainingError as error:  # its own fault, which all ranks are done with: the next fit is another matter
        return {"unit": "failed", "fields": [str(field) for field in error.args]}
    return {"unit": "trained", "result": base64.b64encode(result).decode()}


def _next(context: RankContext, ticket: str) -> dict[str, Any] | None:
    """Wait for the next fit; None when there is none. Rank 0 asks, and lets nobody wait for long without a word."""
    if context.rank == 0:
        context.report({"unit": "ready", "ticket": ticket})
    while True:
        heard = _hear(context, ticket) if context.rank == 0 else None
        order = json.loads(context.collective.broadcast(None if context.rank else json.dumps(heard).encode()))
        match order:
            case None:
                continue
            case {"leave": "stop"}:
                raise StopRequested
            case {"leave": "regroup"}:
                raise Regroup
            case {"end": True}:
                return None
        return dict(order)


def _hear(context: RankContext, ticket: str) -> dict[str, Any] | None:
    """Hear, on rank 0, what answers this ticket; None when nothing was said for a while."""
    while True:
        word = context.hear(WAIT_S)
        if context.leaving():
            raise Regroup
        if context.stop_requested():
            return {"leave": _STOP}
        if word is not None and word.get("ticket") == ticket:
            return word
        if word is None and context.regroup_requested():
            return {"leave": _REGROUP}
        if word is None:
            context.report({"unit": "waiting"})
            return None


class _GivingUp:
    """Whether rank 0 has heard that nobody wants a fit any more."""

    def __init__(self, context: RankContext, number: int) -> None:
        self._context, self._number, self._said = context, number, False

    def __call__(self) -> bool:
        while not self._said and (word := self._context.hear(0.0)) is not None:
            self._said = word.get("give_up") == self._number
        return self._said
