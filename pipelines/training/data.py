"""From shards to labelled rows, transformed: in a stream, or as one matrix."""

from __future__ import annotations

import base64
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy.sparse import csr_matrix

from pipelines import codec
from pipelines.data.reader import read_batches
from pipelines.data.rows import RowIds
from pipelines.data.shards import Shard, ShardPlan
from pipelines.data.source import Source
from pipelines.data.split import SplitPlan
from pipelines.errors import DataError
from pipelines.features.plan import FeaturePlan
from pipelines.features.target import Target
from pipelines.training.gang.context import Array

BATCH_ROWS = 65_536
MAX_BYTES_IN_FLIGHT = 64 << 20


@dataclass(frozen=True)
class TrainingData:
    """Everything that says what is learned from, small enough to be sent to every rank.

    `rows` are the labelled rows of each part (``{"train": …, "validation": …}``), known since the features were fitted.
    """

    source: Source
    shards: ShardPlan
    split: SplitPlan
    features: FeaturePlan
    target: Target
    sample_weight: str | None = None
    rows: dict[str, int] | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read: the features' inputs, the label, the weight."""
        weight = [self.sample_weight] if self.sample_weight else []
        return tuple(dict.fromkeys([*self.features.inputs, *self.target.columns, *weight]))

    @property
    def labels(self) -> int:
        """How many values are learned for each row; classes are one."""
        return len(self.target.columns)

    @property
    def outputs(self) -> int:
        """How many scores of a row are learned: one of two classes, else one for each class or label."""
        classes = len(self.target.classes)
        return classes if classes > 2 else self.labels

    def subset(self, places: Sequence[int]) -> TrainingData:
        """Keep only the shards at `places` of the plan, in that order."""
        shards = tuple(self.shards.shards[place] for place in places)
        return replace(self, shards=replace(self.shards, shards=shards), rows=None)

    def to_plain(self) -> dict[str, Any]:
        """Turn it into JSON values, for `run_gang`'s arguments."""
        files = {name: base64.b64encode(data).decode() for name, data in self.features.files().items()}
        return {
            "source": codec.to_plain(self.source),
            "shards": codec.to_plain(self.shards),
            "split": codec.to_plain(self.split),
            "features": files,
            "target": codec.to_plain(self.target),
            "sample_weight": self.sample_weight,
            "rows": self.rows,
        }

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> TrainingData:
        """Rebuild it in a rank."""
        files = {name: base64.b64decode(text) for name, text in plain["features"].items()}
        return cls(
            source=codec.from_plain(Source, plain["source"]),
            shards=codec.from_plain(ShardPlan, plain["shards"]),
            split=codec.from_plain(SplitPlan, plain["split"]),
            features=FeaturePlan.from_files(files),
            target=codec.from_plain(Target, plain["target"]),
            sample_weight=plain["sample_weight"],
            rows=plain["rows"],
        )


@dataclass(frozen=True, eq=False)
class Labelled:
    """A batch of rows that have a label, not transformed yet.

    y : ndarray of float32, shape (rows,): class codes, or values; shape (rows, labels) where there are several
    weight : ndarray of float32, shape (rows,), or None: sample weights (without class weights)
    shard : int, place in the sequence of shards that is read
    rows : RowIds or None: the rows' identities, where they were asked for
    """

    batch: pa.RecordBatch
    y: Array
    weight: Array | None
    shard: int
    rows: RowIds | None = None


@dataclass(frozen=True, eq=False)
class Rows:
    """Some rows as a trainer wants them.

    X : ndarray of float32, column-major, shape (rows, features), or ``scipy.sparse.csr_matrix`` of float32
    y : ndarray of float32, shape (rows,): class codes, or values; shape (rows, labels) where there are several
    weight : ndarray of float32, shape (rows,), or None: sample weights (without class weights)
    """

    X: Any
    y: Array
    weight: Array | None


def read_labelled(
    data: TrainingData,
    shards: Sequence[Shard],
    part: str | None,
    *,
    batch_rows: int = BATCH_ROWS,
    max_bytes_in_flight: int = MAX_BYTES_IN_FLIGHT,
    threads: int | None = None,
    row_ids: bool = False,
) -> Generator[Labelled, None, None]:
    """Stream a split's labelled rows of `shards`, in their order, as Arrow batches with encoded labels.

    Parameters
    ----------
    part : {"train", "validation", "test"} or None
        None reads all rows.
    row_ids : bool
        Whether to give each row's identity.

    Raises
    ------
    DataError
        Sample weights that are missing, negative or not finite; labels that can't be encoded.
    """
    reads = read_batches(
        data.source,
        shards,
        data.columns,
        split=data.split if part is not None else None,
        part=part,
        batch_rows=batch_rows,
        max_bytes_in_flight=max_bytes_in_flight,
        threads=threads,
        row_ids=row_ids,
    )
    with closing(reads):
        for read in reads:
            batch, rows = read.batch, read.rows
            mask = data.target.labelled(batch)
            if mask is not None:
                batch = batch.filter(pa.array(mask))
                rows = rows and replace(rows, rows=rows.rows[mask])
            if batch.num_rows:
                yield Labelled(
                    batch, data.target.encode_rows(batch), _weights(batch, data.sample_weight), read.shard, rows
                )


