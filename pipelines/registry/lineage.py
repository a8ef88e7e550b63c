"""Where a model version comes from: data down to the row group, split, spec, code, environment, run."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pipelines.codec import digest
from pipelines.data.split import SplitPlan

if TYPE_CHECKING:
    from pipelines.data.dataset import Dataset
    from pipelines.data.source import Source


@dataclass(frozen=True)
class DataFile:
    """A file that a model learned from.

    Attributes
    ----------
    path : str
        Relative to the dataset's root.
    footer : str
        SHA-256 of its Parquet footer: the same for a copy under another name.
    row_groups : tuple of (first, last)
        The row groups that were left after pruning, as ranges; both ends belong to them.
    """

    path: str
    size: int
    etag: str
    footer: str
    rows: int
    row_groups: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class GitState:
    """The user's working tree: its commit, and whether files differed from it."""

    commit: str
    dirty: bool


@dataclass(frozen=True)
class Lineage:
    """Everything a version was made from. Stored beside the version as one artifact, since it grows with the dataset.

    Attributes
    ----------
    root, content_digest, location_digest : str
        The dataset's; see `Dataset`.
    files : tuple of DataFile
    skipped : tuple of (path, reason)
        Files that `on_bad_file: skip` left out.
    filter : str, optional
    derive : tuple of (name, expression)
    split : SplitPlan
        As fitted; with the dataset it tells every row's part.
    rows, dropped : dict
        Rows by part, and rows left out by reason.
    spec : dict
        The whole spec in plain JSON values.
    spec_digest, code_digest : str
        Of the spec, and of the user's own code (empty when there is none).
    git : GitState, optional
    environment : dict
        Python, platform and the versions of libraries.
    seed : int
    run_id : str
    parent : str, optional
        The version that training started from, ``name/number``.
    checkpoint : str, optional
        URL of the checkpoint that training resumed from.
    """

    root: str
    content_digest: str
    location_digest: str
    files: tuple[DataFile, ...]
    split: SplitPlan
    spec: dict[str, Any]
    spec_digest: str
    skipped: tuple[tuple[str, str], ...] = ()
    filter: str | None = None
    derive: tuple[tuple[str, str], ...] = ()
    rows: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    code_digest: str = ""
    git: GitState | None = None
    environment: dict[str, str] = field(default_factory=dict)
    seed: int = 0
    run_id: str = ""
    parent: str | None = None
    checkpoint: str | None = None
    schema: int = 1

    @property
    def split_digest(self) -> str:
        """SHA-256 of the fitted split."""
        return digest(self.split)

    @property
    def test_rows_digest(self) -> str:
        """SHA-256 over what decides which rows are tested: dataset, filter, derived columns, split."""
        return digest(
            {"content": self.content_digest, "filter": self.filter, "derive": self.derive, "split": self.split_digest}
        )


def lineage_of(dataset: Dataset, source: Source, split: SplitPlan, spec: dict[str, Any], **rest: Any) -> Lineage:
    """Build a lineage from the (pruned) dataset that was trained on; `rest` are fields of `Lineage`."""
    return Lineage(
        root=dataset.root,
        content_digest=dataset.content_digest,
        location_digest=dataset.location_digest,
        files=data_files(dataset),
        skipped=tuple((each.path, each.reason) for each in dataset.skipped),
        filter=source.filter,
        derive=source.derive,
        split=split,
        spec=spec,
        spec_digest=digest(spec),
        **rest,
    )


def data_files(dataset: Dataset) -> tuple[DataFile, ...]:
    """List a dataset's files with their row groups."""
    groups: dict[int, list[int]] = {}
    chosen = dataset.row_groups.select(["file", "row_group"]).to_pydict()
    for file, row_group in zip(chosen["file"], chosen["row_group"], strict=True):
        groups.setdefault(file, []).append(row_group)
    columns = dataset.files.select(["path", "size", "etag", "mtime_ns", "footer", "rows"]).to_pylist()
    return tuple(
        DataFile(
            path=file["path"],
            size=file["size"],
            etag=file["etag"] or f"mtime:{file['mtime_ns']}",
            footer=file["footer"].hex(),
            rows=file["rows"],
            row_groups=_ranges(groups.get(number, [])),
        )
        for number, file in enumerate(columns)
    )


def _ranges(numbers: list[int]) -> tuple[tuple[int, int], ...]:
    runs = itertools.groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0])
    members = ([number for _, number in run] for _, run in runs)
    return tuple((run[0], run[-1]) for run in members)
