"""The partial state of all metrics that are sums: updated with rows, merged in any grouping, with the same result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from pipelines.evaluation.result import Scalar
from pipelines.evaluation.sums import Codes, add
from pipelines.evaluation.terms import MARK, Question, Rows, Term, terms_of

Sums = dict[str, list[int]]
"""Exact sums by term: one for each of the term's cells (see `sums`)."""

MAX_VALUES = 1000
"""A segment column with more values than this is not broken down: its states would not fit."""


@dataclass
class SegmentState:
    """The sums of every value of one segment column; None once there are more values than `MAX_VALUES`."""

    values: dict[Scalar, tuple[int, Sums]] | None = field(default_factory=dict)

    def update(self, terms: Sequence[Term], codes: Codes, values: Sequence[Scalar]) -> None:
        """Add rows: `codes` say which of `values` each row has."""
        if self.values is None or len(values) > MAX_VALUES:
            self.values = None
            return
        rows = np.bincount(codes, minlength=len(values)).tolist()
        sums = {term.name: term.sums(codes, len(values)) for term in terms}
        for code, value in enumerate(values):
            if rows[code]:
                self._add(value, rows[code], {name: by_group[code] for name, by_group in sums.items()})

    def merge(self, other: SegmentState) -> None:
        """Add another state to this one."""
        if self.values is None or other.values is None:
            self.values = None
            return
        for value, (rows, sums) in other.values.items():
            self._add(value, rows, sums)

    def _add(self, value: Scalar, rows: int, sums: Sums) -> None:
        if self.values is None:
            return
        had_rows, had = self.values.get(value, (0, {}))
        self.values[value] = (had_rows + rows, merged(had, sums))
        if len(self.values) > MAX_VALUES:
            self.values = None


@dataclass
class State:
    """The sums of some rows, as a whole and by segment column."""

    rows: int = 0
    sums: Sums = field(default_factory=dict)
    segments: dict[str, SegmentState] = field(default_factory=dict)

    def update(self, question: Question, rows: Rows, segments: Mapping[str, tuple[Codes, Sequence[Scalar]]]) -> None:
        """Add rows; `segments` holds for each segment column the rows' codes and the values that they stand for."""
        if not len(rows):
            return
        self.rows += len(rows)
        terms = terms_of(question, rows)
        self.sums = merged(self.sums, {term.name: term.sums(None, 1)[0] for term in terms})
        asked = [term for term in terms if term.name.partition(MARK)[0] in question.segment_terms]
        for column, (codes, values) in segments.items():
            self.segments.setdefault(column, SegmentState()).update(asked, codes, values)

    def merge(self, other: State) -> None:
        """Add another state to this one."""
        self.rows += other.rows
        self.sums = merged(self.sums, other.sums)
        for column, state in other.segments.items():
            self.segments.setdefault(column, SegmentState()).merge(state)


def merged(left: Sums, right: Sums) -> Sums:
    """Add two sets of sums; one may be empty."""
    if not left or not right:
        return left or right
    return {name: add(left[name], sums) for name, sums in right.items()}
