"""Any scikit-learn or dask-ml class by import path as an estimator; its models run in Python only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pipelines import codec
from pipelines.data.shards import deal
from pipelines.errors import Fault, SpecError
from pipelines.training.config import TrainConfig, refuse_other_strategies
from pipelines.training.data import TrainingData
from pipelines.training.estimators.class_weights import class_factors
from pipelines.training.estimators.foreign_class import ForeignClass, check_words, find_class, word_faults
from pipelines.training.estimators.foreign_dask import fit_on_arrays
from pipelines.training.estimators.foreign_rank import Job, take_apart
from pipelines.training.estimators.foreign_stored import check_storable, store_estimator
from pipelines.training.estimators.registry import FitRequest
from pipelines.training.fit import Fit, Progress
from pipelines.training.gang import run_gang

Mode = Literal["dask", "whole", "streamed", "sampled"]

_PROGRAMS = "pipelines.training.estimators.foreign_rank"
_EPOCHS = 5
_BASE_BYTES = 512 << 20
"""A Dask worker and a rank with scikit-learn loaded (measured: 190 and 302 MiB)."""
_COPIES = 6
"""What a float32 sample may grow to: itself, once more while it is put together, the estimator's float64 copies."""


@dataclass(frozen=True)
class Choice:
    """How a class is fitted, decided before anything is read."""

    mode: Mode
    max_rows: int
    share: float
    """Probability with which a training row is taken."""
    reason: str


