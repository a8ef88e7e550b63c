"""The frozen plan of a run: what will be done, on what, and what it will need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pipelines.plan.keys import StageKey
from pipelines.registry import GitState

SCHEMA = 1


@dataclass(frozen=True)
class PlannedData:
    """The dataset as the plan saw it.

    Attributes
    ----------
    rows, row_groups, files, bytes
        After pruning; bytes are uncompressed, of all columns.
    files_before, row_groups_before
        Before pruning by the filter.
    columns : tuple of str
        The columns that are read.
    drift, skipped : tuple of str
        Differences between files that were bridged, and files that were left out, for humans.
    """

    root: str
    content_digest: str
    location_digest: str
    rows: int
    files: int
    row_groups: int
    bytes: int
    files_before: int
    row_groups_before: int
    columns: tuple[str, ...]
    drift: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True)
class PlannedShards:
    """How the dataset is cut; the same for any number of workers."""

    count: int
    digest: str
    rows_min: int
    rows_max: int
    bytes_min: int
    bytes_max: int
    largest_piece_bytes: int


@dataclass(frozen=True)
class PlannedMemory:
    """Memory predicted for the fullest moment of a worker and its rank, against the worker's limit.

    Attributes
    ----------
    parts_bytes : dict
        What the prediction is made of.
    basis : str
        What the number of features was taken from.
    data : str
        Where the training data are: ``memory``, or what the estimator does when they do not fit there: ``disk`` (kept
        on the worker's disk, block by block), ``sample`` (learned from in batches, or from a recorded sample) or
        ``refuse``.
    """

    stage: str
    predicted_bytes: int
    limit_bytes: int
    parts_bytes: Mapping[str, int]
    basis: str
    data: str


@dataclass(frozen=True)
class PlannedSearch:
    """The trials that the training will make.

    Attributes
    ----------
    trials : int
        At most.
    metric, direction : str
        What they are compared by on validation; empty while the kind of label is not known.
    parallel, ranks : int
        Trials at a time, and the ranks of each.
    space : dict
        What is searched, for people.
    """

    trials: int
    timeout_s: float | None
    metric: str
    direction: str
    sampler: str
    pruner: str
    parallel: int
    ranks: int
    space: Mapping[str, str]


@dataclass(frozen=True)
class PlannedStage:
    """One step of the run.

    Attributes
    ----------
    ingredients : dict
        Of its `StageKey`; empty for stages that are never cached.
    cached : bool
        Whether its result is there already.
    why : str
        Why it will run, or what it will reuse.
    """

    name: str
    needs: tuple[str, ...]
    key: str
    ingredients: Mapping[str, Any]
    cached: bool
    why: str

    @property
    def stage_key(self) -> StageKey:
        """The key under which its result is cached."""
        return StageKey(self.name, self.ingredients)


@dataclass(frozen=True)
class Plan:
    """A validated, compiled, frozen pipeline; JSON-able. `pipelines.plan.compile_plan` makes it.

    Attributes
    ----------
    spec : dict
        What the spec says, in plain values: `load_spec` adds the defaults again.
    ranks, threads : int
        Ranks that the training starts with, and threads of each.
    least : int, optional
        With how many ranks, at least, it goes on after losses; None when it ends with the first one.
    most : int
        To how many it grows.
    code_digest : str
        Of the user's own code archive; empty without one.
    runs, registry : str
        URLs of the two stores.
    git : GitState, optional
        The user's working tree when the plan was made.
    search : PlannedSearch, optional
        When the training searches for parameters.
    """

    pipeline: str
    spec: Mapping[str, Any]
    data: PlannedData
    shards: PlannedShards
    stages: tuple[PlannedStage, ...]
    memory: tuple[PlannedMemory, ...]
    ranks: int
    threads: int
    code_digest: str
    runs: str
    registry: str
    git: GitState | None = None
    least: int | None = None
    most: int = 1
    search: PlannedSearch | None = None
    schema: int = SCHEMA

    @cached_property
    def by_name(self) -> dict[str, PlannedStage]:
        """Stages by name."""
        return {stage.name: stage for stage in self.stages}
