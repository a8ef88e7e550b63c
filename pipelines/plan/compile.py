"""From a spec to a frozen plan: open the dataset, check the spec against it, cut shards, find what is cached."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipelines.codec import digest, to_plain
from pipelines.data.dataset import Dataset, load_dataset, open_dataset
from pipelines.data.locating import absolute_source
from pipelines.data.shards import ShardPlan, default_shards, plan_shards
from pipelines.data.source import Source, input_columns
from pipelines.errors import DataError, ObjectNotFoundError, SpecError, StorageError
from pipelines.evaluation.catalogue import Kind
from pipelines.features.plan import FeaturePlan
from pipelines.plan.cache import StageCache
from pipelines.plan.keys import StageKey, code_digest, library_versions, source_digest
from pipelines.plan.memory import memory_faults, predict_memory
from pipelines.plan.schema_checks import faults_against, label_kind, sound_source
from pipelines.plan.value import Plan, PlannedData, PlannedSearch, PlannedShards, PlannedStage
from pipelines.plan.working_tree import git_state
from pipelines.search.words import default_metric, direction
from pipelines.storage import ObjectStore, open_store
from pipelines.training.estimators.registry import SurvivesLosses, resolve
from pipelines.training.tuning import describe_space

if TYPE_CHECKING:
    from pipelines.spec import PipelineSpec, Places, StageConfig

logger = logging.getLogger(__name__)

_ROOMS: dict[str, tuple[str, ...]] = {
    "split": ("pipelines.data",),
    "features": ("pipelines.data", "pipelines.features"),
    "train": ("pipelines.data", "pipelines.features", "pipelines.training", "pipelines.model"),
    "evaluate": ("pipelines.data", "pipelines.features", "pipelines.model", "pipelines.evaluation"),
}
_ROOMS["search"] = (*_ROOMS["train"], "pipelines.evaluation", "pipelines.search")
"""The rooms whose code computes each stage, and a training that searches: a change in them makes its cached results
stale."""


@dataclass(frozen=True)
class Compiled:
    """A plan with the values it was made from, which the run uses again.

    Attributes
    ----------
    manifest : Dataset
        The whole dataset, before pruning: what `check_unchanged` is asked of.
    dataset : Dataset
        What is left after pruning.
    """

    plan: Plan
    spec: PipelineSpec
    manifest: Dataset
    dataset: Dataset
    source: Source
    shards: ShardPlan


def compile_plan(
    spec: PipelineSpec,
    places: Places,
    *,
    code: str = "",
    manifest: Dataset | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Compiled:
    """Compile a spec whose own faults have been checked (`load_spec`).

    Parameters
    ----------
    places : Places
        Where runs and models live.
    code : str
        Digest of the user's code archive.
    manifest : Dataset, optional
        A manifest saved before: the dataset is taken as it was then.
    progress : callable, optional
        Called with (footers read, footers in all).

    Raises
    ------
    SpecError
        Columns or kinds that do not fit the dataset, all at once.
    DataError, NotFoundError, StorageError
        See `open_dataset`.
    """
    manifest = manifest or _open(spec, places, progress)
    source, broken = sound_source(manifest, spec.data)
    estimator = resolve(spec.train.estimator)
    faults = [*broken, *faults_against(spec, source.arrow_schema, estimator, besides=broken), *memory_faults(spec)]
    if faults:
        raise SpecError(faults, on=f"spec {spec.name!r} on {manifest.root}")
    columns = input_columns(source, used_columns(spec))
    dataset = _pruned(manifest, source)
    if dataset.rows == 0:
        raise DataError(
            "no row can meet the filter" if manifest.rows else "the dataset has no rows",
            on=manifest.root,
            found=f"{manifest.rows} rows before the filter {spec.data.filter!r}" if manifest.rows else "0 rows",
            remedy="Check data.filter and data.source.",
        )
    shards = plan_shards(dataset, columns, shards=default_shards(dataset, columns, max_workers=spec.cluster.highest))
    cache = StageCache(open_store(places.runs))
    ranks = _ranks(spec)
    survives = isinstance(estimator, SurvivesLosses)
    stages = _plan_stages(spec, source, dataset, shards, ranks, code, cache)
    searched = _plan_search(spec, label_kind(spec, source.arrow_schema, estimator), ranks)
    plan = Plan(
        pipeline=spec.name,
        spec=spec.model_dump(mode="json", exclude_unset=True),
        data=_describe(manifest, dataset, columns),
        shards=_describe_shards(shards),
        stages=stages,
        memory=predict_memory(
            spec,
            source,
            estimator,
            rows=dataset.rows,
            ranks=ranks if searched is None else searched.ranks,
            plan=_fitted_plan(cache, stages),
        ),
        ranks=ranks,
        threads=spec.cluster.worker.threads,
        code_digest=code,
        runs=places.runs,
        registry=places.registry,
        git=git_state(),
        least=min(spec.train.min_workers, ranks) if survives else None,
        most=max(ranks, spec.train.max_workers or spec.cluster.highest) if survives else ranks,
        search=searched,
    )
    return Compiled(plan, spec, manifest, dataset, source, shards)


def _ranks(spec: PipelineSpec) -> int:
    """How many ranks a training starts with: the cluster's workers, within the spec's own bounds."""
    workers, train = spec.cluster.workers, spec.train
    return max(min(workers, train.max_workers or workers), train.min_workers)


def used_columns(spec: PipelineSpec) -> set[str]:
    """Name the columns, derived ones too, that some stage of a spec looks at."""
    columns = {*spec.label.columns, *(column for feature in spec.features for column in feature.columns)}
    columns |= set(spec.evaluate.segments)
    columns |= {spec.split.by} if spec.split.by else set()
    columns |= {spec.train.sample_weight} if spec.train.sample_weight else set()
    return columns


def _open(spec: PipelineSpec, places: Places, progress: Callable[[int, int], None] | None) -> Dataset:
    """Open the dataset, through the manifest of an earlier plan where there is one: then only changes are read."""
    data = spec.data
    store = open_store(places.runs)
    here = data.model_copy(update={"source": absolute_source(data.source)})
    identity = {"source": to_plain(here)["source"], "drift": data.on_drift, "bad": data.on_bad_file}
    identity["columns"] = {name: to_plain(column) for name, column in data.columns.items()}
    key = f"cache/manifests/{digest(identity)}.arrow"
    known = _known_manifest(store, key)
    if known is not None:
        dataset = known.refresh()
    else:
        dataset = open_dataset(
            data.source,
            columns=data.columns,
            on_drift=data.on_drift,
            on_bad_file=data.on_bad_file,
            progress=progress,
        )
    dataset.save(store, key)
    return dataset


def _known_manifest(store: ObjectStore, key: str) -> Dataset | None:
    """The manifest of an earlier plan. It is only a cache: one that can't be read is made anew."""
    try:
        return load_dataset(store, key)
    except ObjectNotFoundError:
        return None
    except StorageError as error:
        logger.warning("the manifest of an earlier plan is not used: %s", error)
        return None


