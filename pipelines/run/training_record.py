"""What a run's training went through, over all attempts, folded from its journal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class TrainingRecord:
    """Losses, waits and work that was done again; JSON-able.

    Attributes
    ----------
    formations, ranks : int
        How often ranks have met, and how many they were the last time.
    losses : tuple of dict
        Ranks that were lost and that the training went on without: ``formation, rank, worker, cause, text, at``.
    waited_s : float
        Seconds without a formation: in line for workers, and after losses.
    steps_again : int
    lost_s : float
        Steps that were done again after losses, and the seconds of work in them.
    interruptions : tuple of dict
        What was lost when the run was resumed: ``attempt, steps, seconds, step`` (from which it went on).
    checkpoints : int, optional
        Saved ones, once the training is done.
    faults : tuple of dict
        Injected on purpose: ``number, harm, rank, worker, words, attempt``.
    chaos : dict, optional
        What was to be injected (``spec, faults``), and at the end what came of it (``conclusion``).
    """

    formations: int = 0
    ranks: int = 0
    losses: tuple[dict[str, Any], ...] = ()
    waited_s: float = 0.0
    steps_again: int = 0
    lost_s: float = 0.0
    interruptions: tuple[dict[str, Any], ...] = ()
    checkpoints: int | None = None
    faults: tuple[dict[str, Any], ...] = ()
    chaos: dict[str, Any] | None = None

    @property
    def eventful(self) -> bool:
        """Whether there is more to tell than that it ran."""
        return self.formations > 1 or bool(self.losses or self.interruptions or self.chaos) or self.waited_s >= 1


def take_in(record: TrainingRecord, what: str, data: Mapping[str, Any]) -> TrainingRecord:
    """Apply one ``training`` event of the journal."""
    match what:
        case "formation":
            waited = round(record.waited_s + float(data["waited_s"]), 3)
            return replace(record, formations=record.formations + 1, ranks=int(data["ranks"]), waited_s=waited)
        case "loss":
            return replace(record, losses=(*record.losses, dict(data)))
        case "resumption" if data["formation"] > 1:
            steps, seconds = record.steps_again + int(data["lost_steps"]), record.lost_s + float(data["lost_s"])
            return replace(record, steps_again=steps, lost_s=round(seconds, 3))
        case "interruption":
            return replace(record, interruptions=(*record.interruptions, dict(data)))
        case "fault":
            return replace(record, faults=(*record.faults, dict(data)))
        case "chaos":
            return replace(record, chaos={**(record.chaos or {}), **data})
        case _:
            return record
