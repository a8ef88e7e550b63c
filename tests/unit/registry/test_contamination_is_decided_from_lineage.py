"""Whether a champion has seen the candidate's test rows: the decision against rows that are really assigned."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.data.rows import RowIds
from pipelines.data.split import TEST, Cuts, SplitPlan, Stratum
from pipelines.registry import DataFile, Lineage, seen_test_rows

FILES = tuple(DataFile(f"part-{n}", 10, "e", f"footer-{n}", 60, ((0, 2),)) for n in range(4))
GROUPED = SplitPlan("grouped", "day", 0.1, 0.2, 7)


def lineage(split: SplitPlan = GROUPED, files: tuple[DataFile, ...] = FILES[:3], **rest: Any) -> Lineage:
    return Lineage("/data", "content", "location", files, split, {}, "spec", **rest)


BASE = lineage()
BY_ROW = SplitPlan("hash", None, 0.1, 0.2, 7)
STRATA = SplitPlan("stratified", "late", 0.1, 0.2, 7, strata=(Stratum("true", 1, 5, 2, 3),))


def timed(test: int) -> SplitPlan:
    return SplitPlan("time", "day", 0.1, 0.2, 0, cuts=Cuts("time", test - 10, test, "validation", f"day {test}"))


@pytest.mark.parametrize(
    ("candidate", "champion", "clean", "reason"),
    [
        (BASE, BASE, True, "same hash of day"),
        (lineage(files=FILES), BASE, True, "same hash of day"),
        (lineage(filter="x > 0"), BASE, True, "same hash of day"),
        (lineage(replace(GROUPED, kind="hash")), BASE, True, "same hash of day"),
        (lineage(replace(GROUPED, test=0.1)), BASE, True, "same hash of day"),
        (lineage(replace(GROUPED, validation=0.3)), BASE, True, "same hash of day"),
        (lineage(replace(GROUPED, test=0.3)), BASE, False, "another one, and it learned from 9 of the row groups"),
        (lineage(replace(GROUPED, seed=8)), BASE, False, "another one"),
        (lineage(replace(GROUPED, by="carrier")), BASE, False, "another one"),
        (BASE, lineage(replace(GROUPED, validation=0.0, test=0.0)), False, "another one"),
        (lineage(replace(GROUPED, seed=8)), lineage(files=FILES[3:]), True, "no row group in common"),
        (lineage(BY_ROW), BASE, False, "another one"),
        (lineage(BY_ROW), lineage(BY_ROW), True, "same name in both"),
        (lineage(BY_ROW, FILES), lineage(BY_ROW), True, "same name in both"),
        (lineage(replace(BY_ROW, test=0.3)), lineage(BY_ROW), False, "another one"),
        (lineage(BY_ROW), lineage(replace(BY_ROW, seed=8)), False, "another one"),
        (lineage(BY_ROW), lineage(BY_ROW, (replace(FILES[0], path="moved"),)), False, "under another name"),
        (lineage(BY_ROW), lineage(BY_ROW, (*FILES[:3], replace(FILES[0], path="copy"))), False, "under another name"),
        (lineage(BY_ROW), lineage(BY_ROW, (replace(FILES[0], footer="new"),)), False, "written again"),
        (lineage(STRATA), lineage(STRATA), True, "same name in both"),
        (lineage(STRATA), lineage(replace(STRATA, strata=())), False, "another one"),
        (lineage(timed(100)), lineage(timed(90)), True, "day 100 on, the champion from day 90"),
        (lineage(timed(90)), lineage(timed(90)), True, "day 90"),
        (lineage(timed(80)), lineage(timed(90)), False, "another one"),
        (lineage(derive=(("day", "date(t)"),)), lineage(derive=(("day", "date(t)"),)), True, "same hash"),
        (lineage(derive=(("day", "date(t)"),)), BASE, False, "another one"),
        (lineage(derive=(("other", "x + 1"),)), BASE, True, "same hash"),
        (
            lineage(BY_ROW, (replace(FILES[0], row_groups=((2, 2),)),)),
            lineage(GROUPED, (replace(FILES[0], row_groups=((0, 1),)),)),
            True,
            "no row group in common",
        ),
        (
            lineage(BY_ROW, (replace(FILES[0], row_groups=((1, 2),)),)),
            lineage(GROUPED, (replace(FILES[0], row_groups=((0, 1),)),)),
            False,
            "learned from 1 of the row groups",
        ),
    ],
)
def test_verdicts(candidate: Lineage, champion: Lineage, clean: bool, reason: str) -> None:
    verdict = seen_test_rows(candidate, champion)
    assert verdict.clean is clean, verdict.reason
    assert reason in verdict.reason


splits = st.one_of(
    st.builds(
        SplitPlan,
        kind=st.sampled_from(["hash", "grouped"]),
        by=st.just("day"),
        validation=st.sampled_from([0.0, 0.1, 0.3]),
        test=st.sampled_from([0.0, 0.1, 0.3]),
        seed=st.sampled_from([1, 2]),
    ),
    st.builds(
        SplitPlan,
        kind=st.just("hash"),
        by=st.none(),
        validation=st.sampled_from([0.0, 0.1]),
        test=st.sampled_from([0.1, 0.3]),
        seed=st.sampled_from([1, 2]),
    ),
    st.sampled_from([timed(5), timed(10), timed(15)]),
)
# A file's content is its footer; any of them may stand under any name, but one name holds one content in a dataset.
datasets = st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(0, 3), min_size=1, max_size=3)


@settings(max_examples=150)
@given(splits, splits, datasets, datasets, st.booleans())
def test_what_counts_as_clean_was_never_seen(
    ours: SplitPlan, theirs: SplitPlan, new: dict[str, int], old: dict[str, int], same_place: bool
) -> None:
    """Rows are really assigned by both splits: with a clean verdict, the old one learned from none that are tested."""
    candidate = replace(lineage(ours, _files(new)), root="/new")
    champion = replace(lineage(theirs, _files(old)), root="/new" if same_place else "/old")
    if seen_test_rows(candidate, champion).clean:
        tested = _rows(ours, new, lambda parts: parts == TEST)
        seen = _rows(theirs, old, lambda parts: parts != TEST)
        assert not tested & seen


def _files(dataset: dict[str, int]) -> tuple[DataFile, ...]:
    return tuple(DataFile(path, 1, "e", f"footer-{content}", 40, ((0, 1),)) for path, content in dataset.items())


def _rows(split: SplitPlan, dataset: dict[str, int], chosen: Any) -> set[tuple[int, int, int]]:
    """Rows by their content: (file's content, row group, row)."""
    found = set()
    for path, content in dataset.items():
        for group in range(2):
            days = pa.array((np.arange(20) * 7 + content * 3 + group) % 20, pa.timestamp("us"))
            batch = pa.record_batch({"day": days})
            parts = split.assign(batch, RowIds(path, group, np.arange(20), group * 20))
            found |= {(content, group, int(row)) for row in np.flatnonzero(chosen(parts))}
    return found
