"""The linear ranks' program with faults built in: a rank kills, stops or slows itself where it is told to, once each.

``MUTIRAO_TEST_FAULTS`` holds them as JSON: a list of ``{"phase", "nth", "rank", "what", "flag"}``. The flag is a file
that is made when the fault strikes, so that it does so once, whatever processes come after.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from pipelines.training import holding
from pipelines.training.estimators import linear_columns_checkpoints, linear_columns_rank, linear_rank, linear_watch
from pipelines.training.gang import RankContext
from pipelines.training.passes import Passes
from pipelines.training.reducers import ReproducibleSum
from pipelines.training.strategies.model_parallel import ColumnPasses, ScoreExchange
from pipelines.training.strategies.model_parallel_state import Parts
from pipelines.training.strategies.synchronous import Team

PHASES = ("start", "load", "step", "part", "collective", "share", "checkpoint", "close")
"""Before anything; in the middle of reading; before computing; before one lane's part of a batch; between computing
and reducing; while the state is given to the others; while it is written (before the state, or before the record that
commits it); with the result in hand."""


class Faults:
    """Counts how often this process comes by each phase, and strikes."""

    def __init__(self) -> None:
        self.todo: list[dict[str, Any]] = json.loads(os.environ["MUTIRAO_TEST_FAULTS"])
        self.seen: Counter[str] = Counter()
        self.rank = -1
        self.slow = ""

    def come_by(self, phase: str) -> None:
        self.seen[phase] += 1
        if phase == self.slow:
            time.sleep(0.02)
        for fault in self.todo:
            if (fault["phase"], fault["nth"], fault["rank"]) == (phase, self.seen[phase], self.rank):
                self.strike(fault)

    def strike(self, fault: dict[str, Any]) -> None:
        try:
            os.close(os.open(fault["flag"], os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        if fault["what"] == "slow":
            self.slow = fault["phase"]
        else:
            os.kill(os.getpid(), signal.SIGKILL if fault["what"] == "kill" else signal.SIGSTOP)


FAULTS: Faults | None = None


def hooked(function: Callable[..., Any], phase: str) -> Callable[..., Any]:
    def call(*args: Any, **options: Any) -> Any:
        assert FAULTS is not None
        FAULTS.come_by(phase)
        return function(*args, **options)

    return call


def with_hooked_rows(load: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, on_rows: Callable[[int], None], **options: Any) -> Any:
        return load(*args, on_rows=hooked(on_rows, "load"), **options)

    return call


def install() -> None:
    """Put the hooks in, once for each process."""
    for module, name in ((holding, "load_lane"), (linear_columns_rank, "load_pages")):
        setattr(module, name, with_hooked_rows(getattr(module, name)))
    for owner, name, phase in (
        (Passes, "gradient", "step"),
        (Passes, "hessian", "step"),
        (Passes, "batch", "step"),
        (Passes, "part", "part"),
        (ReproducibleSum, "sum", "collective"),
        (Team, "keep", "share"),
        (ColumnPasses, "gradient", "step"),
        (ColumnPasses, "batch", "step"),
        (ScoreExchange, "take", "collective"),
        (Parts, "share", "share"),
    ):
        setattr(owner, name, hooked(getattr(owner, name), phase))
    open_store = linear_watch.open_store

    def open_hooked(url: str) -> Any:
        store = open_store(url)
        object.__setattr__(store, "replace", hooked(store.replace, "checkpoint"))
        return store

    linear_watch.open_store = linear_columns_checkpoints.open_store = open_hooked  # type: ignore[assignment]


def program(context: RankContext) -> bytes:
    """Train as ranks do."""
    global FAULTS
    if FAULTS is None:
        FAULTS = Faults()
        install()
    FAULTS.rank = context.rank
    FAULTS.come_by("start")
    result = linear_rank.program(context)
    FAULTS.come_by("close")
    return result