def _pruned(manifest: Dataset, source: Source) -> Dataset:
    return manifest.prune(source.filter, dict(source.derive)).dataset if source.filter else manifest


def _plan_stages(
    spec: PipelineSpec,
    source: Source,
    dataset: Dataset,
    shards: ShardPlan,
    ranks: int,
    code: str,
    cache: StageCache,
) -> tuple[PlannedStage, ...]:
    """Chain the stages: each key holds the keys of what it needs, so all are known before anything runs."""
    planned: dict[str, PlannedStage] = {}

    def add(name: str, needs: tuple[str, ...], *, cached: bool = True, always: str = "", **ingredients: Any) -> None:
        inputs = {f"input {need}": planned[need].key for need in needs}
        key = StageKey(name, {**ingredients, **inputs})
        hit = cached and cache.lookup(key) is not None
        why = "its result is in the cache" if hit else cache.why_missed(spec.name, key) if cached else always
        planned[name] = PlannedStage(name, needs, key.digest, key.ingredients, hit, why)

    def own(name: str) -> str:
        return code_digest(_ROOMS[name])

    split = {"parameters": to_plain(spec.split), "code": own("split")}
    rows = {"filter": source.filter, "derive": [list(pair) for pair in source.derive]}
    columns = {name: to_plain(column) for name, column in spec.data.columns.items()}
    add("split", (), dataset=dataset.content_digest, rows=rows, columns=columns, **split)
    estimator = resolve(spec.train.estimator)
    transforms = {f.transform: source_digest(f.transform) for f in spec.features if f.transform is not None}
    libraries = library_versions()
    add(
        "features",
        ("split",),
        parameters=[to_plain(feature) for feature in spec.features],
        label=to_plain(spec.label),
        categorical=estimator.categorical,
        shards=shards.digest,
        user_code=[code, transforms],
        libraries=libraries,
        code=own("features"),
    )
    train = {k: v for k, v in to_plain(spec.train).items() if k not in ("checkpoint", "min_workers")}
    searches = spec.train.tune is not None
    foreign = source_digest(spec.train.estimator) if "." in spec.train.estimator else ""
    add(
        "train",
        ("features",),
        parameters=train,
        ranks=ranks,
        user_code=[code, foreign],
        libraries=libraries | (library_versions(("cmaes", "optuna")) if searches else {}),
        code=own("search" if searches else "train"),
    )
    evaluate = {k: v for k, v in to_plain(spec.evaluate).items() if k != "require"}
    # the bounds decide nothing about the result; which metrics they ask for does
    evaluate["require"] = sorted(spec.evaluate.require)
    metric = spec.publish.metric if spec.publish else None
    add("evaluate", ("train",), parameters=evaluate, promote_by=metric, user_code=code, code=own("evaluate"))
    for stage in _in_order(spec.stages):
        add(
            stage.name,
            tuple(stage.needs),
            cached=stage.cache,
            always="every run calls it, unless it says cache: true",
            call=stage.call,
            parameters=dict(stage.params),
            user_code=[code, source_digest(stage.call)],
        )
    if spec.publish is not None:
        needs = ("evaluate", *(stage.name for stage in spec.stages))
        planned["publish"] = PlannedStage("publish", needs, "", {}, cached=False, why="every run publishes for itself")
    return tuple(planned.values())


