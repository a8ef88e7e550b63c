"""How is a state saved while the training goes on? By a thread that writes the newest; older ones do not queue up."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

logger = logging.getLogger(__name__)


State = TypeVar("State")


class Saver(Generic[State]):
    """Writes states in the background, one at a time; a state that still waits is replaced by a newer one.

    The thread lives only while there is something to write. What `write` raises is told, and ends nothing: earlier
    checkpoints are there, and the next one is tried when it is due.

    Parameters
    ----------
    write : callable ``(step, payload)``
        Saves one state; called in the thread.
    on_failure : callable ``(text)``
        Told what went wrong, in the thread; the same text only once in a row.
    """

    def __init__(self, write: Callable[[int, State], None], on_failure: Callable[[str], None]) -> None:
        self._write, self._on_failure = write, on_failure
        self._changed = threading.Condition()
        self._waiting: tuple[int, State] | None = None
        self._busy = False
        self._told = ""
        self.saved = 0
        """States that were written."""
        self.replaced = 0
        """States that a newer one took the place of before they were written."""

    def offer(self, step: int, payload: State) -> None:
        """Have a state written as soon as the one before it is; never waits."""
        with self._changed:
            self.replaced += self._waiting is not None
            self._waiting = step, payload
            if not self._busy:
                self._busy = True
                threading.Thread(target=self._work, name="checkpoints", daemon=True).start()

    def finish(self, limit_s: float) -> bool:
        """Wait until everything is written or has failed, at most `limit_s` seconds; returns whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._busy, limit_s)

    def _work(self) -> None:
        while True:
            with self._changed:
                if self._waiting is None:
                    self._busy = False
                    self._changed.notify_all()
                    return
                (step, payload), self._waiting = self._waiting, None
            self._save(step, payload)

    def _save(self, step: int, payload: State) -> None:
        try:
            self._write(step, payload)
        except Exception as error:  # noqa: BLE001 - a thread's boundary: the training goes on, and says so
            text = f"the checkpoint of step {step} was not saved: {error}"
            logger.warning("%s", text)
            if str(error) != self._told:
                self._told = str(error)
                self._on_failure(text)
        else:
            self._told = ""
            self.saved += 1
