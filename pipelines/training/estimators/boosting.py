"""``estimator: xgboost``: boosted trees on a gang's ranks, with XGBoost's own collective between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal
from urllib.parse import urlsplit

from pipelines import codec
from pipelines.data.shards import deal
from pipelines.errors import Fault, SpecError
from pipelines.training.config import TrainConfig, refuse_other_strategies
from pipelines.training.data import TrainingData
from pipelines.training.estimators import boosting_params
from pipelines.training.estimators.boosting_cuts import sample_rule
from pipelines.training.estimators.boosting_feed import cached_bytes
from pipelines.training.estimators.boosting_params import XGBoostParams, check_params
from pipelines.training.estimators.boosting_rank import Job, take_apart
from pipelines.training.estimators.class_weights import class_factors
from pipelines.training.estimators.registry import FitRequest
from pipelines.training.fit import Fit, Progress
from pipelines.training.gang import run_gang

PROGRAM = "pipelines.training.estimators.boosting_program:run"


class Boosting:
    """XGBoost as an `Estimator`.

    Ranks hold contiguous runs of whole shards in the order of the manifest, so that the same spec on as many ranks and
    threads gives the same bytes of model. A rank whose shards hold no rows of a split takes part without any.
    """

    categorical: Literal["one_hot", "native"] = "native"
    label_kinds: tuple[str, ...] = ("binary", "multiclass", "regression")

    def check(self, config: TrainConfig) -> XGBoostParams:
        """Validate ``config.params``; see `check_params`."""
        refuse_other_strategies(config)
        return check_params(config.params)

    def check_target(self, config: TrainConfig, kind: str, names: tuple[str, ...] | None = None) -> None:
        """Check objective, metrics and constraints against the label's kind and the features; `SpecError` if any."""
        weighted = config.class_weight is not None
        boosting_params.check_target(self.check(config), kind, names, weighted=weighted)

    def memory_per_row(self, features: int) -> int:
        """Bytes of a rank per training row, at the fullest moment: values, bins, and XGBoost's own state."""
        return cached_bytes(1, features)

    def fit(self, request: FitRequest) -> Fit:
        """Train; see `pipelines.training.fit.fit`."""
        config, data = request.config, request.data
        params = self.check(config)
        self.check_target(config, data.target.kind, data.features.names)
        class_factors(config.class_weight, data.target)
        evals = _evals(params, data)
        dealt = [places for places in deal(data.shards.shards, min(request.ranks, len(data.shards.shards))) if places]
        job = _job(request, params, evals)
        arguments = [{"job": codec.to_plain(job), "data": data.subset(places).to_plain()} for places in dealt]
        results = run_gang(
            request.client,
            PROGRAM,
            arguments,
            threads=request.threads,
            memory_bytes=request.memory_bytes,
            deadlines=request.deadlines,
            on_message=_Progresses(request, data, evals),
            stop=request.stop,
            share_workers=request.trial,
            name="xgboost",
        )
        return _fit(results.results[0], request, job, ranks=len(dealt))


XGBOOST = Boosting()


def _evals(params: XGBoostParams, data: TrainingData) -> tuple[str, ...]:
    there = data.rows is None or data.rows.get("validation", 0) > 0
    evals = params.evals if params.evals is not None else (("validation",) if there else ())
    if "validation" in evals and not there:
        raise SpecError(
            [Fault("train.params.evals", "the validation split has no rows", "Give split.validation a share")]
        )
    if params.early_stopping_rounds is not None and not evals:
        fix = "Give split.validation a share, or remove it"
        message = "early stopping needs a validation split, and there are no rows in it"
        raise SpecError([Fault("train.params.early_stopping_rounds", message, fix)])
    return tuple(evals)