def _in_order(stages: tuple[StageConfig, ...]) -> list[StageConfig]:
    """Order custom stages so that each comes after those that it needs; the spec has no circles."""
    own = {stage.name for stage in stages}
    placed: dict[str, StageConfig] = {}
    while len(placed) < len(stages):
        for stage in stages:
            if stage.name not in placed and all(need in placed or need not in own for need in stage.needs):
                placed[stage.name] = stage
    return list(placed.values())


def _plan_search(spec: PipelineSpec, kind: Kind | None, ranks: int) -> PlannedSearch | None:
    tune = spec.train.tune
    if tune is None:
        return None
    name = tune.metric or ("" if kind is None else default_metric(tune, kind))
    parallel = min(tune.parallel, ranks)
    return PlannedSearch(
        trials=tune.most,
        timeout_s=tune.timeout,
        metric=name,
        direction=direction(name) if name else "",
        sampler=tune.sampler,
        pruner=tune.pruner,
        parallel=parallel,
        ranks=ranks // parallel,
        space=describe_space(tune),
    )


def _fitted_plan(cache: StageCache, stages: tuple[PlannedStage, ...]) -> FeaturePlan | None:
    stage = next(stage for stage in stages if stage.name == "features")
    result = cache.lookup(stage.stage_key) if stage.cached else None
    if result is None:
        return None
    prefix = "plan/"
    names = [name for name in result.files if name.startswith(prefix)]
    return FeaturePlan.from_files(
        {name.removeprefix(prefix): cache.read(stage.stage_key, result, name) for name in names}
    )


def _describe(manifest: Dataset, dataset: Dataset, columns: tuple[str, ...]) -> PlannedData:
    return PlannedData(
        root=manifest.root,
        content_digest=manifest.content_digest,
        location_digest=manifest.location_digest,
        rows=dataset.rows,
        files=dataset.files.num_rows,
        row_groups=dataset.row_groups.num_rows,
        bytes=dataset.bytes,
        files_before=manifest.files.num_rows,
        row_groups_before=manifest.row_groups.num_rows,
        columns=columns,
        drift=tuple(str(drift) for drift in manifest.drift),
        skipped=tuple(f"{file.path}: {file.reason}" for file in manifest.skipped),
    )


def _describe_shards(plan: ShardPlan) -> PlannedShards:
    rows, sizes = [shard.rows for shard in plan.shards], [shard.bytes for shard in plan.shards]
    return PlannedShards(
        len(plan.shards), plan.digest, min(rows), max(rows), min(sizes), max(sizes), plan.largest_piece
    )