class Foreign:
    """A foreign class as an `Estimator`.

    How it fits: dask-ml's own classes on dask arrays, a chunk per shard; any other on all training rows in one rank's
    memory when they are at most ``train.max_sample_rows`` (and fit there), else batch by batch where it has
    ``partial_fit`` (`epochs` passes, 5 unless `params` say), else on a seeded sample of that size. Which it was, and
    the cap, is in the summary.
    """

    categorical: Literal["one_hot", "native"] = "one_hot"

    def __init__(self, found: ForeignClass) -> None:
        self.found = found
        classifies = ("binary",) if found.dask and found.cls.__name__ == "LogisticRegression" else _CLASSIFIES
        self.label_kinds: tuple[str, ...] = classifies if found.task == "classifier" else ("regression",)

    def check(self, config: TrainConfig) -> Mapping[str, Any]:
        """Validate ``config.params`` against the class's signature, and see whether it can be stored.

        Raises
        ------
        ValidationError
            Params that the class does not have, that it needs, or whose values it refuses.
        SpecError
            Weights for a class that takes none.
        UserCodeError
            The class can't be built with them, or not be stored by skops.
        """
        refuse_other_strategies(config)
        params, epochs = self._split(config.params)
        if epochs is not None and not _is_count(epochs):
            raise word_faults(self.found.name, [("epochs", f"epochs is a whole number of passes, found {epochs!r}")])
        check_words(self.found, params)
        if not self.found.dask:
            check_storable(self._build(config, threads=1), self.found.name)
        weighted = [key for key in ("sample_weight", "class_weight") if getattr(config, key) is not None]
        if weighted and not self.found.takes_weights:
            raise SpecError(
                [Fault(f"train.{key}", f"{self.found.name} takes no sample weights", "Remove it") for key in weighted]
            )
        return params

    def memory_per_row(self, features: int) -> int:
        """Bytes per training row while all rows are held: float32, and the float64 copy that most estimators make."""
        return 12 * features + 16

    def fit(self, request: FitRequest) -> Fit:
        """Train; see `pipelines.training.fit.fit`."""
        self.check(request.config)
        data, config = request.data, request.config
        _check_label(self, data)
        class_factors(config.class_weight, data.target)
        choice = self._choose(request)
        fitted = self._on_arrays(request) if choice.mode == "dask" else self._on_ranks(request, choice)
        files, facts = fitted
        summary = {
            "class": self.found.name,
            "fit": choice.mode,
            "why": choice.reason,
            "max_sample_rows": choice.max_rows,
            "rows": dict(data.rows or {}),
            "stop_reason": "estimator",
            "python_only": True,
            **facts,
        }
        return Fit("skops", files, summary)

    def _split(self, params: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
        """Take our own word `epochs` out of the params of a class that has none."""
        from inspect import signature

        if "epochs" not in params or "epochs" in signature(self.found.cls).parameters or not self.found.streams:
            return dict(params), None
        return {key: value for key, value in params.items() if key != "epochs"}, params["epochs"]

    def _build(self, config: TrainConfig, threads: int) -> Any:
        from pipelines.errors import UserCodeError

        params, _ = self._split(config.params)
        try:
            return self.found.make(params, random_state=config.random_state, threads=threads)
        except Exception as error:  # the constructor is foreign code
            raise UserCodeError(
                f"can't be built: {type(error).__name__}: {error}", on=self.found.name, remedy="See train.params"
            ) from error

    def _choose(self, request: FitRequest) -> Choice:
        config, data = request.config, request.data
        if self.found.dask:
            return Choice("dask", 0, 1.0, "dask-ml fits on dask arrays")
        cap, cause = config.max_sample_rows, "train.max_sample_rows"
        if request.memory_bytes is not None:
            room = max(0, request.memory_bytes - _BASE_BYTES)
            fitting = room // (_COPIES * 4 * max(1, len(data.features.names)))
            if fitting < cap:
                cap, cause = max(1, fitting), "what a worker's memory takes"
        rows = (data.rows or {}).get("train") or data.shards.rows
        _, epochs = self._split(config.params)
        if epochs is None and rows <= cap:
            return Choice("whole", cap, 1.0, f"{rows} training rows are at most {cap} ({cause})")
        if self.found.streams:
            why = (
                "params.epochs asks for it" if epochs is not None else f"{rows} training rows are over {cap} ({cause})"
            )
            return Choice("streamed", cap, 1.0, why)
        return Choice("sampled", cap, min(1.0, cap / rows), f"{rows} training rows are over {cap} ({cause})")

    def _on_arrays(self, request: FitRequest) -> tuple[dict[str, bytes], dict[str, Any]]:
        data, estimator = request.data, self._build(request.config, request.threads)
        total = (data.rows or {}).get("train")
        fitted, rows = fit_on_arrays(
            estimator,
            self.found.name,
            data,
            request.client,
            request.stop,
            lambda rows: request.report(Progress("load", rows, total)),
        )
        few = _few_rows(data)
        files = store_estimator(fitted, self.found.name, few)
        return files, {"rows_fitted": rows, "n_iter": None, "stored_as": type(fitted).__qualname__}

    def _on_ranks(self, request: FitRequest, choice: Choice) -> tuple[dict[str, bytes], dict[str, Any]]:
        data, streamed = request.data, choice.mode == "streamed"
        if (
            streamed
            and (request.config.sample_weight or request.config.class_weight)
            and not self.found.streams_weights
        ):
            fault = Fault("train.estimator", "its partial_fit takes no sample weights", "Raise train.max_sample_rows")
            raise SpecError([fault])
        ranks = 1 if streamed else min(request.ranks, len(data.shards.shards))
        dealt = [places for places in deal(data.shards.shards, ranks) if places]
        arguments = [
            {"job": codec.to_plain(self._job(request, choice, places)), "data": data.subset(places).to_plain()}
            for places in dealt
        ]
        if streamed:
            arguments[0]["data"] = data.to_plain()
        results = run_gang(
            request.client,
            f"{_PROGRAMS}:{'run_stream' if streamed else 'run_sample'}",
            arguments,
            threads=request.threads,
            memory_bytes=request.memory_bytes,
            deadlines=request.deadlines,
            on_message=_Progresses(request),
            stop=request.stop,
            share_workers=request.trial,
            name=self.found.name,
        )
        return take_apart(results.results[0])

    def _job(self, request: FitRequest, choice: Choice, places: tuple[int, ...]) -> Job:
        config, data = request.config, request.data
        params, epochs = self._split(config.params)
        naive_bayes = ".naive_bayes" in self.found.cls.__module__  # counts: a second pass would count rows twice
        identity = codec.digest(
            codec.canonical(
                {
                    "config": config.model_dump(mode="json", exclude={"checkpoint"}),
                    "shards": codec.digest(data.shards),
                    "split": codec.digest(data.split),
                    "source": codec.digest(data.source),
                    "features": data.features.digest,
                }
            )
        )
        return Job(
            name=self.found.name,
            params=params,
            random_state=config.random_state,
            class_weight=config.class_weight,
            share=choice.share,
            max_rows=choice.max_rows,
            epochs=epochs if epochs is not None else (1 if naive_bayes else _EPOCHS),
            places=tuple(places),
            checkpoint_url=request.checkpoint_url,
            checkpoint_prefix=f"foreign-{identity[:16]}",
            keep=config.checkpoint.keep,
        )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


_CLASSIFIES = ("binary", "multiclass")


def foreign(name: str) -> Foreign:
    """Find the estimator behind an import path; `UserCodeError` when there is none."""
    return Foreign(find_class(name))


def _check_label(estimator: Foreign, data: TrainingData) -> None:
    if data.target.kind not in estimator.label_kinds:
        learns = " or ".join(estimator.label_kinds)
        message = f"{estimator.found.name} learns {learns} labels, and {data.target.column!r} is {data.target.kind}"
        raise SpecError([Fault("train.estimator", message, "Choose another estimator, or set label.kind")])


def _few_rows(data: TrainingData, rows: int = 64) -> Any:
    """Invented rows for trying out a stored estimator: none of the data are needed in this process."""
    import numpy as np

    return np.random.default_rng(0).normal(size=(rows, len(data.features.names))).astype(np.float32)


class _Progresses:
    """Ranks' messages as progress of the whole."""

    def __init__(self, request: FitRequest) -> None:
        self._report, self._loaded = request.report, dict[int, int]()
        self._total = (request.data.rows or {}).get("train")

    def __call__(self, rank: int, message: dict[str, Any]) -> None:
        if message["unit"] == "load":
            self._loaded[rank] = message["rows"]
            self._report(Progress("load", sum(self._loaded.values()), self._total))
        elif message["unit"] == "epoch":
            rate = float(message.get("rows_per_s", 0.0))
            self._report(Progress("epoch", message["done"], message["total"], {}, rate))
