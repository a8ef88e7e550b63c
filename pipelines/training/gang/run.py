"""Run one program on n ranks, all or none, and bring back what they return."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pipelines.training.gang.context import Deadlines

if TYPE_CHECKING:
    from distributed import Client


def run_gang(
    client: Client | None,
    program: str,
    arguments: Sequence[dict[str, Any]],
    *,
    threads: int = 1,
    memory_bytes: int | None = None,
    deadlines: Deadlines | None = None,
    on_message: Callable[[int, dict[str, Any]], None] | None = None,
    stop: threading.Event | None = None,
    name: str = "training",
) -> list[bytes]:
    """Start one rank per element of `arguments` on distinct Dask workers, and wait for what they return.

    Every rank is a child process of its worker, which calls ``program(context)``. All start or none. When one fails or
    is lost, the others are told, leave, and are killed if they do not; no process is left when this returns or raises.
    Gangs on one cluster take turns (a lock with a queue), so two of them never wait for each other's workers.

    Parameters
    ----------
    client : distributed.Client or None
        The cluster; None starts the ranks as children of this process (one machine, no Dask).
    program : str
        ``"module:function"``, a function ``RankContext -> bytes``, importable on the workers.
    arguments : sequence of dict
        JSON values, one dict per rank.
    threads : int
        What ``RankContext.threads`` says.
    memory_bytes : int, optional
        Limit of each worker's process tree (the worker process and its rank, resident bytes).
    deadlines : Deadlines, optional
    on_message : callable ``(rank, message)``, optional
        Called in this thread for every message that a rank reports.
    stop : threading.Event, optional
        Set it to make the ranks write their checkpoint and leave.
    name : str
        Shown to others that wait for this gang, and in errors.

    Returns
    -------
    list of bytes
        What each rank's program returned, by rank.

    Raises
    ------
    UserCodeError, TrainingError, DataError, …
        A rank's program raised: the first error, of its own class where it is one of ``pipelines.errors``, with rank,
        worker, traceback and the end of the rank's log.
    GangError
        Ranks could not be started, were killed, ran out of memory, or fell silent; says which, where and why.
    DeadlineError
        The queue for the cluster, or the start, took too long; says what was missing.
    InterruptedRunError
        `stop` was set, or the user pressed Ctrl-C: the ranks have left.
    """
    raise NotImplementedError
