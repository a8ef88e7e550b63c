"""What does the pass collect from a shard? Statistics of the training split, labels and checks of all parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.data.checks import Checks
from pipelines.data.hashing import hash_rows, seed_word
from pipelines.data.reader import BATCH_ROWS, Read, read_batches
from pipelines.data.rows import RowIds
from pipelines.data.shards import Shard
from pipelines.data.source import Source
from pipelines.data.split import PARTS, SplitPlan
from pipelines.features.columns import Columns, as_numbers
from pipelines.features.counts import FEW_DISTINCT, MOST_DISTINCT, Counter, Counts
from pipelines.features.labels import LabelScanner, LabelSummary
from pipelines.features.moments import NOTHING, Moments, measure
from pipelines.features.quantiles import Sample, SampleRule
from pipelines.features.steps import Input
from pipelines.features.target import LabelConfig


@dataclass(frozen=True)
class SampleNeed:
    """A sample of training rows: of some inputs' numbers, or (with `columns`) of columns as they are."""

    key: str
    rule: SampleRule
    seed: int
    inputs: tuple[Input, ...] = ()
    columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class Scan:
    """What a pass collects; small, and sent to every worker.

    Parameters
    ----------
    source, split, label
    schema : Schema
        Of the columns to read.
    moments : tuple of Input
        Inputs whose mean, variance and range are wanted.
    categories : tuple of (Input, DataType)
        Inputs whose distinct values are wanted, and the type to keep them in.
    few : tuple of Input
        Numbers whose distinct values are wanted if they are few.
    samples : tuple of SampleNeed
    finite : tuple of str
        Columns that must hold no infinity, in any part.
    """

    source: Source
    split: SplitPlan
    label: LabelConfig
    schema: pa.Schema
    moments: tuple[Input, ...]
    categories: tuple[tuple[Input, pa.DataType], ...]
    few: tuple[Input, ...]
    samples: tuple[SampleNeed, ...]
    finite: tuple[str, ...]


@dataclass(frozen=True)
class Infinities:
    """Infinities of a column, and the first file that has one."""

    count: int
    path: str


@dataclass(frozen=True, eq=False)
class Found:
    """What a pass found in some shards, by split part or by input."""

    labels: Mapping[str, LabelSummary]
    checks: Mapping[str, Checks]
    infinite: Mapping[str, Infinities]
    moments: Mapping[Input, Moments]
    categories: Mapping[Input, Counts]
    few: Mapping[Input, Counts]
    samples: Mapping[str, pa.Table]


def scan_shard(shard: Shard, scan: Scan) -> Found:
    """Read a shard once and collect; runs on a worker."""
    collector = Collector(scan)
    reads = read_batches(scan.source, [shard], scan.schema.names, split=scan.split, row_ids=True)
    with closing(reads):
        for read in reads:
            collector.update(read)
    return collector.result()


