"""How is a FeaturePlan fitted? With mergeable statistics, in one pass over the shards."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from distributed import Client

from pipelines.data.mapping import MapProgress, map_shards
from pipelines.data.shards import Shard
from pipelines.data.source import Source
from pipelines.data.split import SplitPlan
from pipelines.errors import DataError, Fault, SpecError
from pipelines.features.config import FeatureConfig
from pipelines.features.foreign_fit import check_foreign, fit_foreign
from pipelines.features.freeze import NUMBERS, Freezer, domain_of
from pipelines.features.joining import join_shards
from pipelines.features.labels import label_faults, target_of
from pipelines.features.matrix import choose_sparse
from pipelines.features.plan import FeaturePlan
from pipelines.features.quantiles import SAMPLE_CELLS, SAMPLE_ROWS, SampleRule
from pipelines.features.resolve import AnyDraft, Categorical, Draft, ForeignDraft, resolve, value_type
from pipelines.features.scan import Found, SampleNeed, Scan, merge_all, sample_seed, scan_shard
from pipelines.features.steps import Input, Step, output_names
from pipelines.features.stored import Stored
from pipelines.features.target import LabelConfig, Target

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Fitted:
    """What one pass over the data found.

    Parameters
    ----------
    plan : FeaturePlan
    target : Target
    checks : mapping of split part to JSON-able per-column checks
        Parts are ``train``, ``validation`` and ``test``; all rows, those without a label too.
    rows : mapping of split part to int
        Labelled rows.
    dropped : mapping of reason to int
        ``label_null``: rows of all parts left out because their label is missing.
    """

    plan: FeaturePlan
    target: Target
    checks: Mapping[str, Any]
    rows: Mapping[str, int]
    dropped: Mapping[str, int]


def check_features(
    features: Sequence[FeatureConfig], label: LabelConfig, schema: pa.Schema, *, categorical: Categorical = "one_hot"
) -> list[Fault]:
    """Say everything that keeps features and label from fitting a schema; needs no data.

    Parameters
    ----------
    schema : Schema
        All columns that can be asked for: ``Source.arrow_schema``.
    """
    return [*label_faults(label, schema), *resolve(features, schema, label.columns, categorical)[1]]


def fit_features(
    features: Sequence[FeatureConfig],
    label: LabelConfig,
    source: Source,
    shards: Sequence[Shard],
    split: SplitPlan,
    *,
    client: Client | None = None,
    categorical: Categorical = "one_hot",
    sparse: bool | None = None,
    on_done: Callable[[MapProgress], None] | None = None,
) -> Fitted:
    """Fit features and target: statistics of the training split, checks of all parts, in one pass over the shards.

    Results are merged in shard order, so they are the same bits for any number of workers.

    Parameters
    ----------
    features, label
        As in the spec.
    source, shards, split
        What is read, and which rows are for training.
    client : distributed.Client, optional
        None: everything in this process.
    categorical : {"one_hot", "native"}
        What the estimator wants where a feature does not say.
    sparse : bool, optional
        Force a CSR or a dense matrix; None: CSR if one-hot columns make it sparse enough, but never for ``native``,
        whose trainers take what CSR leaves out for missing.
    on_done : callable, optional
        Called as `map_shards` does, for progress; it counts the shards of the pass, see `join_shards`.

    Raises
    ------
    SpecError
        Features or a label that do not fit the columns' types: all faults at once.
    DataError
        Labels or features that can't be used: see `LabelConfig` and `FeatureConfig`.
    UserCodeError
        A foreign transformer failed.
    """
    schema = source.arrow_schema
    faults = check_features(features, label, schema, categorical=categorical)
    if faults:
        raise SpecError(faults)
    drafts, _ = resolve(features, schema, label.columns, categorical)
    for draft in drafts:
        if isinstance(draft, ForeignDraft):
            check_foreign(draft)
    scan = plan_scan(drafts, label, source, split, rows=sum(shard.rows for shard in shards))
    with closing(map_shards(client, scan_shard, join_shards(shards), scan, on_done=on_done)) as results:
        found = merge_all(scan, (result for _, result in results))
    target = target_of(label, schema.field(label.column).type, found.labels)
    _refuse_infinities(found)
    return Fitted(
        plan=_freeze(drafts, scan, found, shards, client, sparse if categorical == "one_hot" else bool(sparse)),
        target=target,
        checks={part: checks.result() for part, checks in found.checks.items()},
        rows={part: summary.rows for part, summary in found.labels.items()},
        dropped={"label_null": sum(summary.missing for summary in found.labels.values())},
    )


def plan_scan(drafts: Sequence[AnyDraft], label: LabelConfig, source: Source, split: SplitPlan, *, rows: int) -> Scan:
    """Say what the pass over `rows` rows has to collect for some drafts."""
    own = [draft for draft in drafts if isinstance(draft, Draft)]
    foreign = [draft for draft in drafts if isinstance(draft, ForeignDraft)]
    few = tuple(_distinct(draft.input for draft in own if _wants_quantiles(draft)))
    columns = _distinct([*_input_columns(drafts), *label.columns])
    schema = pa.schema([source.arrow_schema.field(name) for name in columns])
    return Scan(
        source=source,
        split=split,
        label=label,
        schema=schema,
        moments=tuple(_distinct(draft.input for draft in own if draft.role in ("number", "bins"))),
        categories=tuple(_distinct((draft.input, value_type(draft)) for draft in own if _wants_counts(draft))),
        few=few,
        samples=tuple(_number_samples(few, rows) + [_foreign_sample(draft, rows) for draft in foreign]),
        finite=tuple(_finite_columns(drafts, schema)),
    )


def _input_columns(drafts: Sequence[AnyDraft]) -> Iterable[str]:
    for draft in drafts:
        yield from draft.feature.columns if isinstance(draft, ForeignDraft) else (draft.input.column,)


def _distinct(items: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(items))


def _wants_quantiles(draft: Draft) -> bool:
    by_quantile = draft.role == "bins" and draft.feature.bin_by == "quantile"
    return draft.impute == "median" or draft.scale == "robust" or by_quantile


def _wants_counts(draft: Draft) -> bool:
    return draft.role == "category" or draft.impute == "most_frequent"


def _number_samples(inputs: Sequence[Input], rows: int) -> list[SampleNeed]:
    if not inputs:
        return []
    wanted = min(SAMPLE_ROWS, SAMPLE_CELLS // len(inputs))
    return [SampleNeed(NUMBERS, SampleRule.of(wanted, rows), sample_seed(NUMBERS), inputs=tuple(inputs))]


def _foreign_sample(draft: ForeignDraft, rows: int) -> SampleNeed:
    feature = draft.feature
    wanted = feature.sample_rows if feature.fit == "sample" else 1
    rule = SampleRule.of(wanted, rows)
    return SampleNeed(foreign_key(draft), rule, sample_seed("transform", feature.seed), columns=feature.columns)


def foreign_key(draft: ForeignDraft) -> str:
    """Key of a foreign transformer's sample."""
    return f"features[{draft.item}]"


