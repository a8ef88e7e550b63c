"""Linear models (regression, logistic regression, support vector machines) by synchronous descent over ranks."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from pipelines import codec
from pipelines.errors import UsageError
from pipelines.training.config import TrainConfig
from pipelines.training.estimators.class_weights import class_factors
from pipelines.training.estimators.linear_losses import refuse_labels
from pipelines.training.estimators.linear_params import LinearParams, params_of
from pipelines.training.estimators.registry import FitRequest
from pipelines.training.fit import Fit, Progress
from pipelines.training.gang import run_gang
from pipelines.training.lanes import default_lanes, host_lanes, make_lanes
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
        if config.class_weight is not None and "regression" in self.label_kinds:
            raise ValueError("class_weight needs classes; linear regression has none")
        return params

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
        return _fit(request)


LOGISTIC = LinearEstimator(("binary", "multiclass"))
LINEAR = LinearEstimator(("regression",))
SVM = LinearEstimator(("binary", "multiclass"))


def _fit(request: FitRequest) -> Fit:
    arguments = rank_arguments(request)
    began = time.monotonic()
    results = run_gang(
        request.client,
        PROGRAM,
        arguments,
        threads=request.threads,
        memory_bytes=request.memory_bytes,
        deadlines=request.deadlines,
        on_message=_Reporter(request.report, len(arguments), (request.data.rows or {}).get("train")),
        stop=request.stop,
        name=request.config.estimator,
    )
    return assemble(results, time.monotonic() - began)


def rank_arguments(request: FitRequest) -> list[dict[str, Any]]:
    """Say to each rank which lanes it hosts; there are fewer ranks than asked for where there are fewer lanes."""
    data, config = request.data, request.config
    lanes = make_lanes(data.shards, config.lanes or default_lanes(request.ranks))
    common = {
        "config": codec.to_plain(config),
        "lanes_total": len(lanes),
        "checkpoint_url": request.checkpoint_url,
        "identity": identity(request, len(lanes)),
    }
    arguments = []
    for numbers in host_lanes(data.shards, lanes, request.ranks):
        places = [place for number in numbers for place in lanes[number]]
        position = {place: at for at, place in enumerate(places)}
        own_lanes = [[number, [position[place] for place in lanes[number]]] for number in numbers]
        if own_lanes:
            arguments.append({**common, "data": data.subset(places).to_plain(), "lanes": own_lanes})
    return arguments


class _Reporter:
    """Turns what ranks say into progress: rows loaded are added up over ranks."""

    def __init__(self, report: Callable[[Progress], None], ranks: int, rows: int | None) -> None:
        self._report, self._loaded, self._rows = report, [0] * ranks, rows
        self._began = time.monotonic()

    def __call__(self, rank: int, message: dict[str, Any]) -> None:
        if message["unit"] == "load":
            self._loaded[rank] = int(message["rows"])
            done = sum(self._loaded)
            rate = done / max(time.monotonic() - self._began, 1e-9)
            self._report(Progress("load", done, self._rows, {}, rate))
        else:
            self._report(Progress(**message))


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
        "version": 1,
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
