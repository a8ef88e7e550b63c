"""Where does the arbiter get its thread? In the process that owns the run, beside what that one does."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from types import TracebackType

from pipelines.errors import MutiraoError
from pipelines.training.strategies.parameter_server.arbiter import Arbiter

logger = logging.getLogger(__name__)

_POLL_S = 0.05
_SETTLE_S = 5.0


class Desk:
    """Polls an arbiter until it is closed, or a shard is lost (servers and clients are told that by the arbiter).

    Parameters
    ----------
    arbiter : Arbiter
        Owned by the thread from now on.
    enough : callable
        Asked all the time: whether no more updates are wanted.
    """

    def __init__(self, arbiter: Arbiter, enough: Callable[[], bool]) -> None:
        self._arbiter, self._enough = arbiter, enough
        self._rounds = 0
        self._turned = threading.Condition()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="arbiter", daemon=True)

    def __enter__(self) -> Desk:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._closing.set()
        self._thread.join()

    def settle(self) -> None:
        """Wait until all that has arrived is read: two rounds, the first of which may have begun before."""
        with self._turned:
            aim = self._rounds + 2
            self._turned.wait_for(lambda: self._rounds >= aim or not self._thread.is_alive(), _SETTLE_S)

    def _work(self) -> None:
        with self._arbiter:
            try:
                while not self._closing.is_set():
                    self._arbiter.poll(_POLL_S)
                    if self._enough():
                        self._arbiter.halt()
                    with self._turned:
                        self._rounds += 1
                        self._turned.notify_all()
            except MutiraoError as error:
                # Whoever needs the servers has been told, and says so; at the end they go with their ranks.
                if not self._enough():
                    logger.info("the arbiter has ended: %s", error)