def read_rows(
    data: TrainingData,
    shards: Sequence[Shard],
    part: str | None,
    *,
    batch_rows: int = BATCH_ROWS,
    max_bytes_in_flight: int = MAX_BYTES_IN_FLIGHT,
    threads: int | None = None,
) -> Iterator[Rows]:
    """Stream a split's labelled rows of `shards`, transformed, batch by batch, in the order of the shards."""
    options: dict[str, Any] = {"max_bytes_in_flight": max_bytes_in_flight, "threads": threads}
    for each in read_labelled(data, shards, part, batch_rows=batch_rows, **options):
        yield Rows(data.features.transform(each.batch), each.y, each.weight)


def load_part(data: TrainingData, shards: Sequence[Shard], part: str | None, *, threads: int | None = None) -> Rows:
    """Read a split's labelled rows of `shards` into one matrix, without a second copy of it.

    The number of rows is known for the whole plan; for some of its shards it is counted first, by reading the label
    and the columns of the split only.
    """
    whole = len(shards) == len(data.shards.shards)
    known = data.rows.get(part) if data.rows is not None and part is not None and whole else None
    rows = count_rows(data, shards, part, threads=threads) if known is None else known
    y = np.empty(rows if data.labels == 1 else (rows, data.labels), np.float32)
    weight = np.empty(rows, np.float32) if data.sample_weight else None
    sparse: list[Any] = []
    X = None if data.features.sparse else np.empty((rows, len(data.features.names)), np.float32, order="F")
    start = 0
    for each in read_labelled(data, shards, part, threads=threads):
        stop = start + each.batch.num_rows
        if stop > rows:
            break
        y[start:stop] = each.y
        if weight is not None:
            weight[start:stop] = each.weight
        if X is None:
            sparse.append(data.features.transform(each.batch))
        else:
            data.features.transform(each.batch, out=X[start:stop])
        start = stop
    if start != rows:
        raise DataError(
            "the rows are not those that were counted", expected=str(rows), found=str(start), remedy="Plan again."
        )
    return Rows(_stacked(sparse, len(data.features.names)) if X is None else X, y, weight)


def count_rows(data: TrainingData, shards: Sequence[Shard], part: str | None, *, threads: int | None = None) -> int:
    """Count a split's labelled rows of `shards`, reading the label and the columns of the split only."""
    split = data.split if part is not None else None
    reads = read_batches(data.source, shards, list(data.target.columns), split=split, part=part, threads=threads)
    count = 0
    for read in reads:
        mask = data.target.labelled(read.batch)
        count += read.batch.num_rows if mask is None else int(mask.sum())
    return count


def _weights(batch: pa.RecordBatch, column: str | None) -> Array | None:
    if column is None:
        return None
    held = batch.column(column)
    if held.null_count:
        raise DataError(
            "sample weights are missing", on=f"column {column}", found=f"{held.null_count} nulls in a batch"
        )
    weights = pc.cast(held, pa.float64()).to_numpy(zero_copy_only=False)
    if not (np.isfinite(weights).all() and (weights >= 0).all()):
        worst = weights[~(np.isfinite(weights) & (weights >= 0))][0]
        raise DataError(
            "a sample weight can't be used", on=f"column {column}", expected="finite numbers ≥ 0", found=f"{worst}"
        )
    return weights.astype(np.float32)


def _stacked(parts: list[Any], columns: int) -> Any:
    """Put CSR batches below each other, one of their three arrays at a time; empties `parts`."""
    if not parts:
        return csr_matrix(np.empty((0, columns), np.float32))
    counts = np.concatenate([np.diff(part.indptr) for part in parts])
    indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])
    if indptr[-1] < 2**31:
        indptr = indptr.astype(np.int32)
    indices = np.concatenate([part.indices for part in parts]).astype(indptr.dtype, copy=False)
    for part in parts:
        part.indices = np.empty(0, np.int32)
    values = np.concatenate([part.data for part in parts])
    parts.clear()
    return csr_matrix((values, indices, indptr), shape=(len(counts), columns), copy=False)
