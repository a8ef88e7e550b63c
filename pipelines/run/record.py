"""What a run has come to, folded from its journal."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pipelines.codec import from_plain
from pipelines.run.journal import Event
from pipelines.run.training_record import TrainingRecord, take_in

RunStatus = Literal["created", "running", "succeeded", "failed", "interrupted", "preempted", "gate_not_met"]
StageStatus = Literal["running", "done", "cached", "failed", "interrupted"]

ENDED: frozenset[str] = frozenset({"succeeded", "failed", "interrupted", "preempted", "gate_not_met"})
RESUMABLE: frozenset[str] = frozenset({"created", "failed", "interrupted", "preempted", "running"})

_STATUS_OF_EXIT: dict[int, RunStatus] = {0: "succeeded", 6: "preempted", 7: "gate_not_met", 130: "interrupted"}


@dataclass(frozen=True)
class StageRecord:
    """One stage of a run, as far as it is known.

    Attributes
    ----------
    seconds : float
        Wall time of the stage in its last attempt.
    progress : dict
        The last progress event's data.
    summary : dict
        What the stage reports about its result.
    """

    name: str
    status: StageStatus
    started: float
    seconds: float = 0.0
    progress: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TrialRecord:
    """One trial of a search.

    Attributes
    ----------
    params : dict
        What was tried, of the parameters that are searched.
    state : str
        ``running``, ``complete``, ``pruned`` or ``failed``.
    value : float or None
        The search's metric on validation, of complete trials.
    steps : int
        The last step (epoch, round) that was seen of its training.
    error : str
        Why it failed.
    """

    number: int
    params: dict[str, Any]
    state: str
    value: float | None = None
    seconds: float = 0.0
    steps: int = 0
    error: str = ""


@dataclass(frozen=True)
class RunRecord:
    """A run as its journal tells it; frozen, JSON-able.

    Attributes
    ----------
    run_id, pipeline : str
    status : str
        ``created``, ``running``, or how it ended.
    attempts : int
        Number of the newest attempt that has begun.
    created, ended : float or None
        Seconds since the epoch.
    stages : tuple of StageRecord
        In the order in which they started.
    dashboard : str
        Link of the last attempt's Dask dashboard.
    error : dict or None
        Type, message and exit code of what ended it.
    metrics : dict
        Metrics per part of the split.
    version : str or None
        The published model version, ``name/number``.
    notices : tuple of str
        What a reader should know: skipped files, refused promotions, lost ranks.
    training : TrainingRecord or None
        What the training went through, over all attempts; None before it began, and when it was taken from the cache.
    trials : tuple of TrialRecord
        Of a search, by number.
    """

    run_id: str
    pipeline: str
    status: RunStatus = "created"
    attempts: int = 0
    created: float = 0.0
    ended: float | None = None
    stages: tuple[StageRecord, ...] = ()
    dashboard: str = ""
    error: dict[str, Any] | None = None
    metrics: dict[str, Any] = field(default_factory=dict)
    version: str | None = None
    notices: tuple[str, ...] = ()
    training: TrainingRecord | None = None
    trials: tuple[TrialRecord, ...] = ()
    schema: int = 1

    @property
    def ended_run(self) -> bool:
        """Whether nothing more will happen unless it is resumed."""
        return self.status in ENDED

    @property
    def exit_code(self) -> int:
        """The exit code that the run's end means on a command line; 0 while it goes on."""
        return int(self.error["exit_code"]) if self.error else 0

    def stage(self, name: str) -> StageRecord | None:
        """Find a stage by its name."""
        return next((stage for stage in self.stages if stage.name == name), None)


def fold(record: RunRecord, events: Iterable[Event]) -> RunRecord:
    """Apply events to a record, in order."""
    for event in events:
        record = _apply(record, event)
    return record


def _apply(record: RunRecord, event: Event) -> RunRecord:
    match event.kind:
        case "attempt":
            created = record.created or event.time
            number = int(event.data["number"])
            again = replace(record, status="running", attempts=number, created=created, ended=None, error=None)
            return replace(again, notices=())
        case "cluster":
            return replace(record, dashboard=str(event.data.get("dashboard", "")))
        case "stage":
            return _apply_stage(record, event)
        case "progress":
            return _with_stage(record, event.stage, event.time, progress=event.data)
        case "notice":
            return replace(record, notices=(*record.notices, str(event.data["text"])))
        case "training":
            return _apply_training(record, event)
        case "trials":
            return _apply_trials(record, event)
        case "end":
            return _apply_end(record, event)
        case _:
            return record


def _apply_stage(record: RunRecord, event: Event) -> RunRecord:
    status: StageStatus = event.data["status"]
    if status == "running":
        return _with_stage(record, event.stage, event.time, status=status, started=event.time, progress={})
    summary = event.data.get("summary", {})
    seconds = float(event.data.get("seconds", 0.0))
    record = _with_stage(record, event.stage, event.time, status=status, seconds=seconds, summary=summary)
    if event.stage == "evaluate":
        record = replace(record, metrics=summary.get("metrics", {}))
    if event.stage == "train" and record.training is not None and "checkpoints" in summary:
        record = replace(record, training=replace(record.training, checkpoints=summary["checkpoints"]))
    if event.stage == "publish":
        record = replace(record, version=summary.get("version"))
    return record


def _apply_training(record: RunRecord, event: Event) -> RunRecord:
    what, data = str(event.data["what"]), event.data["data"]
    if event.data["notice"]:
        record = replace(record, notices=(*record.notices, str(event.data["text"])))
    return replace(record, training=take_in(record.training or TrainingRecord(), what, data))


def _apply_trials(record: RunRecord, event: Event) -> RunRecord:
    told = [from_plain(TrialRecord, plain) for plain in event.data["trials"]]
    known = {trial.number: trial for trial in (*record.trials, *told)}
    return replace(record, trials=tuple(known[number] for number in sorted(known)))


def _apply_end(record: RunRecord, event: Event) -> RunRecord:
    code = int(event.data["exit_code"])
    record = replace(record, attempts=int(event.data.get("attempt", record.attempts)))
    left: StageStatus = "interrupted" if code in (6, 130) else "failed"
    stages = tuple(replace(s, status=left) if s.status == "running" else s for s in record.stages)
    record = replace(record, stages=stages)
    error = None if code == 0 else {k: event.data.get(k) for k in ("type", "message", "exit_code", "trace")}
    return replace(record, status=_STATUS_OF_EXIT.get(code, "failed"), ended=event.time, error=error)


def _with_stage(record: RunRecord, name: str, now: float, **changes: Any) -> RunRecord:
    if record.stage(name) is None:
        record = replace(record, stages=(*record.stages, StageRecord(name, "running", now)))
    stages = tuple(replace(stage, **changes) if stage.name == name else stage for stage in record.stages)
    return replace(record, stages=stages)
