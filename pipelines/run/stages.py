"""What each built-in stage computes, commits to the cache, and reads back."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cluster import describe_environment
from pipelines.codec import dump, load, to_plain
from pipelines.data.mapping import MapProgress
from pipelines.data.split import SplitPlan
from pipelines.data.splitting import fit_split
from pipelines.errors import CorruptArtifactError, SpecError
from pipelines.evaluation import Evaluation, EvaluationData, ModelRef, check_metrics, evaluate, tune
from pipelines.evaluation.catalogue import USUAL
from pipelines.features import FeaturePlan, Fitted, LabelConfig, Target, fit_features
from pipelines.model import Model, load_model, save_model
from pipelines.plan import Compiled
from pipelines.plan.cache import StageCache, StageResult
from pipelines.plan.keys import StageKey
from pipelines.run.folder import RunFolder
from pipelines.run.training_log import TrainingLog
from pipelines.storage import open_store
from pipelines.training.data import TrainingData
from pipelines.training.estimators.registry import resolve
from pipelines.training.fit import Progress, fit
from pipelines.training.gang import Strikes
from pipelines.training.happenings import Happening

if TYPE_CHECKING:
    from distributed import Client

TRIALS = "trials.json"
"""The file of a training's result that tells the trials of a search."""

Report = Callable[..., None]
"""Called with a stage's progress: done, total, unit, rate, metrics."""


@dataclass
class Work:
    """One attempt at a compiled plan: what the stages share.

    Attributes
    ----------
    client : callable
        Returns the cluster's client, starting the cluster the first time.
    report : callable
        Takes the stage's name and its progress as keywords.
    stop : threading.Event
        Set when the run is asked to save its state and leave.
    log : TrainingLog
        Takes down what happens to the training.
    strikes : Strikes, optional
        Faults to inject into it on purpose.
    on_trials : callable
        Takes what is told of a search's trials, and of the best so far.
    """

    compiled: Compiled
    folder: RunFolder
    cache: StageCache
    client: Callable[[], Client]
    report: Report
    stop: threading.Event
    log: TrainingLog
    strikes: Strikes | None = None
    on_trials: Callable[[list[dict[str, Any]], dict[str, Any] | None], None] = lambda trials, best: None

    def result(self, name: str) -> StageResult:
        """Find the committed result of a stage that has run."""
        found = self.cache.lookup(self.compiled.plan.by_name[name].stage_key)
        if found is None:
            where = f"{self.cache.store.url}/{self.cache.folder(self.compiled.plan.by_name[name].stage_key)}"
            raise CorruptArtifactError("the stage's result is gone from the cache", on=where, remedy="Resume the run.")
        return found

    def read(self, name: str, file: str) -> bytes:
        """Read one file of a stage's result."""
        return self.cache.read(self.compiled.plan.by_name[name].stage_key, self.result(name), file)

    def split(self) -> SplitPlan:
        """Read the fitted split."""
        return load(SplitPlan, self.read("split", "split.json"))

    def fitted(self) -> Fitted:
        """Read the fitted features, target and checks."""
        result, prefix = self.result("features"), "plan/"
        files = {
            name.removeprefix(prefix): self.read("features", name) for name in result.files if name.startswith(prefix)
        }
        rest = json.loads(self.read("features", "fitted.json"))
        target = load(Target, self.read("features", "target.json"))
        return Fitted(FeaturePlan.from_files(files), target, rest["checks"], rest["rows"], rest["dropped"])

    def model_ref(self, stage: str) -> ModelRef:
        """Where a stage (``train`` or ``evaluate``) has put its model."""
        key = self.compiled.plan.by_name[stage].stage_key
        digest = str(self.result(stage).summary["model_digest"])
        return ModelRef(self.cache.store.url, model_prefix(self.cache, key, digest), digest)

    def model(self, stage: str = "evaluate") -> Model:
        """Load a stage's model."""
        ref = self.model_ref(stage)
        return load_model(ref.url, ref.prefix, ref.digest)

    def evaluation(self) -> Evaluation:
        """Read the evaluation."""
        return load(Evaluation, self.read("evaluate", "evaluation.json"))

    def evaluation_data(self) -> EvaluationData:
        """The data that models of this run are evaluated on."""
        return EvaluationData(
            source=self.compiled.source,
            shards=self.compiled.shards,
            split=self.split(),
            target=self.fitted().target,
            sample_weight=self.compiled.spec.train.sample_weight,
        )


def shard_progress(work: Work, stage: str) -> Callable[[MapProgress], None]:
    """Turn the counts of shards that are done into progress events with rows per second."""
    started = time.monotonic()

    def on_done(done: Any) -> None:
        elapsed = max(time.monotonic() - started, 1e-9)
        work.report(stage, unit="shards", done=done.shards, total=done.shards_total, rows_per_s=done.rows / elapsed)

    return on_done


def run_split(work: Work) -> tuple[dict[str, bytes], dict[str, Any]]:
    """Fit the split."""
    compiled = work.compiled
    needs_pass = compiled.spec.split.kind in ("stratified", "time")
    client = work.client() if needs_pass else None
    plan = fit_split(compiled.spec.split, compiled.source, compiled.shards.shards, client)
    return {"split.json": dump(plan)}, {"kind": compiled.spec.split.kind, "by": compiled.spec.split.by}


