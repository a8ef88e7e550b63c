"""What of a spec does not fit the dataset's schema: known as soon as the footers are read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from pipelines.errors import Fault, NotFoundError, SpecError
from pipelines.evaluation.catalogue import Kind
from pipelines.evaluation.config import check_metrics, check_segments
from pipelines.features import check_features
from pipelines.training.estimators.registry import ChecksTarget

if TYPE_CHECKING:
    from pipelines.spec import PipelineSpec
    from pipelines.training.estimators.registry import Estimator


def faults_against(spec: PipelineSpec, schema: pa.Schema, estimator: Estimator) -> list[Fault]:
    """Find columns that don't exist or can't be used, and metrics that don't fit the kind of label, all at once."""
    faults = check_features(spec.features, spec.label, schema, categorical=estimator.categorical)
    faults += [fault for path, column in _named(spec) for fault in _column(path, column, schema)]
    faults += check_segments(spec.evaluate, schema.names)
    kind = label_kind(spec, schema, estimator)
    if kind is not None:
        faults += check_metrics(spec.evaluate, kind)
        if kind not in estimator.label_kinds:
            learns = " or ".join(estimator.label_kinds)
            message = f"{spec.train.estimator} learns {learns} labels, and {spec.label.column!r} is {kind}"
            faults.append(Fault("train.estimator", message, "Choose another estimator, or set label.kind"))
        elif isinstance(estimator, ChecksTarget):
            faults += _target_faults(spec, estimator, kind)
    return faults


def _target_faults(spec: PipelineSpec, estimator: ChecksTarget, kind: str) -> tuple[Fault, ...]:
    try:
        estimator.check_target(spec.train, kind)
    except SpecError as error:
        return error.faults
    return ()


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
