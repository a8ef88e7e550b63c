"""Run one program on n ranks, all or none, and bring back what they return."""

from __future__ import annotations

import json
import logging
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pipelines import errors
from pipelines.errors import DeadlineError, GangError, InterruptedRunError, MutiraoError, UserCodeError
from pipelines.training.gang.context import Deadlines
from pipelines.training.gang.coordinator import Coordinator
from pipelines.training.gang.events import Cause, Complained, Spoke, StopAsked
from pipelines.training.gang.launch import DaskLauncher, Launcher, LocalLauncher
from pipelines.training.gang.membership import Membership, Phase, Trouble
from pipelines.training.gang.queue import turn
from pipelines.training.gang.watcher import Launch

if TYPE_CHECKING:
    from distributed import Client

logger = logging.getLogger(__name__)

POLL_S = 0.1
MOVE_S = 2.0
"""Between two looks for ranks whose worker went away before it could start them."""


def run_gang(
    client: Client | None,
    program: str,
    arguments: Sequence[dict[str, Any]],
    *,
    threads: int = 1,
    memory_bytes: int | None = None,
    deadlines: Deadlines | None = None,
    on_message: Callable[[int, dict[str, Any]], None] | None = None,
    on_wait: Callable[[str], None] | None = None,
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
        Called in this thread for every message that a rank reports; what it raises ends the gang.
    on_wait : callable ``(holder)``, optional
        Called when another gang has the cluster, with its name.
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
        `stop` was set: the ranks have left.
    KeyboardInterrupt
        After Ctrl-C, once the ranks have left.
    """
    if not arguments:
        raise ValueError("a gang has at least one rank")
    deadlines, stop = deadlines or Deadlines(), stop or threading.Event()
    with turn(client, name, queue_s=deadlines.queue_s, stop=stop, on_wait=on_wait or _ignore):
        launcher: Launcher
        if client is None:
            launcher = LocalLauncher()
        else:
            launcher = DaskLauncher(client, len(arguments), start_s=deadlines.start_s)
        token = secrets.token_bytes(32)
        packed = [json.dumps(each, allow_nan=False).encode() for each in arguments]
        try:
            with Coordinator(launcher.host, token, packed) as coordinator:
                template = Launch(
                    gang=secrets.token_hex(4),
                    rank=0,
                    size=len(arguments),
                    coordinator=coordinator.address,
                    token=token.hex(),
                    program=program,
                    threads=threads,
                    memory_bytes=memory_bytes,
                    step_s=deadlines.step_s,
                    start_s=deadlines.start_s,
                )
                gang = Membership(len(arguments), deadlines, time.monotonic())
                launcher.start([Launch.of({**template.plain(), "rank": rank}) for rank in range(len(arguments))])
                interrupted = _attend(gang, coordinator, launcher, stop, on_message or _ignore)
        finally:
            launcher.close()
    if interrupted is not None:
        raise interrupted
    if gang.results is not None:
        return gang.results
    raise _failure(gang, name)


def _attend(
    gang: Membership,
    coordinator: Coordinator,
    launcher: Launcher,
    stop: threading.Event,
    on_message: Callable[[int, dict[str, Any]], None],
) -> KeyboardInterrupt | None:
    """Serve until the gang has ended. The first Ctrl-C asks it to leave, the second kills it."""
    interrupted: KeyboardInterrupt | None = None
    evidence = ""
    look_again = time.monotonic() + MOVE_S
    while not gang.ended:
        try:
            if gang.phase is Phase.STARTING and time.monotonic() > look_again:
                look_again = time.monotonic() + MOVE_S
                launcher.move(gang.unwatched())
            for event in coordinator.poll(POLL_S):
                coordinator.obey(gang.handle(event, time.monotonic()))
                if isinstance(event, Spoke):
                    on_message(event.rank, event.message)
            trouble = launcher.trouble()
            if trouble is not None and not gang.troubles:
                rank, text = trouble
                lost = Complained(rank, Cause.START, f"its watcher could not work: {text}", {})
                coordinator.obey(gang.handle(lost, time.monotonic()))
            if stop.is_set():
                coordinator.obey(gang.handle(StopAsked(), time.monotonic()))
            coordinator.obey(gang.tick(time.monotonic()))
            if gang.troubles and gang.troubles[0].cause is Cause.START and not evidence:
                evidence = launcher.evidence(gang.missing()) or "no evidence"
                gang.troubles[0].details["evidence"] = evidence
        except KeyboardInterrupt as error:
            coordinator.obey(gang.handle(StopAsked(now=interrupted is not None), time.monotonic()))
            interrupted = error
    return interrupted if gang.results is None else None


def _failure(gang: Membership, name: str) -> MutiraoError:
    """Say in one error why the gang has ended without results."""
    trouble = gang.verdict()
    if gang.stop_asked and (trouble is None or trouble.cause is Cause.BLAMED):
        return InterruptedRunError(f"{name} was stopped", remedy="It goes on from its last checkpoint when run again.")
    assert trouble is not None
    where = f"rank {trouble.rank} on {gang.worker(trouble.rank) or 'a worker'}" if trouble.rank >= 0 else name
    details = trouble.details
    evidence = "".join(
        f"\n{title}:\n{_indented(str(details[key]))}"
        for key, title in (("traceback", "traceback"), ("log", "end of the rank's log"))
        if details.get(key)
    )
    if trouble.cause is Cause.START:
        found = str(details.get("evidence", ""))
        return DeadlineError(f"the gang did not start: {trouble.text}", on=where, found=found + evidence)
    if trouble.cause is Cause.RAISED:
        return _raised(trouble, where, evidence)
    remedy = {
        Cause.MEMORY: "Give the workers more memory, or use more of them.",
        Cause.KILLED: "See why the process was killed; the training goes on from its last checkpoint when run again.",
    }.get(trouble.cause, "")
    return GangError(f"{trouble.text}{evidence}", on=where, remedy=remedy)


def _raised(trouble: Trouble, where: str, evidence: str) -> MutiraoError:
    """Rebuild an error of ours as its own class; what the user's code raised is a `UserCodeError`."""
    details = trouble.details
    cls = getattr(errors, str(details.get("class", "")), None)
    fields = details.get("fields")
    if isinstance(cls, type) and issubclass(cls, MutiraoError) and fields and len(fields) == 5:
        what, on, expected, found, remedy = fields
        logger.error("%s raised %s%s", where, details["class"], evidence)
        error = cls(f"{what} ({where})", on=on, expected=expected, found=found, remedy=remedy)
        error.add_note(evidence.strip())
        return error
    kind = UserCodeError if details.get("user_code") else GangError
    return kind(f"raised {trouble.text}{evidence}", on=where)


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.rstrip().splitlines())


def _ignore(*_: object) -> None:
    pass
