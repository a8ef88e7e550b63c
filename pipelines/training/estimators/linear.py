"""Linear and logistic regression over ranks that share the rows, or the columns."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Protocol, Self

from pydantic import Field, model_validator

from pipelines import codec
from pipelines.config import Config
from pipelines.errors import UsageError
from pipelines.training.config import ModelParallelConfig, TrainConfig
from pipelines.training.estimators.class_weights import class_factors
from pipelines.training.estimators.registry import FitRequest
from pipelines.training.fit import Fit, Progress
from pipelines.training.gang import GangResult, Sizes, run_gang
from pipelines.training.lanes import deal_lanes, default_lanes, make_lanes
from pipelines.training.optimisers.schedules import Schedule
from pipelines.training.state import decode_state

Solver = Literal["auto", "lbfgs", "owlqn", "newton", "sgd", "momentum", "adam"]

PROGRAM = "pipelines.training.estimators.linear_rank:program"
_MINI_BATCH = ("sgd", "momentum", "adam")
_MINI_BATCH_ONLY = (
    "learning_rate", "schedule", "power", "warmup", "momentum", "batch_rows", "epochs",
)  # fmt: skip


class LinearParams(Config):
    """`params:` of ``logistic_regression`` and ``linear_regression``.

    The objective is the mean of weighted losses + l2/2·‖w‖² + l1·‖w‖₁, the intercept free. The loss is the
    cross-entropy (binary or softmax), or half the squared error.

    Parameters
    ----------
    l2, l1 : float
        Both together are the elastic net.
    C : float, optional
        scikit-learn's inverse strength, instead of l2 and l1: their sum is 1 / (C · sum of weights), shared by
        `l1_ratio`. Default for logistic regression when nothing is said: C = 1; linear regression has no penalty then.
    l1_ratio : float
        Share of the 1-norm with `C`.
    solver : {"auto", "lbfgs", "owlqn", "newton", "sgd", "momentum", "adam"}
        auto: Newton's method up to 500 weights of one output, else L-BFGS, or OWL-QN with l1.
    tol : float
        Stop when the largest component of the objective's (sub)gradient is at most this; labels of linear regression
        count in standard deviations. Mini-batch solvers: when the epochs' loss stopped falling by this share.
    max_iter : int
        Steps at most; for mini-batch solvers see `epochs`.
    fit_intercept : bool
    learning_rate, schedule, power, warmup, momentum, batch_rows, epochs
        Of mini-batch solvers. `warmup` is in steps; `power` is inverse scaling's exponent; a batch of `batch_rows` rows
        takes its share of every lane.
    """

    l2: float | None = Field(default=None, ge=0)
    l1: float | None = Field(default=None, ge=0)
    C: float | None = Field(default=None, gt=0)
    l1_ratio: float = Field(default=0.0, ge=0, le=1)
    solver: Solver = "auto"
    tol: float = Field(default=1e-6, ge=0)
    max_iter: int = Field(default=500, ge=1)
    fit_intercept: bool = True
    learning_rate: float | None = Field(default=None, gt=0)
    schedule: Schedule = "cosine"
    power: float = Field(default=0.5, gt=0)
    warmup: int = Field(default=0, ge=0)
    momentum: float = Field(default=0.9, ge=0, lt=1)
    batch_rows: int = Field(default=4096, ge=1)
    epochs: int = Field(default=20, ge=1)

    @model_validator(mode="after")
    def _refuse_impossible(self) -> Self:
        if self.C is not None and (self.l2 is not None or self.l1 is not None):
            raise ValueError("C says l2 and l1 in another way; give either C (with l1_ratio), or l2 and l1")
        if self.l1_ratio and self.C is None:
            raise ValueError("l1_ratio shares out C; give C too, or say l1 and l2 themselves")
        if self.solver == "lbfgs" and (self.l1 or self.l1_ratio):
            raise ValueError("lbfgs needs a smooth objective; use solver: auto, owlqn or newton with l1")
        if self.solver not in _MINI_BATCH:
            said = [name for name in _MINI_BATCH_ONLY if name in self.model_fields_set]
            if said:
                raise ValueError(
                    f"{', '.join(said)} belong to mini-batches; use solver: sgd, momentum or adam with them"
                )
        elif "max_iter" in self.model_fields_set:
            raise ValueError(f"max_iter is not for solver: {self.solver}, which goes through epochs; set epochs")
        return self


@dataclass(frozen=True)
class LinearEstimator:
    """See `pipelines.training.estimators.registry.Estimator`."""

    label_kinds: tuple[str, ...]
    categorical: Literal["one_hot", "native"] = "one_hot"

    def check(self, config: TrainConfig) -> LinearParams:
        """Validate the parameters. Raises ``pydantic.ValidationError``."""
        params = LinearParams.model_validate(config.params)
        if config.class_weight is not None and "regression" in self.label_kinds:
            raise ValueError("class_weight needs classes; linear regression has none")
        if config.strategy.name == "model_parallel" and params.solver == "newton":
            raise ValueError(
                "strategy: model_parallel has no Newton's method, whose matrix is for few columns; "
                "use solver: auto, lbfgs, owlqn, sgd, momentum or adam"
            )
        return params

    def memory_per_row(self, features: int) -> int:
        """Bytes that a rank needs per row of its share: values, label, weight."""
        return 4 * features + 8

    def fit(self, request: FitRequest) -> Fit:
        """Train; see `pipelines.training.fit.fit`."""
        self.check(request.config)
        kind = request.data.target.kind
        if kind not in self.label_kinds:
            raise UsageError(
                f"{request.config.estimator} does not learn a {kind} label",
                on=f"column {request.data.target.column}",
                expected=" or ".join(self.label_kinds),
                found=kind,
                remedy="Choose another estimator, or say the label's kind under label:.",
            )
        class_factors(request.config.class_weight, request.data.target)  # refused before anything is started
        return _fit(request)


LOGISTIC = LinearEstimator(("binary", "multiclass"))
LINEAR = LinearEstimator(("regression",))


def _fit(request: FitRequest) -> Fit:
    dealer = make_dealer(request)
    reporter = _Reporter(request.report, dealer.rows)
    began = time.monotonic()
    gang = run_gang(
        request.client,
        PROGRAM,
        lambda order: dealer.arguments(order.holds),
        sizes=Sizes(dealer.ranks, min(request.min_ranks, dealer.ranks), dealer.most, survive=True),
        threads=request.threads,
        memory_bytes=request.memory_bytes,
        deadlines=request.deadlines,
        on_message=reporter,
        stop=request.stop,
        name=request.config.estimator,
    )
    fit = assemble(gang.results, time.monotonic() - began)
    return replace(fit, summary={**fit.summary, "gang": history(gang, reporter.resumptions)})


class AnyDealer(Protocol):
    """Says to each rank what it hosts.

    `ranks` and `most` are how many ranks there are at the start, and at most; `rows` how many all of them read.
    """

    @property
    def ranks(self) -> int: ...

    @property
    def most(self) -> int: ...

    @property
    def rows(self) -> int | None: ...

    def arguments(self, holds: Sequence[Sequence[int]]) -> list[dict[str, Any]]:
        """Return the arguments of each rank of a formation; `holds` is what each has loaded."""
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
        self._common = {
            "config": codec.to_plain(config),
            "lanes_total": len(self._lanes),
            "checkpoint_url": request.checkpoint_url,
            "identity": identity(request, len(self._lanes)),
        }

    def arguments(self, holds: Sequence[Sequence[int]]) -> list[dict[str, Any]]:
        """Return the arguments of each rank of a formation; `holds` are the lanes that each has loaded."""
        found = []
        for numbers in deal_lanes(self._data.shards, self._lanes, holds):
            places = [place for number in numbers for place in self._lanes[number]]
            position = {place: at for at, place in enumerate(places)}
            own_lanes = [[number, [position[place] for place in self._lanes[number]]] for number in numbers]
            found.append({**self._common, "data": self._data.subset(places).to_plain(), "lanes": own_lanes})
        return found


class _Reporter:
    """Turns what ranks say into progress: rows loaded are added up over ranks."""

    def __init__(self, report: Callable[[Progress], None], rows: int | None) -> None:
        self._report, self._rows = report, rows
        self._loaded: dict[int, int] = {}
        self._began = time.monotonic()
        self.resumptions: list[dict[str, Any]] = []

    def __call__(self, rank: int, message: dict[str, Any]) -> None:
        if message["unit"] == "load":
            self._loaded[rank] = int(message["rows"])
            done = sum(self._loaded.values())
            rate = done / max(time.monotonic() - self._began, 1e-9)
            self._report(Progress("load", done, self._rows, {}, rate))
        elif message["unit"] == "resumed":
            self.resumptions.append({name: value for name, value in message.items() if name != "unit"})
            self._loaded, self._began = {}, time.monotonic()
        else:
            self._report(Progress(**message))


def history(gang: GangResult, resumptions: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Describe what a training went through: formations, losses, and what was done again."""
    again = resumptions[-(gang.formations - 1) :] if gang.formations > 1 else []
    return {
        "formations": gang.formations,
        "losses": [asdict(loss) for loss in gang.losses],
        "waits_s": [round(seconds, 3) for seconds in gang.waits_s],
        "resumptions": list(resumptions),
        "lost_steps": sum(each["lost_steps"] for each in again),
        "lost_s": round(sum(each["lost_s"] for each in again) + sum(gang.waits_s), 3),
    }


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


def identity(request: FitRequest, lanes: int) -> str:
    """Digest of everything that the course of a training hangs on: a checkpoint of another one is not gone on from."""
    data = request.data
    config = codec.to_plain(request.config)
    config.pop("checkpoint")
    files = [[each.path, each.size, each.etag] for each in _files(request)]
    plain = {
        "version": 2,
        "config": config,
        "source": codec.to_plain(data.source),
        "shards": data.shards.digest,
        "files": files,
        "split": codec.to_plain(data.split),
        "features": data.features.digest,
        "target": codec.to_plain(data.target),
        "sample_weight": data.sample_weight,
        "lanes": lanes,
    }
    return codec.digest(codec.canonical(plain))


def _files(request: FitRequest) -> list[Any]:
    found = {piece.file.path: piece.file for shard in request.data.shards.shards for piece in shard.slices}
    return [found[path] for path in sorted(found)]