def _finite_columns(drafts: Sequence[AnyDraft], schema: pa.Schema) -> list[str]:
    strict = [draft for draft in drafts if draft.feature.infinities == "fail"]
    return [name for name in _distinct(_input_columns(strict)) if pa.types.is_floating(schema.field(name).type)]


def _refuse_infinities(found: Found) -> None:
    if not found.infinite:
        return
    listed = "; ".join(
        f"{column}: {infinities.count}, the first in {infinities.path}" for column, infinities in found.infinite.items()
    )
    raise DataError(
        f"{'a column has' if len(found.infinite) == 1 else f'{len(found.infinite)} columns have'} infinities",
        on="features", expected="finite numbers or nulls", found=listed,
        remedy="Set infinities: missing to treat them as missing, mend them with derive, or filter such rows",
    )  # fmt: skip


def _freeze(
    drafts: Sequence[AnyDraft], scan: Scan, found: Found, shards: Sequence[Shard], client: Client | None,
    sparse: bool | None,
) -> FeaturePlan:  # fmt: skip
    freezer = Freezer(found, scan.few)
    steps: list[Step] = []
    objects: dict[str, bytes] = {}
    for draft in drafts:
        if isinstance(draft, Draft):
            steps.append(freezer.step(draft))
        else:
            step, data = fit_foreign(draft, found.samples[foreign_key(draft)], scan, shards, client)
            steps.append(step)
            objects[step.file] = data
    count = sum(len(output_names(step, freezer.dictionaries)) for step in steps)
    chosen, density = choose_sparse(sum(freezer.stored_values(step) for step in steps), count)
    schema = pa.schema(
        [scan.schema.field(name).with_nullable(True).remove_metadata() for name in _distinct(_input_columns(drafts))]
    )
    return FeaturePlan(
        Stored(
            input_schema=schema,
            steps=tuple(steps),
            dictionaries=freezer.dictionaries,
            objects=objects,
            sparse=chosen if sparse is None else sparse,
            density=density,
            domains={
                name: domain_of(
                    found.moments.get(Input(name)), found.categories.get(Input(name)), schema.field(name).type
                )
                for name in schema.names
            },
        )
    )