def run_features(work: Work) -> tuple[dict[str, bytes], dict[str, Any]]:
    """Fit features and target, and check the rows, in one pass."""
    compiled, estimator = work.compiled, resolve(work.compiled.spec.train.estimator)
    fitted = fit_features(
        compiled.spec.features,
        _label(compiled.spec.label, estimator.label_kinds),
        compiled.source,
        compiled.shards.shards,
        work.split(),
        client=work.client(),
        categorical=estimator.categorical,
        on_done=shard_progress(work, "features"),
    )
    faults = check_metrics(compiled.spec.evaluate, fitted.target.kind)
    if faults:
        raise SpecError(faults, on=f"spec {compiled.spec.name!r}")
    rest = {"checks": to_plain(fitted.checks), "rows": dict(fitted.rows), "dropped": dict(fitted.dropped)}
    files = {f"plan/{name}": data for name, data in fitted.plan.files().items()}
    files |= {"target.json": dump(fitted.target), "fitted.json": json.dumps(rest, sort_keys=True).encode()}
    summary = {
        "features": len(fitted.plan.names),
        "target": fitted.target.kind,
        "rows": dict(fitted.rows),
        "dropped": dict(fitted.dropped),
    }
    return files, summary


def _label(label: LabelConfig, kinds: tuple[str, ...]) -> LabelConfig:
    """An estimator that learns one kind of label only says what an ``auto`` label is."""
    only = kinds[0] if len(kinds) == 1 else None
    return label.model_copy(update={"kind": only}) if label.kind == "auto" and only else label


def run_train(work: Work) -> tuple[dict[str, bytes], dict[str, Any]]:
    """Train, from the run's last checkpoint if it has one."""
    compiled, fitted = work.compiled, work.fitted()
    spec = compiled.spec
    data = TrainingData(
        source=compiled.source,
        shards=compiled.shards,
        split=work.split(),
        features=fitted.plan,
        target=fitted.target,
        sample_weight=spec.train.sample_weight,
        rows=dict(fitted.rows),
    )

    if spec.train.tune is not None:
        from pipelines.run.searching import run_search

        return run_search(work, data)
    began = time.time()

    def report(progress: Progress) -> None:
        work.report(
            "train",
            unit=f"{progress.unit}s",
            done=progress.done,
            total=progress.total,
            rows_per_s=progress.rows_per_s,
            metrics=progress.metrics,
            began=began,
        )

    def happened(happening: Happening) -> None:
        if happening.what == "waits":
            work.report("train", unit="", done=0, total=None, waiting=happening.text)
        work.log.happened(happening)

    trained = fit(
        spec.train,
        data,
        client=work.client(),
        ranks=compiled.plan.ranks,
        min_ranks=min(spec.train.min_workers, compiled.plan.ranks),
        max_ranks=compiled.plan.most,
        threads=compiled.plan.threads,
        memory_bytes=spec.cluster.worker.memory,
        checkpoint_url=work.folder.checkpoint_url,
        report=report,
        stop=work.stop,
        happened=happened,
        resuming=work.log.resuming,
        strikes=work.strikes,
    )
    return trained_result(work, Model.from_fit(trained, fitted.plan, fitted.target), trained.summary)


def trained_result(work: Work, model: Model, trained: dict[str, Any]) -> tuple[dict[str, bytes], dict[str, Any]]:
    """Put a trained model into the stage's result, with what its training says about itself."""
    digest = _save(work, "train", model)
    summary = {k: v for k, v in trained.items() if k != "history"}
    files = {
        "summary.json": json.dumps(trained, sort_keys=True, default=float).encode(),
        "environment.json": dump(describe_environment()),
    }
    return files, {"model_digest": digest, "kind": model.kind, "python_only": model.python_only, **summary}


def run_evaluate(work: Work) -> tuple[dict[str, bytes], dict[str, Any]]:
    """Calibrate and choose the threshold on validation, then measure the final model on validation and test."""
    compiled = work.compiled
    spec, data, trained = compiled.spec, work.evaluation_data(), work.model_ref("train")
    tuning = tune(
        trained, data, spec.evaluate, client=work.client(), scratch_url=work.folder.scratch_url, part="validation"
    )
    digest = _save(work, "evaluate", tuning.apply(work.model("train")))
    key = compiled.plan.by_name["evaluate"].stage_key
    parts = tuple(
        part for part, share in (("validation", spec.split.validation), ("test", spec.split.test)) if share > 0
    )
    metric = promotion_metric(work)
    evaluation = evaluate(
        ModelRef(work.cache.store.url, model_prefix(work.cache, key, digest), digest),
        data,
        spec.evaluate,
        client=work.client(),
        scratch_url=work.folder.scratch_url,
        parts=parts,
        also=(metric,) if metric else (),
        on_done=shard_progress(work, "evaluate"),
    )
    files = {"evaluation.json": dump(evaluation), "tuning.json": dump(tuning)}
    return files, {"model_digest": digest, "metrics": metrics_of(evaluation)}


def _save(work: Work, stage: str, model: Model) -> str:
    """Put a stage's model beside its result; the digest is in the summary, which is committed after it."""
    key = work.compiled.plan.by_name[stage].stage_key
    return save_model(model, open_store(work.cache.store.url), model_prefix(work.cache, key, model.digest))


def model_prefix(cache: StageCache, key: StageKey, digest: str) -> str:
    """Where a stage's model lies: under its digest, so that two runs at once never write over each other's."""
    return f"{cache.folder(key)}/model/{digest}"


def promotion_metric(work: Work) -> str | None:
    """What a promotion compares: as the spec says, or the first metric that is measured."""
    spec = work.compiled.spec
    if spec.publish is None:
        return None
    return spec.publish.metric or (*spec.evaluate.metrics, *USUAL[work.fitted().target.kind])[0]


def metrics_of(evaluation: Evaluation) -> dict[str, dict[str, float | None]]:
    """The metrics of each part, as the run's record shows them."""
    return {name: dict(part.measures.metrics) for name, part in evaluation.parts.items()}
