"""Linear models (regression, logistic regression, support vector machines) over ranks that share rows, or columns."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Protocol

from pipelines import codec
from pipelines.errors import StorageError, UsageError
from pipelines.storage import open_store
from pipelines.training.config import AsynchronousConfig, ModelParallelConfig, SynchronousConfig, TrainConfig
from pipelines.training.estimators.class_weights import class_factors
from pipelines.training.estimators.linear_losses import refuse_labels
from pipelines.training.estimators.linear_params import MINI_BATCH, SERVED, LinearParams, params_of
from pipelines.training.estimators.registry import FitRequest, Series
from pipelines.training.estimators.served_params import refuse_parameters
from pipelines.training.fit import Fit, Progress
from pipelines.training.gang import GangResult, Sizes, run_gang
from pipelines.training.gang.events import Introduce
from pipelines.training.gang.run import Deal
from pipelines.training.happenings import Happening
from pipelines.training.identity import prefix_of, record_identity, refuse_others
from pipelines.training.lanes import deal_lanes, default_lanes, make_lanes
from pipelines.training.state import decode_state
from pipelines.training.story import Story, history
from pipelines.training.stragglers import Pace, slow_ranks, speeds

FAMILY = "linear"
"""Of the checkpoints' prefixes."""
PROGRAM = "pipelines.training.estimators.linear_rank:program"


@dataclass(frozen=True)
class LinearEstimator:
    """See `pipelines.training.estimators.registry.Estimator`."""

    label_kinds: tuple[str, ...]
    categorical: Literal["one_hot", "native"] = "one_hot"
    survives_losses: ClassVar[bool] = True

    def check(self, config: TrainConfig) -> LinearParams:
        """Validate the parameters. Raises ``pydantic.ValidationError``."""
        params = params_of(config)
        refuse_strategy(config, params)
        if config.class_weight is not None and "regression" in self.label_kinds:
            raise ValueError("class_weight needs classes; linear regression has none")
        return params

    def check_target(self, config: TrainConfig, kind: str) -> None:
        """See `Estimator.check_target`: every strategy learns every kind."""

    @property
    def several_labels(self) -> bool:
        """Whether it learns several numbers at once."""
        return "regression" in self.label_kinds

    def memory_per_row(self, features: int) -> int:
        """Bytes that a rank needs per row of its share: values, label, weight."""
        return 4 * features + 8

    def fit(self, request: FitRequest) -> Fit:
        """Train; see `pipelines.training.fit.fit`."""
        params = self.refuse(request)
        if request.config.strategy.name == "parameter_server":
            from pipelines.training.estimators.served import fit_served

            return fit_served(request, params)
        return _fit(request)

    def refuse(self, request: FitRequest) -> LinearParams:
        """Raise for a request that can't be met, before anything is started; returns its parameters."""
        params = self.check(request.config)
        kind = request.data.target.kind
        if kind not in self.label_kinds:
            raise UsageError(
                f"{request.config.estimator} does not learn a {kind} label",
                on=f"column {request.data.target.column}",
                expected=" or ".join(self.label_kinds),
                found=kind,
                remedy="Choose another estimator, or say the label's kind under label:.",
            )
        class_factors(request.config.class_weight, request.data.target)
        refuse_labels(params, request.data.target)
        return params

    def series(self, request: FitRequest) -> Series | None:
        """Begin fits that share their gang's lanes; None for strategies that have no lanes to share."""
        from pipelines.training.estimators.linear_series import LinearSeries

        return LinearSeries(self, request) if request.config.strategy.name == "synchronous" else None


def refuse_strategy(config: TrainConfig, params: LinearParams) -> None:
    """Raise ``ValueError`` when the solver can't do what the strategy asks for."""
    strategy = config.strategy
    if strategy.name == "parameter_server":
        refuse_parameters(params)
    elif params.solver in SERVED and params.solver not in MINI_BATCH:
        raise ValueError(f"solver: {params.solver} is a parameter server's; set strategy: parameter_server")
    if isinstance(strategy, AsynchronousConfig) and params.solver not in MINI_BATCH:
        raise ValueError("strategy: asynchronous goes by mini-batches; set params.solver: sgd, momentum or adam")
    if isinstance(strategy, SynchronousConfig) and params.solver not in MINI_BATCH and strategy.batches_only:
        names = ", ".join(strategy.batches_only)
        raise ValueError(f"strategy.{names} is for mini-batches; set params.solver: sgd, momentum or adam")
    if isinstance(strategy, ModelParallelConfig) and params.solver == "newton":
        raise ValueError(
            "strategy: model_parallel has no Newton's method, whose matrix is for few columns; "
            "use solver: auto, lbfgs, owlqn, sgd, momentum or adam"
        )


