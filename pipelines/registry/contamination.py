"""Has an older model seen the rows that a new one is tested on? Decided from the two lineages alone, without data.

"Seen" means trained on, or validated on: early stopping, calibration and thresholds learn from the validation rows.

Three things prove that nothing was seen, each by itself:

* Both splits decide by a column's value with the same rule, and whatever the new one tests, the old one tested too: a
  hash of `by` with the same seed and no larger a share; or a boundary in time that lies no earlier. It does not matter
  then which files either was trained on, so a model may be compared with its predecessor after new data came in.
* Both splits decide by the row's identity with the same rule, and every file of the new dataset is either the same file
  under the same name in the old one (its rows then have the same part) or none of the old one's.
* The two datasets have no row group in common, and no file of one place that was written again in between.

Files are known by their Parquet footer, so a copy under another name is recognised; rows that were written again into
files of other names (a compaction) are not. Where nothing proves it clean, the comparison counts as contaminated.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipelines.registry.lineage import DataFile, Lineage


@dataclass(frozen=True)
class Verdict:
    """Whether a model has not seen another's test rows, and what shows it or speaks against it."""

    clean: bool
    reason: str


def seen_test_rows(candidate: Lineage, champion: Lineage) -> Verdict:
    """Decide whether the champion has seen rows of the candidate's test part."""
    by_value = _same_rule_by_value(candidate, champion)
    if by_value is not None:
        return by_value
    shared = _shared_row_groups(candidate.files, champion.files)
    rewritten = _rewritten_files(candidate, champion)
    if rewritten:
        return Verdict(
            False, f"{rewritten[0]} was written again since: it may hold rows that the champion learned from"
        )
    if not shared:
        return Verdict(True, "the two datasets have no row group in common")
    if _same_rule_by_identity(candidate, champion):
        moved = _moved_files(candidate.files, champion.files)
        if not moved:
            return Verdict(True, "the same split by rows' identities; every shared file has the same name in both")
        return Verdict(
            False, f"the split goes by file names, and {moved[0]} was known to the champion under another name"
        )
    return Verdict(
        False, f"the champion's split is another one, and it learned from {shared} of the row groups that are tested"
    )


def _same_rule_by_value(candidate: Lineage, champion: Lineage) -> Verdict | None:
    """A verdict where a column's value alone decides in the same way in both; None where that shows nothing."""
    ours, theirs = candidate.split, champion.split
    if ours.by is None or ours.by != theirs.by or not _same_column(ours.by, candidate, champion):
        return None
    hashed = {ours.kind, theirs.kind} <= {"hash", "grouped"}
    if hashed and ours.seed == theirs.seed and ours.test <= theirs.test:
        return Verdict(True, f"both splits test by the same hash of {ours.by}")
    new, old = ours.cuts, theirs.cuts
    if new is not None and old is not None and new.scale == old.scale and new.test >= old.test:
        return Verdict(True, f"tested from {ours.by} {new.test_text} on, the champion from {old.test_text} on")
    return None


def _same_rule_by_identity(candidate: Lineage, champion: Lineage) -> bool:
    ours, theirs = candidate.split, champion.split
    if ours.kind == "stratified":
        by = ours.by is not None and _same_column(ours.by, candidate, champion)
        return by and ours == theirs
    plain = ours.kind == theirs.kind == "hash" and ours.by is None and theirs.by is None
    return plain and ours.seed == theirs.seed and ours.test <= theirs.test


def _same_column(name: str, candidate: Lineage, champion: Lineage) -> bool:
    """Whether a column means the same in both: stored in the files, or derived by the same expressions."""
    derived = {column for lineage in (candidate, champion) for column, _ in lineage.derive}
    return name not in derived or candidate.derive == champion.derive


def _shared_row_groups(ours: tuple[DataFile, ...], theirs: tuple[DataFile, ...]) -> int:
    known: dict[str, set[int]] = {}
    for file in theirs:
        known.setdefault(file.footer, set()).update(_numbers(file))
    return sum(len(_numbers(file) & known.get(file.footer, set())) for file in ours)


def _rewritten_files(candidate: Lineage, champion: Lineage) -> list[str]:
    if candidate.root != champion.root:
        return []
    footers = {file.path: file.footer for file in champion.files}
    return [file.path for file in candidate.files if footers.get(file.path, file.footer) != file.footer]


def _moved_files(ours: tuple[DataFile, ...], theirs: tuple[DataFile, ...]) -> list[str]:
    """Files that the other dataset holds under another name, whether or not it holds them under this one too."""
    names: dict[str, set[str]] = {}
    for file in theirs:
        names.setdefault(file.footer, set()).add(file.path)
    return [file.path for file in ours if names.get(file.footer, set()) - {file.path}]


def _numbers(file: DataFile) -> set[int]:
    return {number for first, last in file.row_groups for number in range(first, last + 1)}
