"""Fits of a linear model one after the other, with other parameters each, by one gang that has loaded the rows once.

The gang lives in a thread of its own. Its rank 0 says that it is ready, with a ticket; the answer to that ticket is the
next fit. A gang that forms again asks again, and is given the fit that was at work.
"""

from __future__ import annotations

import base64
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from pipelines import codec
from pipelines.errors import GangError, InterruptedRunError, MutiraoError, TrainingError
from pipelines.training.config import TrainConfig
from pipelines.training.estimators.linear import Dealer, Reporter, assemble, identity, run_ranks, settle_identity
from pipelines.training.estimators.registry import FitRequest
from pipelines.training.events import Either
from pipelines.training.fit import Fit, Progress
from pipelines.training.gang.events import Introduce
from pipelines.training.story import Story

if TYPE_CHECKING:
    from pipelines.training.estimators.linear import LinearEstimator

logger = logging.getLogger(__name__)

PROGRAM = "pipelines.training.estimators.linear_series_rank:program"
_LOOK_S = 0.2
_END_S = 60.0

Message = dict[str, Any]


class LinearSeries:
    """See `pipelines.training.estimators.registry.Series`. Of one thread.

    The bits of each model are those of a fit alone: lanes, sums and steps are the same.
    """

    def __init__(self, estimator: LinearEstimator, request: FitRequest) -> None:
        self._estimator, self._request = estimator, request
        self._gang: _Gang | None = None
        self._fits = 0

    def fit(
        self,
        config: TrainConfig,
        *,
        checkpoint_url: str | None,
        report: Callable[[Progress], None],
        give_up: threading.Event,
    ) -> Fit:
        """See `pipelines.training.estimators.registry.Series.fit`."""
        request = replace(self._request, config=config, checkpoint_url=checkpoint_url)
        self._estimator.refuse(request)
        if self._gang is None or self._gang.ended:
            self._gang = _Gang(request)
        self._fits += 1
        hangs_on = identity(request, self._gang.lanes)
        settle_identity(request, hangs_on)
        order = {
            "fit": self._fits,
            "config": codec.to_plain(config),
            "checkpoint_url": checkpoint_url,
            "identity": codec.digest(codec.canonical(hangs_on)),
        }
        began = time.monotonic()
        story = self._gang.story
        before = len(story.resumptions)
        result = self._gang.fit(order, report, give_up)
        fit = assemble([result], time.monotonic() - began)
        facts = {"shared": True, "resumptions": story.resumptions[before:]}
        return replace(fit, summary={**fit.summary, "gang": facts})

    def close(self) -> None:
        """See `pipelines.training.estimators.registry.Series.close`."""
        if self._gang is not None:
            self._gang.close()


class _Gang:
    """One gang, from its start to its end, and the thread that attends to it."""

    def __init__(self, request: FitRequest) -> None:
        dealer = Dealer(request)
        self.lanes = dealer.lanes
        self.story = Story(request.happened)
        regroup = threading.Event()
        redeal = regroup if request.config.stragglers == "deal" else None
        self._reporter = Reporter(request.report, (request.data.rows or {}).get("train"), self.story, redeal)
        self._messages: SimpleQueue[Message] = SimpleQueue()
        self._words: SimpleQueue[Message] = SimpleQueue()
        self._stop = Either(request.stop)
        self._ready: str | None = None
        self._error: BaseException | None = None
        self.ended = False

        def tell(what: Callable[[Any], None], told: object) -> None:
            """Have the story told in the thread of the fits, between what ranks have said."""
            self._messages.put({"unit": "story", "tell": partial(what, told)})

        def deal(order: Introduce) -> list[Message]:
            tell(self.story.formed, order)
            return dealer.arguments(order.holds, self._reporter.speeds(order))

        def attend() -> None:
            try:
                run_ranks(
                    request,
                    PROGRAM,
                    dealer,
                    deal,
                    on_message=lambda rank, message: self._messages.put({**message, "rank": rank}),
                    on_wait=partial(tell, self.story.waits),
                    on_loss=partial(tell, self.story.lost),
                    regroup=regroup,
                    words=self._words,
                    share_workers=True,
                    stop=self._stop,
                )
            except BaseException as error:  # noqa: BLE001 - a thread's boundary: whoever waits for it raises it
                self._error = error
            self._messages.put({"unit": "ended"})

        self._thread = threading.Thread(target=attend, name=f"series of {request.config.estimator}", daemon=True)
        self._thread.start()

    def fit(self, order: Message, report: Callable[[Progress], None], give_up: threading.Event) -> bytes:
        """Have one fit made, and return what rank 0 has sent of it."""
        self._reporter.turn_to(report)
        given_up = False
        self._answer(order)
        while True:
            if give_up.is_set() and not given_up:
                given_up = True
                self._words.put({"give_up": order["fit"]})
            message = self._next()
            if message is None or message.get("fit", order["fit"]) != order["fit"]:
                continue
            match message:
                case {"unit": "waiting"}:
                    pass
                case {"unit": "story", "tell": tell}:
                    tell()
                case {"unit": "ready", "ticket": ticket}:
                    self._ready = ticket
                    self._answer(order)
                case {"unit": "trained", "result": text}:
                    return base64.b64decode(text)
                case {"unit": "failed", "fields": fields}:
                    what, on, expected, found, remedy = fields
                    raise TrainingError(what, on=on, expected=expected, found=found, remedy=remedy)
                case {"unit": "given_up"}:
                    raise InterruptedRunError("the fit was given up")
                case {"unit": "ended"}:
                    self.ended = True
                    raise self._error or GangError("the gang has ended before its fit")
                case _:
                    self._reporter(message.pop("rank"), message)

    def close(self) -> None:
        """End the gang: with a word when it waits for one, else by stopping it."""
        while not self.ended and self._ready is None and (message := self._next(0.0)) is not None:
            self._ready = message.get("ticket")
            self.ended = message["unit"] == "ended"
        if self._ready is not None:
            self._answer({"end": True})
        else:
            self._stop.set()
        self._thread.join(_END_S)
        self.ended = True
        if self._thread.is_alive():
            logger.warning("the ranks of a series have not left after %g s", _END_S)
        elif isinstance(self._error, MutiraoError) and not isinstance(self._error, InterruptedRunError):
            logger.warning("the ranks of a series did not end well: %s", self._error)

    def _answer(self, order: Message) -> None:
        """Give rank 0 what it has asked for, if it has."""
        if self._ready is not None:
            self._words.put({**order, "ticket": self._ready})
            self._ready = None

    def _next(self, timeout_s: float = _LOOK_S) -> Message | None:
        try:
            return self._messages.get(timeout=timeout_s) if timeout_s else self._messages.get_nowait()
        except Empty:
            return None
