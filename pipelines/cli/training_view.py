"""What a run's training went through, and what its bits are certified for, in a few lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pipelines.cli.output import duration, say
from pipelines.run import RunRecord, TrainingRecord


def show_training(record: RunRecord) -> None:
    """Print what there is to tell beyond the stage's own line, if anything."""
    stage = record.stage("train")
    certificate = stage.summary.get("certificate") if stage else None
    lines = [*(_course(record.training) if record.training else ()), *(_certified(certificate) if certificate else ())]
    if lines:
        say()
    for name, text in lines:
        say(f"{name:<10} {text}")


def _course(training: TrainingRecord) -> Iterator[tuple[str, str]]:
    if not training.eventful:
        return
    saved = "" if training.checkpoints is None else f", {training.checkpoints:,} checkpoints saved"
    formations = f"{training.formations} formation{'s' if training.formations != 1 else ''}"
    yield "training", f"{formations}, {len(training.losses)} ranks lost{saved}"
    for loss in training.losses:
        yield "  lost", f"rank {loss['rank']} on {loss['worker'] or 'a worker'}: {loss['text'].splitlines()[0]}"
    again = f"{training.steps_again:,} steps ({duration(training.lost_s)} of work) done again"
    yield "  cost", f"{again}, {duration(training.waited_s)} waited"
    for each in training.interruptions:
        cost = f"{each['steps']:,} steps, {duration(each['seconds'])} of work"
        yield "  resumed", f"from step {each['step']:,} in attempt {each['attempt']}; {cost} were lost before"


def _certified(certificate: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "model" if certificate["unit"] == "round" else "weights", f"sha256 {certificate['final']}"
    if certificate["broken_by"]:
        yield "  broken", "; ".join(certificate["broken_by"])
    else:
        yield "  equal", f"for {certificate['equal_for']}"
    marks = certificate["digests"]
    if marks:
        number, digest = marks[-1]
        yield (
            "  on the way",
            f"{len(marks)} digests by {certificate['unit']}; after {certificate['unit']} {number}: {digest[:16]}…",
        )
