"""What of a spec does not fit the dataset's schema: known as soon as the footers are read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from pipelines.data.source import Source, make_source
from pipelines.errors import Fault, MutiraoError, NotFoundError, SpecError, UsageError
from pipelines.evaluation.catalogue import Kind, metric, names_for
from pipelines.evaluation.config import check_metrics, check_segments
from pipelines.features import check_features
from pipelines.training.estimators.registry import ChecksTarget

if TYPE_CHECKING:
    from pipelines.data.config import DataConfig
    from pipelines.data.dataset import Dataset
    from pipelines.spec import PipelineSpec
    from pipelines.training.estimators.registry import Estimator


_EXAMPLES = 64
"""So many combinations of a search's space are checked against the label."""


def sound_source(dataset: Dataset, config: DataConfig) -> tuple[Source, list[Fault]]:
    """Make a dataset's source; derived columns and a filter that can't be computed are left out, as faults."""
    derive: dict[str, str] = {}
    faults: list[Fault] = []
    for name, text in config.derive.items():
        with_it = config.model_copy(update={"filter": None, "derive": {**derive, name: text}})
        try:
            make_source(dataset, with_it)
        except (NotFoundError, UsageError) as error:
            faults += _expression_fault(f"data.derive.{name}", text, error, faults)
        else:
            derive[name] = text
    try:
        return make_source(dataset, config.model_copy(update={"derive": derive})), faults
    except (NotFoundError, UsageError) as error:
        faults += _expression_fault("data.filter", config.filter or "", error, faults)
    return make_source(dataset, config.model_copy(update={"filter": None, "derive": derive})), faults


def _expression_fault(path: str, text: str, error: MutiraoError, before: Sequence[Fault]) -> list[Fault]:
    """Tell what is wrong with an expression, unless it is only that it reads a column that could not be derived."""
    if any(repr(name) in error.what for name in _not_derived(before)):
        return []
    found = f", found {error.found}" if error.found else ""
    return [Fault(path, f"{error.what} in {text!r}{found}", error.remedy)]


def _not_derived(faults: Sequence[Fault]) -> list[str]:
    return [fault.path.removeprefix("data.derive.") for fault in faults if fault.path.startswith("data.derive.")]


def faults_against(
    spec: PipelineSpec, schema: pa.Schema, estimator: Estimator, *, besides: Sequence[Fault] = ()
) -> list[Fault]:
    """Find columns that don't exist or can't be used, and metrics that don't fit the kind of label, all at once.

    Columns that could not be derived, which `besides` tells, are missing for that reason only.
    """
    known = [f"{name!r}" for name in _not_derived(besides)]
    found = _all_against(spec, schema, estimator)
    return [fault for fault in found if not any(name in fault.message for name in known)]


def _all_against(spec: PipelineSpec, schema: pa.Schema, estimator: Estimator) -> list[Fault]:
    faults = check_features(spec.features, spec.label, schema, categorical=estimator.categorical)
    faults += [fault for path, column in _named(spec) for fault in _column(path, column, schema)]
    faults += check_segments(spec.evaluate, schema.names)
    kind = label_kind(spec, schema, estimator)
    if kind is not None:
        faults += check_metrics(spec.evaluate, kind)
        faults += _search_faults(spec, kind)
        if kind not in estimator.label_kinds:
            learns = " or ".join(estimator.label_kinds)
            message = f"{spec.train.estimator} learns {learns} labels, and {spec.label.column!r} is {kind}"
            faults.append(Fault("train.estimator", message, "Choose another estimator, or set label.kind"))
        elif isinstance(estimator, ChecksTarget):
            faults += _target_faults(spec, estimator, kind)
    return faults


def _target_faults(spec: PipelineSpec, estimator: ChecksTarget, kind: str) -> Iterator[Fault]:
    """Check what is trained, or examples of what a search will train; each fault is told once."""
    tune, told = spec.train.tune, set[Fault]()
    for found in [{}] if tune is None else tune.examples(_EXAMPLES):
        try:
            estimator.check_target(spec.train.for_trial(found), kind)
        except SpecError as error:
            yield from (fault for fault in error.faults if fault not in told)
            told |= set(error.faults)


def _search_faults(spec: PipelineSpec, kind: Kind) -> Iterator[Fault]:
    tune = spec.train.tune
    if tune is not None and tune.metric is not None and kind not in metric(tune.metric).kinds:
        fix = f"Use one of {', '.join(names_for(kind))}"
        yield Fault("train.tune.metric", f"{tune.metric} is not for a {kind} label", fix)


def label_kind(spec: PipelineSpec, schema: pa.Schema, estimator: Estimator) -> Kind | None:
    """Tell the label's kind, as far as it is known before the data are read."""
    if spec.label.kind != "auto":
        return spec.label.kind
    if len(estimator.label_kinds) == 1:
        return cast(Kind, estimator.label_kinds[0])
    if spec.label.column not in schema.names:
        return None
    return "binary" if pa.types.is_boolean(schema.field(spec.label.column).type) else None


def _named(spec: PipelineSpec) -> Iterator[tuple[str, str]]:
    if spec.split.by:
        yield "split.by", spec.split.by
    if spec.train.sample_weight:
        yield "train.sample_weight", spec.train.sample_weight


def _column(path: str, column: str, schema: pa.Schema) -> Iterator[Fault]:
    if column not in schema.names:
        error = NotFoundError.among("column", column, schema.names)
        yield Fault(path, error.what, error.remedy)
    elif pa.types.is_nested(schema.field(column).type):
        kind = schema.field(column).type
        yield Fault(path, f"{column!r} is nested ({kind})", "Derive a flat column from it, or leave it out")
