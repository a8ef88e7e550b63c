"""What a worker does with a shard: score its held-out rows, add up what metrics are made of, spill ordered scores."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.data.hashing import hash_rows, seed_word
from pipelines.data.order import mix
from pipelines.data.reader import Read, read_batches
from pipelines.data.shards import Shard
from pipelines.data.split import PARTS
from pipelines.errors import DataError, UsageError
from pipelines.evaluation.groups import group_rows
from pipelines.evaluation.request import ScoringJob
from pipelines.evaluation.result import Part, Scalar
from pipelines.evaluation.segments import coded, encoded
from pipelines.evaluation.spill import Records, Run, RunWriter, Stream
from pipelines.evaluation.state import MAX_VALUES, State
from pipelines.evaluation.sums import Codes, Floats
from pipelines.evaluation.terms import Rows
from pipelines.features.target import Target
from pipelines.model import Model, load_model
from pipelines.storage import open_filesystem

_SEEDS = (seed_word("evaluation", 0), seed_word("evaluation", 1))
_WORD = (1 << 64) - 1
_ROUNDING = 1e-6  # what a foreign estimator's float32 probabilities may pass 0 and 1 by


@dataclass
class PartScores:
    """What was found on a part of the split, of one shard or of many.

    `identity` is two 64-bit sums over hashes of the rows with their labels and weights: the same for the same set of
    rows in any order and grouping.
    """

    state: State = field(default_factory=State)
    identity: tuple[int, int] = (0, 0)
    unlabelled: int = 0

    def merge(self, other: PartScores) -> None:
        """Add those of another shard."""
        self.state.merge(other.state)
        self.identity = _added(self.identity, other.identity)
        self.unlabelled += other.unlabelled


@dataclass(frozen=True)
class ShardScores:
    """The result of a task."""

    parts: dict[Part, PartScores]
    runs: tuple[Run, ...]


def score_shard(shard: Shard, job: ScoringJob) -> ShardScores:
    """Score the rows of a shard that belong to the job's parts. Runs in a worker; may be run again.

    Raises
    ------
    DataError, UsageError
        See `evaluate`.
    """
    model = load_model(job.model.url, job.model.prefix, job.model.digest)
    check_target(model, job.target)
    folder = None if job.spill_url is None else open_filesystem(job.spill_url)
    with nullcontext() if folder is None else RunWriter(folder) as writer:
        blocks = {part: _Block(part, job, writer) for part in job.parts}
        for part, scored in _scored(shard, job, model):
            blocks[part].add(scored)
        for block in blocks.values():
            block.flush()
    return ShardScores(
        {part: block.scores for part, block in blocks.items()},
        tuple(run for block in blocks.values() for run in block.runs),
    )


def check_target(model: Model, target: Target) -> None:
    """Check that a model answers the question that the rows are labelled for.

    Raises
    ------
    UsageError
        It does not.
    """
    theirs, ours = (model.target.kind, model.target.classes), (target.kind, target.classes)
    if theirs == ours and model.target.n_outputs != target.n_outputs:
        raise UsageError(
            "the model predicts another number of labels than it is to be evaluated on",
            expected=", ".join(target.columns), found=", ".join(model.target.columns),
        )  # fmt: skip
    if theirs != ours:
        raise UsageError(
            "the model does not predict what it is to be evaluated on", on=f"label {target.column}",
            expected=f"a {ours[0]} label {list(ours[1]) or ''}".strip(),
            found=f"{theirs[0]} {list(theirs[1]) or ''}".strip(),
        )  # fmt: skip


@dataclass(frozen=True)
class _Scored:
    """Some rows of one part with their scores, as they come from a batch."""

    y: Floats | Codes
    scores: Floats
    weight: Floats | None
    segments: tuple[pa.Array, ...]
    hashes: Any
    unlabelled: int


def _scored(shard: Shard, job: ScoringJob, model: Model) -> Iterator[tuple[Part, _Scored]]:
    mask: Any
    columns = [*model.features.inputs, *job.target.columns, *job.segments, *filter(None, [job.sample_weight])]
    only = job.parts[0] if len(job.parts) == 1 else None
    reads = read_batches(
        job.source, [shard], list(dict.fromkeys(columns)), split=job.split, part=only, row_ids=True
    )  # fmt: skip
    with closing(reads):
        for read in reads:
            hashes = _row_hashes(read)
            for part in job.parts:
                mask = None if only else read.parts == PARTS.index(part)
                if mask is None or mask.any():
                    yield part, _score(read, mask, hashes, job, model)


def _score(read: Read, mask: Any, hashes: Any, job: ScoringJob, model: Model) -> _Scored:
    batch, hashes = _filtered(read.batch, hashes, mask)
    labelled = job.target.labelled(batch)
    unlabelled = 0 if labelled is None else int((~labelled).sum())
    if unlabelled and job.target.on_null == "fail":
        raise DataError(
            "the label is null", on=f"column {', '.join(job.target.columns)} in {_path(read)}",
            found=f"{unlabelled} rows",
            remedy="Set label.on_null: drop to leave such rows out.",
        )  # fmt: skip
    batch, hashes = _filtered(batch, hashes, labelled)
    weight = None if job.sample_weight is None else _weights(batch, job.sample_weight, _path(read))
    if weight is not None and not weight.all():
        batch, hashes = _filtered(batch, hashes, weight > 0)
        weight = weight[weight > 0]
    return _Scored(
        y=_labels(batch, job.target),
        scores=_checked(model.scores(batch), job.target, _path(read)),
        weight=weight,
        segments=tuple(encoded(batch.column(name), name) for name in job.segments),
        hashes=hashes,
        unlabelled=unlabelled,
    )


class _Block:
    """Rows of one part, gathered until there are enough to be summed and spilled together."""

    def __init__(self, part: Part, job: ScoringJob, writer: RunWriter | None) -> None:
        self.scores, self.runs = PartScores(), list[Run]()
        self._part, self._job, self._writer = part, job, writer
        self._held, self._rows_held = list[_Scored](), 0

    def add(self, scored: _Scored) -> None:
        """Add rows."""
        self.scores.unlabelled += scored.unlabelled
        if len(scored.y):
            self._held.append(scored)
            self._rows_held += len(scored.y)
        if self._rows_held >= self._job.block_rows:
            self.flush()

    def flush(self) -> None:
        """Sum and spill the rows that are held."""
        if not self._held:
            return
        held, self._held, self._rows_held = self._held, [], 0
        rows = Rows(
            y=np.concatenate([each.y for each in held]),
            scores=np.concatenate([each.scores for each in held]),
            weight=None if held[0].weight is None else np.concatenate([np.asarray(each.weight) for each in held]),
        )
        segments = {
            name: coded([each.segments[i] for each in held]) for i, name in enumerate(self._job.segments)
        }  # fmt: skip
        self.scores.identity = _added(self.scores.identity, _identity(rows, np.concatenate([e.hashes for e in held])))
        del held
        self.scores.state.update(self._job.question, rows, segments)
        if self._writer is not None:
            self.runs.append(self._writer.write(_sections(self._part, rows, segments)))


def _sections(
    part: Part, rows: Rows, segments: dict[str, tuple[Codes, list[Scalar]]]
) -> Iterator[tuple[Stream, Records]]:
    yield from _outputs(Stream(part), rows)
    for column in sorted(segments):
        codes, values = segments[column]
        if len(values) > MAX_VALUES:
            continue
        order = np.argsort(codes.astype(np.uint16), kind="stable")
        ends = np.cumsum(np.bincount(codes, minlength=len(values))).tolist()
        starts = [0, *ends[:-1]]
        streams = {Stream(part, column, value): code for code, value in enumerate(values)}
        for stream in sorted(streams, key=Stream.order):
            taken = order[starts[streams[stream]] : ends[streams[stream]]]
            weight = None if rows.weight is None else rows.weight[taken]
            yield from _outputs(stream, Rows(rows.y[taken], rows.scores[taken], weight))


def _outputs(stream: Stream, rows: Rows) -> Iterator[tuple[Stream, Records]]:
    if rows.scores.ndim == 1:
        yield stream, group_rows(rows.scores, rows.y == 1, rows.weight)
        return
    for k in range(rows.scores.shape[1]):
        yield stream._replace(output=k), group_rows(rows.scores[:, k], rows.y == k, rows.weight)


def _filtered(batch: pa.RecordBatch, hashes: Any, mask: Any) -> tuple[pa.RecordBatch, Any]:
    if mask is None or mask.all():
        return batch, hashes
    return batch.filter(pa.array(mask)), hashes[mask]


def _labels(batch: pa.RecordBatch, target: Target) -> Floats | Codes:
    encoded_labels = target.encode_rows(batch)  # checks them too
    if target.kind != "regression":
        return encoded_labels.astype(np.intp)
    # In full precision, where training has float32: errors are measured against what the label is.
    columns = [pc.cast(batch.column(name), pa.float64()).to_numpy(zero_copy_only=False) for name in target.columns]
    return np.asarray(columns[0] if len(columns) == 1 else np.stack(columns, axis=1), np.float64)


def _weights(batch: pa.RecordBatch, column: str, path: str) -> Floats:
    values = batch.column(column)
    weight = np.asarray(pc.cast(values, pa.float64()).to_numpy(zero_copy_only=False), np.float64)
    bad = values.null_count + int((~np.isfinite(weight)).sum()) + int((weight < 0).sum())
    if bad:
        raise DataError(
            "sample weights must be finite and not negative", on=f"column {column} in {path}", found=f"{bad} others",
            remedy="Mend them with derive, or leave such rows out with filter.",
        )  # fmt: skip
    return weight


def _checked(scores: Floats, target: Target, path: str) -> Floats:
    bad = ~np.isfinite(scores)
    if bad.any():
        raise DataError(
            "the model gives no score for some rows", on=path, found=f"{int(bad.sum())} scores that are not finite",
            remedy="Impute nulls in the features, or leave such rows out with filter.",
        )  # fmt: skip
    if target.kind == "regression" or not len(scores):
        return scores
    low, high = float(scores.min()), float(scores.max())
    if low < -_ROUNDING or high > 1 + _ROUNDING:
        raise DataError(
            "the model's scores are not probabilities", on=path, expected="numbers between 0 and 1",
            found=f"{low:.6g} to {high:.6g}",
        )  # fmt: skip
    return scores if low >= 0 and high <= 1 else np.clip(scores, 0.0, 1.0)


def _path(read: Read) -> str:
    return read.rows.path if read.rows is not None else ""


def _row_hashes(read: Read) -> Any:
    assert read.rows is not None, "asked for"
    return hash_rows(read.rows.path, read.rows.row_group, read.rows.rows)


def _identity(rows: Rows, hashes: Any) -> tuple[int, int]:
    words = hashes
    for label in np.asarray(rows.y, np.float64).reshape(len(rows), -1).T:
        words = mix(words ^ mix((label + 0.0).view(np.uint64) + np.uint64(1)))
    if rows.weight is not None:
        words = mix(words ^ rows.weight.view(np.uint64))
    first, second = (int(mix(words ^ np.uint64(seed)).sum(dtype=np.uint64)) for seed in _SEEDS)
    return first, second


def _added(left: tuple[int, int], right: tuple[int, int]) -> tuple[int, int]:
    return (left[0] + right[0]) & _WORD, (left[1] + right[1]) & _WORD