LOGISTIC = LinearEstimator(("binary", "multiclass"))
LINEAR = LinearEstimator(("regression",))
SVM = LinearEstimator(("binary", "multiclass"))


def _fit(request: FitRequest) -> Fit:
    dealer, regroup = make_dealer(request), threading.Event()
    settle_identity(request, dealer.identity)
    story = Story(request.happened)
    redeal = regroup if request.config.stragglers == "deal" else None
    reporter = Reporter(request.report, dealer.rows, story, redeal)

    def deal(order: Introduce) -> list[dict[str, Any]]:
        story.formed(order)
        return dealer.arguments(order.holds, reporter.speeds(order))

    began = time.monotonic()
    gang = run_ranks(
        request,
        PROGRAM,
        dealer,
        deal,
        on_message=reporter,
        on_wait=story.waits,
        on_loss=story.lost,
        regroup=regroup,
        share_workers=request.trial,
    )
    fit = assemble(gang.results, time.monotonic() - began)
    return replace(fit, summary={**fit.summary, "gang": history(gang, story.resumptions, reporter.slow)})


def run_ranks(request: FitRequest, program: str, dealer: AnyDealer, deal: Deal, **more: Any) -> GangResult:
    """Run a program on a gang that survives losses, as the request says; `more` goes to `run_gang`."""
    words: dict[str, Any] = {
        "threads": request.threads,
        "memory_bytes": request.memory_bytes,
        "deadlines": request.deadlines,
        "strikes": request.strikes,
        "stop": request.stop,
        "name": request.config.estimator,
    }
    sizes = Sizes(dealer.ranks, min(request.min_ranks, dealer.ranks), dealer.most, survive=True)
    return run_gang(request.client, program, deal, sizes=sizes, **{**words, **more})


def settle_identity(request: FitRequest, plain: dict[str, Any]) -> None:
    """Refuse checkpoints of another training when one is gone on with, and say whose ours are."""
    if request.checkpoint_url is None:
        return
    store, prefix = open_store(request.checkpoint_url), prefix_of(FAMILY, plain)
    if request.resuming:
        refuse_others(store, FAMILY, prefix, plain)
    try:
        record_identity(store, prefix, plain)
    except StorageError as error:
        request.happened(Happening("notice", f"what the checkpoints hang on could not be recorded: {error}"))


class AnyDealer(Protocol):
    """Says to each rank what it hosts.

    `ranks` and `most` are how many ranks there are at the start, and at most; `rows` how many all of them read;
    `identity` is all that the training hangs on.
    """

    @property
    def ranks(self) -> int: ...

    @property
    def most(self) -> int: ...

    @property
    def rows(self) -> int | None: ...

    @property
    def identity(self) -> dict[str, Any]: ...

    def arguments(self, holds: Sequence[Sequence[int]], speeds: Sequence[float] | None = None) -> list[dict[str, Any]]:
        """Return the arguments of each rank of a formation; `holds` is what each has loaded, `speeds` how fast."""
        ...


def make_dealer(request: FitRequest) -> AnyDealer:
    """Make the dealer of the strategy that is asked for."""
    if isinstance(request.config.strategy, ModelParallelConfig):
        from pipelines.training.estimators.linear_columns import ColumnDealer  # which takes what both share from here

        return ColumnDealer(request, request.config.strategy)
    return Dealer(request)


class Dealer:
    """Says to each rank which lanes it hosts; there are no more ranks than lanes."""

    def __init__(self, request: FitRequest) -> None:
        data, config = request.data, request.config
        self.rows = (data.rows or {}).get("train")
        self._data = data
        self._lanes = make_lanes(data.shards, config.lanes or default_lanes(max(request.ranks, request.max_ranks)))
        self.ranks = min(request.ranks, len(self._lanes))
        self.most = max(self.ranks, min(request.max_ranks, len(self._lanes)))
        self._deals_on_demand = isinstance(config.strategy, AsynchronousConfig)
        self.identity = identity(request, self.lanes)
        self._common = {
            "config": codec.to_plain(config),
            "lanes_total": len(self._lanes),
            "step_s": request.deadlines.step_s,
            "checkpoint_url": request.checkpoint_url,
            "identity": codec.digest(codec.canonical(self.identity)),
            "every_step": request.trial,
        }

    @property
    def lanes(self) -> int:
        """How many lanes there are."""
        return len(self._lanes)

    def arguments(self, holds: Sequence[Sequence[int]], speeds: Sequence[float] | None = None) -> list[dict[str, Any]]:
        """Return the arguments of each rank of a formation; `holds` are the lanes that each has loaded."""
        found = []
        for numbers in deal_lanes(self._data.shards, self._lanes, holds, speeds):
            places = [place for number in numbers for place in self._lanes[number]]
            position = {place: at for at, place in enumerate(places)}
            own_lanes = [[number, [position[place] for place in self._lanes[number]]] for number in numbers]
            found.append({**self._common, "data": self._data.subset(places).to_plain(), "lanes": own_lanes})
        if self._deals_on_demand:  # rank 0 hands lanes on
            found[0]["every"] = {"data": self._data.to_plain(), "lanes": self._lanes}
        return found


