"""Runs of many tasks → groups in descending order of their scores, in bounded memory whatever the number of rows.

Small streams are read whole, many neighbours at a time. A large stream is cut into ranges of keys that hold about
`BUDGET` records each: the fences of all its sections, sorted, are a sample of known grain, so a range between two of
them holds at most ``BUDGET + sections · FENCE`` records, ties included (a run holds each key once). Streams of more
than `FAN_IN` sections are merged into fewer first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from pipelines.evaluation.groups import Groups, Keys, as_groups, combine
from pipelines.evaluation.spill import FENCE, Records, Run, RunReader, RunWriter, Section, Stream, merged_layout
from pipelines.storage import Location

BUDGET = 1 << 18
"""Records held at a time: some 100 bytes each while they are sorted and ranked."""

FAN_IN = 1024
"""Sections that are merged at a time: more would make the slack of a range larger than the range."""

_END = 1 << 64

Placed = tuple[Run, Section]


def ordered_streams(folder: Location, runs: Sequence[Run]) -> Iterator[tuple[Stream, Iterator[Groups]]]:
    """Yield every stream of `runs` with its groups, distinct and in descending order of their scores.

    The groups of a stream must be read before the next stream is asked for. Equal scores add up in the order of `runs`.
    """
    with RunReader(folder) as reader:
        for batch in _batches(_by_stream(runs)):
            if sum(section.records for placed in batch.values() for _, section in placed) <= BUDGET:
                yield from _small_streams(reader, batch)
            else:
                ((stream, placed),) = batch.items()
                yield stream, _large_stream(folder, reader, stream, placed)


def _large_stream(folder: Location, reader: RunReader, stream: Stream, placed: Sequence[Placed]) -> Iterator[Groups]:
    while len(placed) > FAN_IN:
        placed = _merge_some(folder, reader, stream, placed)
    for records in _in_order(reader, placed):
        yield as_groups(*records)


def _by_stream(runs: Sequence[Run]) -> dict[Stream, list[Placed]]:
    found: dict[Stream, list[Placed]] = {}
    for run in runs:
        for section in run.sections:
            found.setdefault(section.stream, []).append((run, section))
    return {stream: found[stream] for stream in sorted(found, key=Stream.order)}


def _batches(streams: dict[Stream, list[Placed]]) -> Iterator[dict[Stream, list[Placed]]]:
    held: dict[Stream, list[Placed]] = {}
    records = 0
    for stream, placed in streams.items():
        size = sum(section.records for _, section in placed)
        if held and records + size > BUDGET:
            yield held
            held, records = {}, 0
        held[stream] = placed
        records += size
    if held:
        yield held


def _small_streams(reader: RunReader, batch: dict[Stream, list[Placed]]) -> Iterator[tuple[Stream, Iterator[Groups]]]:
    by_run: dict[int, tuple[Run, list[Section]]] = {}
    for placed in batch.values():
        for run, section in placed:
            by_run.setdefault(id(run), (run, []))[1].append(section)
    read = reader.map(lambda item: reader.neighbours(*item), list(by_run.values()))
    pieces: dict[Stream, list[Records]] = {stream: [] for stream in batch}
    for (_, sections), found in zip(by_run.values(), read, strict=True):
        for section, records in zip(sections, found, strict=True):
            pieces[section.stream].append(records)
    for stream in batch:
        yield stream, iter([as_groups(*_joined(pieces.pop(stream)))])


def _in_order(reader: RunReader, placed: Sequence[Placed]) -> Iterator[Records]:
    """Yield the records of all sections in ascending order of their keys, equal keys together."""
    fences = reader.map(lambda item: reader.fences(*item), placed)
    located = list(zip(placed, fences, strict=True))
    for low, high in _ranges(placed, fences):
        yield _joined(reader.map(partial(_between, reader, low, high), located))


def _between(reader: RunReader, low: int, high: int, located: tuple[Placed, Keys]) -> Records:
    (run, section), fences = located
    return reader.between(run, section, fences, low, high)


def _ranges(placed: Sequence[Placed], fences: Sequence[Keys]) -> list[tuple[int, int]]:
    """Cut all keys into ranges of about `BUDGET` records."""
    keys: Keys = np.concatenate(fences)
    grain = np.repeat([section.fence for _, section in placed], [len(each) for each in fences])
    order = np.argsort(keys)
    filled = np.cumsum(grain[order])
    cuts = np.searchsorted(filled, np.arange(BUDGET, filled[-1], BUDGET))
    edges = np.unique(keys[order[cuts[cuts < len(keys)]]]).tolist()
    return list(zip([0, *edges], [*edges, _END], strict=True))


def _joined(pieces: Sequence[Records]) -> Records:
    keys, positive, negative = (np.concatenate([piece[i] for piece in pieces]) for i in range(3))
    return combine(keys, positive, negative)


def _merge_some(folder: Location, reader: RunReader, stream: Stream, placed: Sequence[Placed]) -> list[Placed]:
    merged = []
    for start in range(0, len(placed), FAN_IN):
        some = placed[start : start + FAN_IN]
        with RunWriter(folder) as writer:
            layout = merged_layout(section.layout for _, section in some)
            section = writer.append(stream, _in_order(reader, some), layout=layout, fence=4 * FENCE)
        merged.append((Run(writer.path, (section,)), section))
    return merged