def _job(request: FitRequest, params: XGBoostParams, evals: tuple[str, ...]) -> Job:
    config, data = request.config, request.data
    rows = sum(shard.rows for shard in data.shards.shards)
    known = data.rows.get("train") if data.rows is not None else None
    return Job(
        params=params,
        booster=_words(params, config, data),
        evals=evals,
        class_weight=config.class_weight,
        checkpoint=config.checkpoint,
        checkpoint_url=request.checkpoint_url,
        cut_rule=sample_rule(known or rows, len(data.features.names), exact=known is not None),
        checkpoint_prefix=f"xgboost-{_identity(config, data)[:16]}",
        train_share=min(1.0, known / max(rows, 1)) if known is not None else 1.0,
        step_s=request.deadlines.step_s,
        towards=_cluster_host(request),
        every_round=request.trial,
    )


def _cluster_host(request: FitRequest) -> str:
    address = "" if request.client is None else str(request.client.scheduler.address)
    return (urlsplit(address).hostname if address.startswith(("tcp://", "tls://")) else None) or "127.0.0.1"


def _words(params: XGBoostParams, config: TrainConfig, data: TrainingData) -> dict[str, Any]:
    """XGBoost's parameters, features by number where it takes them so."""
    words = params.booster_words() | {"objective": params.for_label(data.target.kind), "seed": config.random_state}
    if data.target.kind == "multiclass":
        words["num_class"] = data.target.n_outputs
    names = data.features.names
    if params.monotone_constraints:
        words["monotone_constraints"] = f"({','.join(str(params.monotone_constraints.get(n, 0)) for n in names)})"
    if params.interaction_constraints:
        groups: Sequence[Sequence[int]] = [[names.index(n) for n in group] for group in params.interaction_constraints]
        words["interaction_constraints"] = str(groups)
    return words


def _identity(config: TrainConfig, data: TrainingData) -> str:
    """What a checkpoint belongs to: another spec or other data do not go on from it."""
    return codec.digest(
        codec.canonical(
            {
                "config": config.model_dump(mode="json", exclude={"checkpoint"}),
                "source": codec.digest(data.source),
                "shards": codec.digest(data.shards),
                "split": codec.digest(data.split),
                "features": data.features.digest,
                "target": codec.digest(data.target),
            }
        )
    )


def _fit(result: bytes, request: FitRequest, job: Job, ranks: int) -> Fit:
    summary, model = take_apart(result)
    resumed_from = summary["resumed_from"]
    drawn_anew = f"it went on after round {resumed_from}: what is sampled is drawn anew there, and sums round anew"
    certificate = {
        "final": codec.digest(model),
        "unit": "round",
        "digests": [],
        "of": _identity(request.config, request.data),
        "equal_for": f"{ranks} ranks of {request.threads} threads, the same XGBoost and kind of processor",
        "broken_by": [] if resumed_from is None else [drawn_anew],
    }
    summary |= {
        "objective": job.booster["objective"],
        "evals": list(job.evals),
        "ranks": ranks,
        "threads": request.threads,
        "rows": dict(request.data.rows or {}),
        "certificate": certificate,
    }
    facts = {"schema": 1, "sha256": codec.digest(model), "version": summary.pop("xgboost")}
    return Fit("xgboost", {"model.ubj": model, "xgboost.json": codec.canonical(facts)}, summary)


class _Progresses:
    """Ranks' messages as progress of the whole: rows are added over ranks, rounds are rank 0's."""

    def __init__(self, request: FitRequest, data: TrainingData, evals: tuple[str, ...]) -> None:
        self._report = request.report
        self._loaded: dict[tuple[int, str], int] = {}
        rows = data.rows or {}
        known = [rows.get(name) for name in ("train", *(name for name in evals if name != "train"))]
        self._total = sum(n for n in known if n is not None) if all(n is not None for n in known) else None

    def __call__(self, rank: int, message: dict[str, Any]) -> None:
        if message["unit"] == "load":
            self._loaded[rank, message["part"]] = message["rows"]
            self._report(Progress("load", sum(self._loaded.values()), self._total))
        elif message["unit"] == "round":
            self._report(
                Progress("round", message["done"], message["total"], message["metrics"], message["rows_per_s"])
            )
