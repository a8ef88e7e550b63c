"""How is a split fitted to a dataset? One pass over one column where shares of the rows must be found, else none."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from distributed import Client

from pipelines.data.hashing import hash_values, hashable
from pipelines.data.mapping import OnDone, map_shards
from pipelines.data.quantiles import HashRanks, ValueCounts
from pipelines.data.reader import read_batches
from pipelines.data.shards import Shard
from pipelines.data.source import Source
from pipelines.data.split import PARTS, Cuts, SplitConfig, SplitPlan, Stratum, scale_of, scale_text, time_scale
from pipelines.errors import NotFoundError, UsageError

MOST_STRATA = 10_000


def fit_split(
    config: SplitConfig,
    source: Source,
    shards: Sequence[Shard],
    client: Client | None = None,
    *,
    on_done: OnDone | None = None,
) -> SplitPlan:
    """Fit a split. The result does not hang on how the data were dealt to workers.

    Parameters
    ----------
    config : SplitConfig
    source : Source
        Its filter counts: shares are of the rows that it leaves.
    shards : sequence of Shard
    client : distributed.Client, optional
    on_done : callable, optional
        See `map_shards`.

    Raises
    ------
    NotFoundError
        There is no such column.
    UsageError
        A column of a type that can't be split by, or with more than 10,000 values to stratify by.
    """
    plan = SplitPlan(config.kind, config.by, config.validation, config.test, config.seed)
    if config.by is None:
        return plan
    type = _type_of(config, source)
    if config.kind == "stratified":
        return _stratified(plan, source, shards, client, on_done)
    if config.kind == "time":
        return _by_time(plan, type, source, shards, client, on_done)
    return plan


def count_parts(
    plan: SplitPlan, source: Source, shards: Sequence[Shard], client: Client | None = None
) -> dict[str, int]:
    """Count the rows of each part: one pass over the columns of the split."""
    counts = sum((np.array(found) for _, found in map_shards(client, _count, shards, source, plan)), np.zeros(3, int))
    return dict(zip(PARTS, counts.tolist(), strict=True))


def _type_of(config: SplitConfig, source: Source) -> pa.DataType:
    schema = source.arrow_schema
    if config.by not in schema.names:
        raise NotFoundError.among("column", str(config.by), schema.names, on="split.by")
    type = schema.field(config.by).type
    if config.kind == "time" and scale_of(type) is None:
        raise UsageError(
            f"column {config.by!r} has no order in time",
            on="split.by",
            expected="a date, a timestamp or a number",
            found=str(type),
            remedy=f"Derive one, like cast({config.by}, 'timestamp[s]').",
        )
    if not hashable(type):
        raise UsageError(
            f"column {config.by!r} can't be split by", on="split.by", expected="a plain type", found=str(type)
        )
    return type


# --- stratified ------------------------------------------------------------------------------------------------------

_Strata = dict[int, tuple[str | None, HashRanks]]


def _stratified(
    plan: SplitPlan, source: Source, shards: Sequence[Shard], client: Client | None, on_done: OnDone | None
) -> SplitPlan:
    strata: _Strata = {}
    with closing(map_shards(client, _rank, shards, source, plan, on_done=on_done)) as results:
        for _, found in results:
            for key, (text, ranks) in found.items():
                if key in strata:
                    strata[key][1].merge(ranks)
                else:
                    strata[key] = (text, ranks)
            _check_count(plan, strata)
    fitted = []
    for key, (text, ranks) in sorted(strata.items()):
        test, validation = ranks.thresholds()
        fitted.append(Stratum(text, key, ranks.rows, test, validation))
    return SplitPlan(plan.kind, plan.by, plan.validation, plan.test, plan.seed, strata=tuple(fitted))


def _rank(shard: Shard, source: Source, plan: SplitPlan) -> _Strata:
    """Order statistics of the rows' hashes in every stratum of a shard."""
    strata: _Strata = {}
    shares = (plan.test, plan.test + plan.validation)
    for read in read_batches(source, [shard], plan.columns, row_ids=True):
        hashes = plan.row_hashes(read.rows)
        values = read.batch.column(0)
        if not pa.types.is_dictionary(values.type):
            values = values.dictionary_encode("encode")
        codes = pc.fill_null(values.indices.cast(pa.int64()), len(values.dictionary)).to_numpy(zero_copy_only=False)
        distinct = pa.concat_arrays([values.dictionary, pa.nulls(1, values.dictionary.type)])
        keys = hash_values(distinct)
        order = np.argsort(codes, kind="stable")
        present, starts = np.unique(codes[order], return_index=True)
        for code, mine in zip(present, np.split(hashes[order], starts[1:]), strict=True):
            key = int(keys[code])
            if key not in strata:
                value = distinct[code]
                strata[key] = (str(value.as_py()) if value.is_valid else None, HashRanks(shares))
            strata[key][1].update(mine)
        _check_count(plan, strata)
    return strata


def _check_count(plan: SplitPlan, strata: _Strata) -> None:
    if len(strata) > MOST_STRATA:
        raise UsageError(
            f"column {plan.by!r} has too many values to stratify by",
            on="split.by",
            expected=f"at most {MOST_STRATA}",
            remedy="Choose a column of classes, or a split of kind grouped.",
        )


# --- time ------------------------------------------------------------------------------------------------------------


def _by_time(
    plan: SplitPlan,
    type: pa.DataType,
    source: Source,
    shards: Sequence[Shard],
    client: Client | None,
    on_done: OnDone | None,
) -> SplitPlan:
    scale = scale_of(type)
    assert scale is not None
    counts = ValueCounts()
    with closing(map_shards(client, _count_values, shards, source, plan, scale, on_done=on_done)) as results:
        for _, found in results:
            counts.merge(found)
    test, validation = counts.cuts((plan.test, plan.test + plan.validation))
    cuts = Cuts(scale, validation, test, scale_text(validation, scale), scale_text(test, scale))
    return SplitPlan(plan.kind, plan.by, plan.validation, plan.test, plan.seed, cuts=cuts)


def _count_values(shard: Shard, source: Source, plan: SplitPlan, scale: str) -> ValueCounts:
    counts = ValueCounts()
    for read in read_batches(source, [shard], plan.columns):
        moments, valid = time_scale(read.batch.column(0), scale)
        counts.update(moments[valid])
    return counts


def _count(shard: Shard, source: Source, plan: SplitPlan) -> list[int]:
    counts = np.zeros(len(PARTS), np.int64)
    for read in read_batches(source, [shard], plan.columns, split=plan, row_ids=True):
        assert read.parts is not None
        counts += np.bincount(read.parts, minlength=len(PARTS))
    return counts.tolist()
