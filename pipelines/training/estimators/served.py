"""Linear models on parameter servers: the owner of the run, with the arbiter and the account of what is done."""

from __future__ import annotations

import json
import logging
import secrets
import time
from contextlib import ExitStack
from dataclasses import asdict, replace
from typing import Any

from pipelines import codec
from pipelines.training.config import ParameterServerConfig
from pipelines.training.estimators.linear import Dealer, Reporter, run_ranks
from pipelines.training.estimators.linear_params import LinearParams
from pipelines.training.estimators.registry import FitRequest
from pipelines.training.estimators.served_checkpoint import Saved, ServedCheckpoints
from pipelines.training.estimators.served_ledger import Ledger
from pipelines.training.estimators.served_params import count_servers
from pipelines.training.fit import Fit, Progress
from pipelines.training.gang import GangResult
from pipelines.training.gang.events import Introduce
from pipelines.training.gang.launch import host_towards
from pipelines.training.state import decode_state
from pipelines.training.story import Story, history
from pipelines.training.strategies.parameter_server import Arbiter, Limits
from pipelines.training.strategies.parameter_server.desk import Desk
from pipelines.training.strategies.parameter_server.views import View

logger = logging.getLogger(__name__)

PROGRAM = "pipelines.training.estimators.served_rank:program"
_REPORT_S = 0.25
_ALONE_S = 30.0
"""Silence after which a server without a copy is given up: nobody could take over any earlier."""


def fit_served(request: FitRequest, params: LinearParams) -> Fit:
    """Train; see `pipelines.training.fit.fit`."""
    strategy = request.config.strategy
    assert isinstance(strategy, ParameterServerConfig)
    # How many servers there are does not change what is learned: a training may go on with others.
    alike = strategy.model_copy(update={"servers": None, "replicate": True})
    dealer = Dealer(replace(request, config=request.config.model_copy(update={"strategy": alike})))
    wanted = count_servers(strategy, dealer.ranks)
    ledger = Ledger(dealer.lanes, params.epochs, params.tol)
    saved = _checkpoint(request, dealer)
    if saved is not None:
        ledger.restore(saved.account)
        logger.info("training goes on from update %d", saved.update)
    began = time.monotonic()
    with ExitStack() as stack:
        owner = _Owner(request, strategy, wanted, ledger, saved, stack)

        story = Story(request.happened)

        def deal(order: Introduce) -> list[dict[str, Any]]:
            story.formed(order)
            arguments = dealer.arguments(order.holds)
            owner.open(len(order.holds))
            return [each | {"served": owner.words([lane for lane, _ in each["lanes"]])} for each in arguments]

        reporter = _Reporter(request, ledger, params.epochs, story)
        gang = run_ranks(
            request, PROGRAM, dealer, deal, on_message=reporter, on_wait=story.waits, on_loss=story.lost
        )  # fmt: skip
        summary = {**owner.summary(), **reporter.summary(gang)}
    return _assemble(gang, ledger, saved, summary, time.monotonic() - began)


def _checkpoint(request: FitRequest, dealer: Dealer) -> Saved | None:
    if request.checkpoint_url is None:
        return None
    identity = codec.digest(codec.canonical(dealer.identity))
    return ServedCheckpoints(request.checkpoint_url, identity, request.config.checkpoint.keep).latest()


