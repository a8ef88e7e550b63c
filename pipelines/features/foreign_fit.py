"""How is a foreign transformer fitted: on a seeded sample of training rows, or with `partial_fit` over all of them?"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any

import numpy as np
import pyarrow as pa
from distributed import Client
from scipy.sparse import issparse

from pipelines.data.mapping import map_shards
from pipelines.data.reader import read_batches
from pipelines.data.shards import Shard, join
from pipelines.errors import DataError, UserCodeError
from pipelines.features.columns import Columns
from pipelines.features.foreign import (
    as_matrix,
    blame,
    in_this_thread,
    make_transformer,
    names_of,
    plain,
    store,
    transform_matrix,
)
from pipelines.features.resolve import ForeignDraft
from pipelines.features.scan import Scan, labelled_rows
from pipelines.features.steps import Foreign


def check_foreign(draft: ForeignDraft) -> None:
    """Make the transformer and throw it away, so that one that can't be made fails before the data are read.

    Raises
    ------
    UserCodeError
        It can't be imported or made, or has no `partial_fit` where it is to be fitted incrementally.
    """
    feature, path = draft.feature, str(draft.feature.transform)
    transformer = make_transformer(path, feature.params, feature.seed)
    if feature.fit == "incremental" and not hasattr(transformer, "partial_fit"):
        raise UserCodeError(
            "has no partial_fit, so it can't be fitted incrementally", on=path,
            remedy="Use fit: sample, or choose another transformer",
        )  # fmt: skip


def fit_foreign(
    draft: ForeignDraft, sample: pa.Table, scan: Scan, shards: Sequence[Shard], client: Client | None
) -> tuple[Foreign, bytes]:
    """Fit a transformer and store it.

    Parameters
    ----------
    draft : ForeignDraft
    sample : Table
        Training rows: a column ``hash``, then the transformer's columns. All that `fit: sample` sees.
    scan, shards, client
        What `fit: incremental` reads, in one task, shard after shard in their order.

    Returns
    -------
    step : Foreign
    data : bytes
        Its skops file.
    """
    feature, path = draft.feature, str(draft.feature.transform)
    if sample.num_rows == 0:
        raise DataError(
            "there is no training row to fit a transformer on", on=f"features[{draft.item}]",
            remedy="Look at filter, split and label",
        )  # fmt: skip
    arrays = [column.combine_chunks() for column in sample.columns[1:]]
    if feature.fit == "sample":
        transformer = make_transformer(path, feature.params, feature.seed)
        rows = sample.num_rows
        _fit(transformer, as_matrix(arrays, transformer), path)
    else:
        transformer, rows = _fit_incrementally(draft, scan, shards, client)
    shown = as_matrix([array.slice(0, 1000) for array in arrays], transformer)
    result = transform_matrix(transformer, shown, path)
    data, trusted = store(transformer, path)
    step = Foreign(
        columns=feature.columns,
        path=path,
        params=feature.params,
        file=f"transform{draft.item}.skops",
        trusted=trusted,
        names=names_of(transformer, feature.columns, result.shape[1]),
        density=float(result.nnz / max(1, result.shape[0] * result.shape[1])) if issparse(result) else None,
        fit=feature.fit,
        rows=rows,
        seed=feature.seed,
    )
    return step, data


def _fit(transformer: Any, matrix: np.ndarray, path: str) -> None:
    with blame(path, f"failed in fit on a sample of {len(matrix)} rows"), in_this_thread(transformer):
        if not type(transformer).__module__.startswith("dask_ml.") or matrix.dtype == object:
            transformer.fit(matrix)
            return
        import dask
        import dask.array

        transformer.fit(dask.array.from_array(matrix, chunks=(len(matrix), -1)))
        for name, value in vars(transformer).items():
            if dask.is_dask_collection(value):
                # What it left to be computed would be stored as a graph.
                setattr(transformer, name, value.compute())


def _fit_incrementally(
    draft: ForeignDraft, scan: Scan, shards: Sequence[Shard], client: Client | None
) -> tuple[Any, int]:
    """Fit with `partial_fit` in one task that reads every shard; the order is fixed, so the result is too."""
    ((_, result),) = map_shards(client, fit_over, [join(shards)], draft, scan, deadline_s=INCREMENTAL_DEADLINE_S)
    return result


INCREMENTAL_DEADLINE_S = 24 * 3600.0


def fit_over(shard: Shard, draft: ForeignDraft, scan: Scan) -> tuple[Any, int]:
    """Fit a transformer with `partial_fit` over a shard's training rows; runs on a worker. Gives it and the rows."""
    feature, path = draft.feature, str(draft.feature.transform)
    transformer, rows = make_transformer(path, feature.params, feature.seed), 0
    reads = read_batches(scan.source, [shard], scan.schema.names, split=scan.split, part="train")
    with closing(reads):
        for read in reads:
            batch = labelled_rows(read.batch, scan.label.columns)
            if batch.num_rows:
                columns = Columns(batch, scan.schema)
                matrix = as_matrix([plain(columns.column(name)) for name in feature.columns], transformer)
                with blame(path, "failed in partial_fit"), in_this_thread(transformer):
                    transformer.partial_fit(matrix)
                rows += batch.num_rows
    return transformer, rows
