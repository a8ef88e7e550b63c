"""Run one program on n ranks, all or none, and bring back what they return."""

from __future__ import annotations

import json
import logging
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeAlias

from pipelines import errors
from pipelines.errors import DeadlineError, GangError, InterruptedRunError, MutiraoError, UserCodeError
from pipelines.training.gang.context import Deadlines
from pipelines.training.gang.coordinator import Coordinator
from pipelines.training.gang.events import (
    Cause,
    Enlisted,
    Event,
    Gone,
    Introduce,
    Order,
    Recruit,
    RegroupAsked,
    Spoke,
    StopAsked,
)
from pipelines.training.gang.launch import DaskLauncher, Launcher, LocalLauncher
from pipelines.training.gang.members import Sizes, Trouble
from pipelines.training.gang.membership import Membership, Phase
from pipelines.training.gang.queue import Place, turn
from pipelines.training.gang.strikes import Strikes
from pipelines.training.gang.watcher import Launch

if TYPE_CHECKING:
    from distributed import Client

logger = logging.getLogger(__name__)

POLL_S = 0.1
LOOK_S = 1.0
"""Between two looks for members whose watchers can't work, or whose worker went away before it could start them."""

Deal: TypeAlias = Callable[[Introduce], Sequence[dict[str, Any]]]
"""From a new formation to the arguments of each rank, by rank: JSON values."""


@dataclass(frozen=True)
class Loss:
    """A rank that was lost, and that the gang went on without."""

    formation: int
    rank: int
    worker: str
    cause: str
    text: str
    at: float = 0.0
    """Seconds since the epoch."""


@dataclass(frozen=True)
class GangResult:
    """What the ranks' programs returned, by rank, and what the gang went through."""

    results: list[bytes]
    formations: int
    losses: tuple[Loss, ...]
    waits_s: tuple[float, ...]
    """Seconds between leaving one formation and meeting in the next."""


