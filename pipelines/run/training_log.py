"""What is written down of a training while it runs, and what an interruption before it has cost."""

from __future__ import annotations

import os
import signal
from typing import Any

from pipelines.errors import StorageError
from pipelines.run.journal import Event, JournalWriter
from pipelines.training.gang import Struck
from pipelines.training.happenings import Happening, steps_told

_QUIET = ("waits", "formation")
"""What is shown while it happens, and is no notice afterwards."""


class TrainingLog:
    """Puts a training's happenings into the run's journal.

    Parameters
    ----------
    journal : JournalWriter
    attempt : int
    before : Event, optional
        The training's last progress in the attempt before this one.
    """

    def __init__(self, journal: JournalWriter, attempt: int, before: Event | None = None) -> None:
        self._journal, self._attempt, self._before = journal, attempt, before

    @property
    def resuming(self) -> bool:
        """Whether an earlier attempt may have left checkpoints."""
        return self._attempt > 1

    def happened(self, happening: Happening) -> None:
        """Take down what happened."""
        data, resumes = happening.data, happening.what == "resumption"
        begins = resumes and data["formation"] == 1 and not data["stored"]
        self.append(happening.what, happening.text, data, notice=happening.what not in _QUIET and not begins)
        if resumes and self._before is not None:
            lost = interruption(self._before, step=int(data["step"]), saved_at=float(data["saved_at"]))
            self._before = None
            self.append("interruption", _told(lost), {**lost, "attempt": self._attempt}, notice=True)

    def struck(self, struck: Struck) -> None:
        """Take down a fault that is about to strike. If it is the driver's, this does not return."""
        self.append("fault", f"chaos: {struck}", {**struck.to_plain(), "attempt": self._attempt}, notice=True)
        if struck.fault.harm != "driver":
            return
        try:
            self._journal.flush()
        except StorageError as error:  # unwritten, it would strike again after every resumption
            text = f"chaos: the driver was spared, since the journal can't be written: {error}"
            self.append("notice", text, {}, notice=True)
            return
        os.kill(os.getpid(), signal.SIGKILL)

    def append(self, what: str, text: str, data: dict[str, Any], *, notice: bool) -> None:
        """Add one entry; a `notice` is shown at the run's end, too."""
        self._journal.append("training", "train", what=what, text=text, notice=notice, data=data)


def interruption(before: Event, *, step: int, saved_at: float) -> dict[str, Any]:
    """Count what was done between the state that is gone on from and the last progress that was heard of.

    Progress is written twice a second, so a little more may have been lost.

    Parameters
    ----------
    before : Event
        The last progress.
    step : int
        The step of the state, 0 for none.
    saved_at : float
        When the state was saved, in seconds since the epoch.
    """
    done = int(before.data.get("done") or 0) if before.data.get("unit") == "steps" else 0
    since = saved_at or float(before.data.get("began") or before.time)
    steps = max(0, done - step)
    return {"step": step, "steps": steps, "seconds": round(max(0.0, before.time - since), 3) if steps else 0.0}


def _told(lost: dict[str, Any]) -> str:
    if not lost["steps"]:
        return "the interruption has cost no step"
    return f"{steps_told(lost['steps'])}, {lost['seconds']:.1f} s of work, were lost by the interruption"
