"""When is something asked for, if two may ask? An event that is set when it is set itself, or another one is."""

from __future__ import annotations

import threading
import time

_LOOK_S = 0.1


class Either(threading.Event):
    """An event that is also set while `other` is; setting or clearing it leaves `other` alone."""

    def __init__(self, other: threading.Event) -> None:
        super().__init__()
        self._other = other

    def is_set(self) -> bool:
        """Whether one of the two is set."""
        return super().is_set() or self._other.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for one of the two."""
        end = None if timeout is None else time.monotonic() + timeout
        while not self._other.is_set():
            left = _LOOK_S if end is None else min(_LOOK_S, end - time.monotonic())
            if left <= 0 or super().wait(left):
                break
        return self.is_set()