class Reporter:
    """Turns what ranks say into progress: rows loaded are added up over ranks."""

    def __init__(
        self, report: Callable[[Progress], None], rows: int | None, story: Story, redeal: threading.Event | None
    ) -> None:
        self._report, self._rows, self._story, self._redeal = report, rows, story, redeal
        self._paces: dict[int, Pace] = {}
        self._orders = self._ranks = 0
        self._dealt: Sequence[float] | None = None
        self.slow: dict[int, float] = {}
        """Ranks that were found slow, and how much: the worst that was seen of each."""
        self._loaded: dict[int, int] = {}
        self._began = time.monotonic()

    def turn_to(self, report: Callable[[Progress], None]) -> None:
        """Report another fit of the same ranks, whose paces are counted anew."""
        self._report, self._paces = report, {}

    def __call__(self, rank: int, message: dict[str, Any]) -> None:
        self._story.spoke()
        if message["unit"] == "load":
            self._loaded[rank] = int(message["rows"])
            done = sum(self._loaded.values())
            rate = done / max(time.monotonic() - self._began, 1e-9)
            self._report(Progress("load", done, self._rows, {}, rate))
        elif message["unit"] == "pace":
            self._paced(rank, message["orders"], Pace(message["seconds"], message["rows"]))
        elif message["unit"] == "began":
            self._story.began(message)
            self._loaded, self._began = {}, time.monotonic()
        elif message["unit"] == "notice":
            self._story.noticed(str(message["text"]))
        else:
            self._report(Progress(**message))

    def _paced(self, rank: int, orders: int, pace: Pace) -> None:
        """Take in a pace; they can be compared once all ranks have told theirs after the same order."""
        if orders != self._orders:
            self._orders, self._paces = orders, {}
        self._paces[rank] = pace
        if len(self._paces) == self._ranks:
            self._judge()

    def _judge(self) -> None:
        """Name ranks that are slow, once each, and have the work dealt anew if that is wanted: once for a formation."""
        paces = self._paces  # another thread may ask for speeds meanwhile, and begins new ones
        for rank, ratio in slow_ranks(paces).items():
            if rank not in self.slow:
                self._story.noticed(f"rank {rank} takes {ratio:.1f} times as long for a row as the others")
            self.slow[rank] = max(ratio, self.slow.get(rank, 0.0))
            if self._redeal is not None and self._dealt is None:
                self._dealt = speeds(paces, max(paces) + 1)
                self._redeal.set()

    def speeds(self, order: Introduce) -> Sequence[float] | None:
        """Return the speeds to deal by in a new formation, if they were asked for and its members are those judged."""
        dealt, self._paces, self._orders, self._ranks = self._dealt, {}, 0, len(order.members)
        return dealt if dealt is not None and len(dealt) == len(order.members) else None


def assemble(results: list[bytes], seconds: float) -> Fit:
    """Make a fit of what the ranks' programs returned."""
    result = decode_state(results[0])
    summary = {**result["summary"], "seconds": seconds, "ranks": [json.loads(each or b"{}") for each in results[1:]]}
    summary["ranks"].insert(0, result["rank"])
    files = {
        "linear.json": codec.canonical({"schema_number": 1, "link": result["link"]}),
        **{name: result[name].tobytes() for name in ("coef.npy", "intercept.npy", "std.npy")},
    }
    return Fit("linear", files, summary)


def identity(request: FitRequest, lanes: int) -> dict[str, Any]:
    """Say all that the course of a training hangs on: a checkpoint of another one is not gone on from."""
    data = request.data
    config = codec.to_plain(request.config)
    for name in ("checkpoint", "min_workers", "max_workers", "stragglers"):  # the model is the same with others
        config.pop(name)
    return {
        "version": 3,
        "config": config,
        "source": codec.to_plain(data.source),
        "shards": data.shards.digest,
        "files": {each.path: f"{each.size} bytes, {each.etag}" for each in _files(request)},
        "split": codec.to_plain(data.split),
        "features": data.features.digest,
        "target": codec.to_plain(data.target),
        "sample_weight": data.sample_weight,
        "lanes": lanes,
    }


def _files(request: FitRequest) -> list[Any]:
    found = {piece.file.path: piece.file for shard in request.data.shards.shards for piece in shard.slices}
    return [found[path] for path in sorted(found)]