def run_gang(
    client: Client | None,
    program: str,
    arguments: Sequence[dict[str, Any]] | Deal,
    *,
    sizes: Sizes | None = None,
    threads: int = 1,
    memory_bytes: int | None = None,
    deadlines: Deadlines | None = None,
    on_message: Callable[[int, dict[str, Any]], None] | None = None,
    on_wait: Callable[[Place], None] | None = None,
    on_loss: Callable[[Loss], None] | None = None,
    strikes: Strikes | None = None,
    stop: threading.Event | None = None,
    regroup: threading.Event | None = None,
    words: SimpleQueue[dict[str, Any]] | None = None,
    share_workers: bool = False,
    name: str = "training",
) -> GangResult:
    """Start ranks on distinct Dask workers, and wait for what they return.

    Every rank is a child process of its worker, which calls ``program(context)``. All start or none. When one fails or
    is lost, the others are told, leave, and are killed if they do not; no process is left when this returns or raises.
    Gangs on one cluster run side by side where they fit; the others wait in line, so two never wait for each other.

    A gang that survives (``sizes.survive``) goes on after a loss: the ranks that are left leave the collective, and
    `program` is called again in each of them, in a new formation with those that have come in place of the lost ones,
    or without them. What ranks keep in ``RankContext.kept`` they have again. The same happens when more workers come.
    `arguments` is then called for every formation.

    Parameters
    ----------
    client : distributed.Client or None
        The cluster; None starts the ranks as children of this process (one machine, no Dask).
    program : str
        ``"module:function"``, a function ``RankContext -> bytes``, importable on the workers.
    arguments : sequence of dict, or callable
        JSON values, one dict per rank; or a function that gives them for a formation.
    sizes : Sizes, optional
        How many ranks. Default: one per element of `arguments`, and none may be lost.
    threads : int
        What ``RankContext.threads`` says.
    memory_bytes : int, optional
        Limit of each worker's process tree (the worker process and its rank, resident bytes).
    deadlines : Deadlines, optional
    on_message : callable ``(rank, message)``, optional
        Called in this thread for every message that a rank reports; what it raises ends the gang.
    on_wait : callable ``(place)``, optional
        Called while other gangs have the workers, whenever the place in the line changes.
    on_loss : callable ``(loss)``, optional
        Called when a rank was lost and the gang goes on.
    strikes : Strikes, optional
        Faults to inject on purpose.
    stop : threading.Event, optional
        Set it to make the ranks write their checkpoint and leave.
    regroup : threading.Event, optional
        Set it to have the work dealt out anew, in a new formation; it is cleared then.
    words : SimpleQueue of dict, optional
        Small JSON messages for rank 0, which hears them with ``RankContext.hear``; may be filled from any thread.
    share_workers : bool
        Whether the ranks' Dask workers do other tasks meanwhile: those of whoever looks at what ranks have made while
        they wait.
    name : str
        Shown to others that wait for this gang, and in errors.

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
    deal: Deal
    if callable(arguments):
        if sizes is None:
            raise ValueError("say how many ranks when arguments are dealt out for each formation")
        deal = arguments
    else:
        fixed = list(arguments)
        if not fixed:
            raise ValueError("a gang has at least one rank")
        sizes, deal = sizes or Sizes.fixed(len(fixed)), lambda _: fixed
    deadlines, stop = deadlines or Deadlines(), stop or threading.Event()
    with turn(
        client,
        name,
        ranks=sizes.start,
        min_ranks=sizes.least,
        max_ranks=sizes.most,
        queue_s=deadlines.queue_s,
        start_s=deadlines.start_s,
        stop=stop,
        on_wait=on_wait or _ignore,
    ) as claim:
        if client is not None:
            sizes = replace(sizes, start=len(claim.workers))
        launcher: Launcher = LocalLauncher() if client is None else DaskLauncher(client, claim)
        token = secrets.token_bytes(32)
        try:
            with Coordinator(launcher.host, token, partial(_packed, deal)) as coordinator:
                first = Launch(
                    gang=secrets.token_hex(4),
                    member=0,
                    coordinator=coordinator.address,
                    token=token.hex(),
                    program=program,
                    threads=threads,
                    memory_bytes=memory_bytes,
                    step_s=deadlines.step_s,
                    start_s=deadlines.start_s,
                    shares_worker=share_workers,
                )
                gang = Membership(sizes, deadlines, time.monotonic())
                hands = _Hands(
                    gang,
                    coordinator,
                    launcher,
                    first,
                    on_message or _ignore,
                    on_loss or _ignore,
                    strikes,
                    words or SimpleQueue(),
                )
                interrupted = hands.attend(stop, regroup or threading.Event())
        finally:
            launcher.close()
    if interrupted is not None:
        raise interrupted
    if gang.results is not None:
        losses = tuple(_loss(trouble) for trouble in gang.losses)
        return GangResult(gang.results, gang.formation, losses, tuple(gang.waits_s))
    raise _failure(gang, name)


class _Hands:
    """Carries events to the gang's state, and its orders to those who obey them."""

    def __init__(
        self,
        gang: Membership,
        coordinator: Coordinator,
        launcher: Launcher,
        first: Launch,
        on_message: Callable[[int, dict[str, Any]], None],
        on_loss: Callable[[Loss], None],
        strikes: Strikes | None,
        words: SimpleQueue[dict[str, Any]],
    ) -> None:
        self._gang, self._coordinator, self._launcher, self._first = gang, coordinator, launcher, first
        self._on_message, self._on_loss, self._strikes, self._words = on_message, on_loss, strikes, words
        self._members = 0
        self._told = 0
        self._evident = False

    def attend(self, stop: threading.Event, regroup: threading.Event) -> KeyboardInterrupt | None:
        """Serve until the gang has ended. The first Ctrl-C asks it to leave, the second kills it."""
        interrupted: KeyboardInterrupt | None = None
        gang, look_at = self._gang, 0.0
        while not gang.ended:
            try:
                now = time.monotonic()
                if now > look_at:
                    look_at = now + LOOK_S
                    for member, text in self._launcher.lost(gang.unwatched()):
                        self._handle(Gone(member, Cause.START, text))
                for event in self._coordinator.poll(POLL_S):
                    self._handle(event)
                    if isinstance(event, Spoke):
                        self._on_message(gang.rank(event.member), event.message)
                if stop.is_set():
                    self._handle(StopAsked())
                if regroup.is_set():
                    regroup.clear()
                    self._handle(RegroupAsked())
                self._obey(gang.tick(time.monotonic()))
                self._pass_on()
                self._tell()
                if self._strikes is not None:
                    self._obey(self._strikes.due(gang.at_work(), gang.broken))
            except KeyboardInterrupt as error:
                self._handle(StopAsked(now=interrupted is not None))
                interrupted = error
        return interrupted if gang.results is None else None

    def _handle(self, event: Event) -> None:
        if self._strikes is not None:
            self._strikes.hear(event)
        self._obey(self._gang.handle(event, time.monotonic()))
        if isinstance(event, Gone):
            silent = any(each.member == event.member and each.cause is Cause.SILENT for each in self._gang.losses)
            self._launcher.forget(event.member, suspect=silent)

    def _obey(self, orders: Sequence[Order]) -> None:
        for order in orders:
            if isinstance(order, Recruit):
                for member, place in self._launcher.start(order.count, self._next_launch):
                    self._gang.handle(Enlisted(member, place), time.monotonic())
            else:
                self._coordinator.obey([order])

    def _pass_on(self) -> None:
        """Give the owner's words to rank 0, when there is one."""
        leader = self._gang.leader()
        while leader is not None and not self._words.empty():
            self._coordinator.say(leader, self._words.get_nowait())

    def _next_launch(self) -> Launch:
        launch = replace(self._first, member=self._members)
        self._members += 1
        self._coordinator.expect(launch.member)
        return launch

    def _tell(self) -> None:
        gang = self._gang
        for trouble in gang.losses[self._told :]:
            logger.warning("%s lost rank %d on %s: %s", self._first.program, trouble.rank, trouble.worker, trouble.text)
            self._on_loss(_loss(trouble))
        self._told = len(gang.losses)
        if gang.phase is Phase.FAILING and gang.troubles[0].cause is Cause.START and not self._evident:
            self._evident = True
            gang.troubles[0].details["evidence"] = self._launcher.evidence(gang.missing()) or "no evidence"


def _packed(deal: Deal, order: Introduce) -> list[bytes]:
    return [json.dumps(each, allow_nan=False).encode() for each in deal(order)]


def _loss(trouble: Trouble) -> Loss:
    at = time.time() - (time.monotonic() - trouble.at)
    return Loss(trouble.formation, trouble.rank, trouble.worker, trouble.cause.value, trouble.text, round(at, 3))


def _failure(gang: Membership, name: str) -> MutiraoError:
    """Say in one error why the gang has ended without results."""
    trouble = gang.verdict()
    if gang.stop_asked and (trouble is None or trouble.cause is Cause.BLAMED):
        return InterruptedRunError(f"{name} was stopped", remedy="It goes on from its last checkpoint when run again.")
    assert trouble is not None
    where = f"rank {trouble.rank} on {trouble.worker or 'a worker'}" if trouble.rank >= 0 else name
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
