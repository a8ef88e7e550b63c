"""Linear models (regression, logistic regression, support vector machines) by synchronous descent over ranks."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from pipelines import codec
from pipelines.errors import UsageError
from pipelines.training.config import SynchronousConfig, TrainConfig
from pipelines.training.estimators.class_weights import class_factors
from pipelines.training.estimators.linear_losses import refuse_labels
from pipelines.training.estimators.linear_params import MINI_BATCH, SERVED, LinearParams, params_of
from pipelines.training.estimators.registry import FitRequest
from pipelines.training.estimators.served_params import refuse_parameters, refuse_several
from pipelines.training.fit import Fit, Progress
from pipelines.training.gang import GangResult, Sizes, run_gang
from pipelines.training.lanes import deal_lanes, default_lanes, make_lanes
from pipelines.training.state import decode_state

PROGRAM = "pipelines.training.estimators.linear_rank:program"


@dataclass(frozen=True)
class LinearEstimator:
    """See `pipelines.training.estimators.registry.Estimator`."""

    label_kinds: tuple[str, ...]
    categorical: Literal["one_hot", "native"] = "one_hot"

    def check(self, config: TrainConfig) -> LinearParams:
        """Validate the parameters. Raises ``pydantic.ValidationError``."""
        params = params_of(config)
        refuse_strategy(config, params)
        if config.class_weight is not None and "regression" in self.label_kinds:
            raise ValueError("class_weight needs classes; linear regression has none")
        return params

    def check_target(self, config: TrainConfig, kind: str) -> None:
        """Refuse a kind of label that the strategy can't learn; `SpecError`."""
        refuse_several(config, kind)

    @property
    def several_labels(self) -> bool:
        """Whether it learns several numbers at once."""
        return "regression" in self.label_kinds

    def memory_per_row(self, features: int) -> int:
        """Bytes that a rank needs per row of its share: values, label, weight."""
        return 4 * features + 8

    def fit(self, request: FitRequest) -> Fit:
        """Train; see `pipelines.training.fit.fit`."""
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
        # Refused before anything is started.
        class_factors(request.config.class_weight, request.data.target)
        refuse_labels(params, request.data.target)
        refuse_several(request.config, kind, request.data.labels)
        if request.config.strategy.name == "parameter_server":
            from pipelines.training.estimators.served import fit_served

            return fit_served(request, params)
        return _fit(request)


def refuse_strategy(config: TrainConfig, params: LinearParams) -> None:
    """Raise ``ValueError`` when the solver can't do what the strategy asks for."""
    strategy = config.strategy
    if strategy.name == "parameter_server":
        refuse_parameters(params)
    elif params.solver in SERVED and params.solver not in MINI_BATCH:
        raise ValueError(f"solver: {params.solver} is a parameter server's; set strategy: parameter_server")
    if isinstance(strategy, SynchronousConfig) and params.solver not in MINI_BATCH and strategy.batches_only:
        names = ", ".join(strategy.batches_only)
        raise ValueError(f"strategy.{names} is for mini-batches; set params.solver: sgd, momentum or adam")


LOGISTIC = LinearEstimator(("binary", "multiclass"))
LINEAR = LinearEstimator(("regression",))
SVM = LinearEstimator(("binary", "multiclass"))


def _fit(request: FitRequest) -> Fit:
    dealer = Dealer(request)
    reporter = Reporter(request.report, (request.data.rows or {}).get("train"))
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


class Dealer:
    """Says to each rank which lanes it hosts; there are no more ranks than lanes."""

    def __init__(self, request: FitRequest) -> None:
        data, config = request.data, request.config
        self._data = data
        self._lanes = make_lanes(data.shards, config.lanes or default_lanes(max(request.ranks, request.max_ranks)))
        self.ranks = min(request.ranks, len(self._lanes))
        self.most = max(self.ranks, min(request.max_ranks, len(self._lanes)))
        self.lanes = len(self._lanes)
        self.identity = identity(request, self.lanes)
        self._common = {
            "config": codec.to_plain(config),
            "lanes_total": len(self._lanes),
            "checkpoint_url": request.checkpoint_url,
            "identity": self.identity,
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


class Reporter:
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