class Collector:
    """Collects over batches of one shard, and over the shards' results."""

    def __init__(self, scan: Scan) -> None:
        self._scan = scan
        types = [scan.schema.field(column).type for column in scan.label.columns]
        self._labels = {part: LabelScanner(scan.label, types[0], types[1:]) for part in PARTS}
        self._checks = {part: Checks(scan.schema) for part in PARTS}
        self._unchecked: dict[str, list[pa.RecordBatch]] = {part: [] for part in PARTS}
        self._infinite: dict[str, Infinities] = {}
        self._moments = dict.fromkeys(scan.moments, NOTHING)
        self._categories = {source: Counter(kept, MOST_DISTINCT) for source, kept in scan.categories}
        self._few = {source: Counter(pa.float64(), FEW_DISTINCT) for source in scan.few}
        self._samples = {need.key: Sample(need.rule, _sampled_schema(scan, need)) for need in scan.samples}

    def update(self, read: Read) -> None:
        """Take in a batch with its parts and rows."""
        assert read.parts is not None
        assert read.rows is not None
        self._find_infinities(read.batch, read.rows.path)
        for number, part in enumerate(PARTS):
            there = read.parts == number
            if not there.any():
                continue
            batch = _rows(read.batch, there)
            self._check(part, batch)
            labelled = _labelled(batch, self._scan.label.columns)
            kept = batch if labelled is None else _rows(batch, labelled)
            label, *others = (kept.column(kept.schema.get_field_index(name)) for name in self._scan.label.columns)
            self._labels[part].update(label, batch.num_rows - kept.num_rows, read.rows.path, others)
            if part == "train" and kept.num_rows:
                if labelled is not None:
                    there[there] = labelled
                self._train(kept, _identities(read.rows, there))

    def merge(self, found: Found) -> None:
        """Take over the results of later shards."""
        for part, summary in found.labels.items():
            self._labels[part].merge(summary)
        for part, checks in found.checks.items():
            self._checks[part].merge(checks)
        for column, infinities in found.infinite.items():
            self._add_infinities(column, infinities)
        for source, moments in found.moments.items():
            self._moments[source] = self._moments[source].merge(moments)
        for source, counts in found.categories.items():
            self._categories[source].merge(counts)
        for source, counts in found.few.items():
            self._few[source].merge(counts)
        for key, table in found.samples.items():
            self._samples[key].merge(table)

    def result(self) -> Found:
        """Give what was collected so far."""
        for part in PARTS:
            self._check_now(part)
        return Found(
            labels={part: scanner.result() for part, scanner in self._labels.items()},
            checks=self._checks,
            infinite=dict(self._infinite),
            moments=dict(self._moments),
            categories={source: counter.result() for source, counter in self._categories.items()},
            few={source: counter.result() for source, counter in self._few.items()},
            samples={key: sample.table for key, sample in self._samples.items()},
        )

    def _check(self, part: str, batch: pa.RecordBatch) -> None:
        """Check a batch, together with the next ones if it is small: validation's and test's usually are."""
        waiting = self._unchecked[part]
        waiting.append(batch)
        if sum(each.num_rows for each in waiting) >= BATCH_ROWS // 2:
            self._check_now(part)

    def _check_now(self, part: str) -> None:
        waiting, self._unchecked[part] = self._unchecked[part], []
        if len(waiting) > 1:
            joined = pa.Table.from_batches(waiting).unify_dictionaries().combine_chunks()
            waiting = joined.to_batches()
        for batch in waiting:
            self._checks[part].update(batch)

    def _find_infinities(self, batch: pa.RecordBatch, path: str) -> None:
        for column in self._scan.finite:
            numbers = as_numbers(batch.column(batch.schema.get_field_index(column)))
            if not np.isfinite(numbers).all() and (count := int(np.count_nonzero(np.isinf(numbers)))):
                self._add_infinities(column, Infinities(count, path))

    def _add_infinities(self, column: str, found: Infinities) -> None:
        before = self._infinite.get(column)
        self._infinite[column] = found if before is None else Infinities(before.count + found.count, before.path)

    def _train(self, batch: pa.RecordBatch, rows: RowIds) -> None:
        columns = Columns(batch, self._scan.schema)
        for source in self._moments:
            self._moments[source] = self._moments[source].merge(measure(columns.numbers(source)))
        for source, counter in self._categories.items():
            counter.update(columns.categories(source, counter.type))
        for source, counter in self._few.items():
            if not counter.overflow:
                counter.update(_distinct_numbers(columns.numbers(source)))
        for need in self._scan.samples:
            self._sample(need, columns, rows)

    def _sample(self, need: SampleNeed, columns: Columns, rows: RowIds) -> None:
        hashes = hash_rows(rows.path, rows.row_group, rows.rows, need.seed)
        chosen = need.rule.chosen(hashes)
        if len(chosen):
            arrays = [pa.array(columns.numbers(source)[chosen].astype(np.float64)) for source in need.inputs]
            arrays += [columns.column(name).take(pa.array(chosen)) for name in need.columns]
            self._samples[need.key].update(hashes[chosen], arrays)


def merge_all(scan: Scan, found: Iterable[Found]) -> Found:
    """Merge shards' results in the order in which they come."""
    collector = Collector(scan)
    for each in found:
        collector.merge(each)
    return collector.result()


def sample_seed(*key: int | str) -> int:
    """Seed of a sample's row hashes."""
    return seed_word("features", "sample", *key)


def labelled_rows(batch: pa.RecordBatch, labels: Sequence[str]) -> pa.RecordBatch:
    """Leave out the rows that lack a label."""
    labelled = _labelled(batch, labels)
    return batch if labelled is None else batch.filter(pa.array(labelled))


def _sampled_schema(scan: Scan, need: SampleNeed) -> pa.Schema:
    fields = [pa.field(str(place), pa.float64()) for place in range(len(need.inputs))]
    for name in need.columns:
        type_ = scan.schema.field(name).type
        fields.append(pa.field(name, type_.value_type if pa.types.is_dictionary(type_) else type_))
    return pa.schema(fields)


def _labelled(batch: pa.RecordBatch, columns: Sequence[str]) -> np.ndarray | None:
    found: np.ndarray | None = None
    for column in columns:
        labels = batch.column(batch.schema.get_field_index(column))
        if pa.types.is_dictionary(labels.type):
            labels = labels.cast(labels.type.value_type)
        missing = pc.is_null(labels, nan_is_null=pa.types.is_floating(labels.type))
        if missing.true_count:
            there = ~missing.to_numpy(zero_copy_only=False)
            found = there if found is None else found & there
    return found


def _distinct_numbers(numbers: np.ndarray) -> pa.Array:
    """The finite ones as float64, −0 as 0."""
    values = numbers.astype(np.float64) + 0.0
    finite = np.isfinite(values)
    return pa.array(values if finite.all() else values[finite])


def _rows(batch: pa.RecordBatch, kept: np.ndarray) -> pa.RecordBatch:
    return batch if kept.all() else batch.filter(pa.array(kept))


def _identities(rows: RowIds, kept: np.ndarray) -> RowIds:
    return RowIds(rows.path, rows.row_group, rows.rows[kept], rows.first_row)