class _Owner:
    """The arbiter, from the first formation on, and what ranks are told about it."""

    def __init__(
        self,
        request: FitRequest,
        strategy: ParameterServerConfig,
        wanted: int,
        ledger: Ledger,
        saved: Saved | None,
        stack: ExitStack,
    ) -> None:
        self._strategy, self._wanted, self._ledger, self._saved, self._stack = strategy, wanted, ledger, saved, stack
        self._host = "127.0.0.1" if request.client is None else host_towards(request.client)
        self._replicas = strategy.replicate and wanted > 1
        # Servers come with the ranks; ranks that do not come are the gang's to give up.
        self._limits = Limits(start_s=2 * request.deadlines.start_s, step_s=request.deadlines.step_s)
        self._token = secrets.token_bytes(16)
        self._arbiter: Arbiter | None = None
        self._desk: Desk | None = None
        self._seen: set[int] = set()
        self._lost = 0

    def open(self, ranks: int) -> None:
        """Begin with the first formation, whose size is known then: there may be fewer workers than were asked for."""
        if self._arbiter is not None:
            return
        if self._replicas:
            self._wanted = min(self._wanted, ranks)
            self._replicas = self._wanted > 1
        if not self._replicas:
            self._limits = replace(self._limits, silence_s=_ALONE_S, failover_s=2 * _ALONE_S)
        self._arbiter = Arbiter(
            self._host,
            self._token,
            servers=self._wanted,
            replicas=self._replicas,
            staleness=self._strategy.staleness,
            limits=self._limits,
            first_turn=self._ledger.updates,
            on_view=self._note_view,
            on_commit=self._ledger.take,
            on_pause=lambda: json.dumps(self._ledger.to_plain()).encode(),
        )
        self._desk = self._stack.enter_context(Desk(self._arbiter, lambda: self._ledger.over))

    def words(self, lanes: list[int]) -> dict[str, Any]:
        """Return what a rank of a new formation is told."""
        assert self._arbiter is not None
        assert self._desk is not None
        self._desk.settle()
        return {
            "arbiter": self._arbiter.address,
            "token": self._token.hex(),
            "servers": self._wanted,
            "limits": asdict(self._limits),
            "plan": {
                "positions": {str(lane): at for lane, at in self._ledger.positions(lanes).items()},
                "begun": self._arbiter.view is not None,
                "trained": self._ledger.begun,
                "saved": None if self._saved is None else codec.to_plain(self._saved),
            },
        }

    def summary(self) -> dict[str, Any]:
        """Tell what became of the servers and of the updates."""
        arbiter = self._arbiter
        assert arbiter is not None
        return {
            "servers": {"count": self._wanted, "replicas": self._replicas, "lost": self._lost},
            "staleness": {str(each): count for each, count in sorted(arbiter.histogram.items())},
            # Updates that had their turn and were not heard of any more: their batches were done again.
            "repeated_batches": arbiter.committed - self._ledger.updates,
        }

    def _note_view(self, view: View) -> None:
        if not self._ledger.over:  # servers end with their ranks
            self._lost += len(self._seen - set(view.servers))
        self._seen = set(view.servers)


class _Reporter:
    """Turns what ranks say into progress."""

    def __init__(self, request: FitRequest, ledger: Ledger, epochs: int, story: Story) -> None:
        self._story = story
        self._report, self._ledger, self._epochs = request.report, ledger, epochs
        self._loading = Reporter(request.report, (request.data.rows or {}).get("train"), story, None)
        self._next = 0.0
        self._saved: list[float] = []

    def __call__(self, rank: int, message: dict[str, Any]) -> None:
        self._story.spoke()
        match message["unit"]:
            case "load":
                self._loading(rank, message)
            case "notice":
                self._story.noticed(str(message["text"]))
            case "lanes":
                for lane, count in message["batches"]:
                    self._ledger.measured(lane, count)
            case "saved":
                self._saved.append(message["paused_s"])
            case "tick" if time.monotonic() >= self._next and self._ledger.begun:
                self._next = time.monotonic() + _REPORT_S
                ledger = self._ledger
                metrics = {"loss": ledger.running_loss * message["scale"], "updates": float(ledger.updates)}
                self._report(Progress("epoch", len(ledger.history), self._epochs, metrics, ledger.rows_per_s))

    def summary(self, gang: GangResult) -> dict[str, Any]:
        """Tell what the gang went through; weights on servers are never gone back from, so no step is lost."""
        paused = [round(seconds, 3) for seconds in self._saved]
        return {"checkpoints": len(paused), "paused_s": paused, "gang": history(gang, [], {})}


def _assemble(gang: GangResult, ledger: Ledger, saved: Saved | None, summary: dict[str, Any], seconds: float) -> Fit:
    result = decode_state(gang.results[0])
    found = result["summary"]
    unit, each = found.pop("unit"), found.pop("servers")
    ranks = [result["rank"], *(json.loads(other) for other in gang.results[1:])]
    losses = [value * unit for value in ledger.history]
    summary = {
        **found,
        **summary,
        "n_iter": ledger.updates,
        "stop_reason": ledger.reason,
        "converged": ledger.reason == "tolerance",
        "loss": losses[-1],
        "history": losses,
        "passes": ledger.rows / found["rows"],
        "rows_seen": ledger.rows,
        "rows_per_s": ledger.rows_per_s,
        "pulled_bytes": sum(rank["pulled_bytes"] for rank in ranks),
        "pushed_bytes": sum(rank["pushed_bytes"] for rank in ranks),
        "resumed_from": None if saved is None else saved.update,
        "seconds": seconds,
        "ranks": ranks,
    }
    summary["servers"]["each"] = each
    files = {name: array.tobytes() for name, array in result.items() if name.endswith(".npy")}
    files["linear.json"] = codec.canonical({"schema_number": 1, "link": result["link"]})
    return Fit("linear", files, summary)
