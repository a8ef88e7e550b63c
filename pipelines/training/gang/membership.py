"""Who is in the gang, who was lost, and what to do about it: events in, orders out, no input or output of its own.

Members come, and when there are enough of them a *formation* is introduced: each gets a rank, and they work together.
A gang that survives goes on when members are lost: the others leave the formation, the lost ones are replaced if
somebody comes in time, and a new formation goes on from the last committed step. When members come back while it runs,
it is asked to form again at its next step. Everything else ends the gang: all are told to leave, and killed when they
do not; the verdict waits until all are gone, since the first to complain is often not the cause: a rank whose peer was
killed sees a closed connection before anyone sees the death.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from pipelines.training.gang.context import Deadlines
from pipelines.training.gang.events import (
    Arrived,
    Beat,
    Cause,
    Committed,
    Complained,
    Enlisted,
    Event,
    Gone,
    Introduce,
    Kill,
    Left,
    Order,
    Recruit,
    RegroupAsked,
    Returned,
    Spoke,
    StopAsked,
    Tell,
    Watched,
)
from pipelines.training.gang.members import Member, Sizes, State, Trouble, cause_of, completed

LEAVE_S = 3.0
"""For a member to end by itself that was dismissed."""
DISBAND_S = 10.0
"""For a member to leave a formation that goes on without it: it may be in the middle of a long computation."""
KILL_S = 20.0
"""For a watcher to report the end of a member that it was told to kill (a large process takes its time)."""
DEAF_S = 2.0
"""The same for a watcher that has been silent. What it watches ends when the coordinator closes the connections."""
PATIENCE = 5
"""So many formations in a row may break without a step committed in between."""
BLAMES = 2
"""A member that nobody sees die, but whose peers lost sight of it in so many formations in a row, is replaced."""
RECRUIT_S = 0.5
SCOUT_S = 5.0
"""Between two calls for members: while they are waited for, and while the gang works with fewer than it wants."""


class Phase(Enum):
    """Where the gang is in its life."""

    GATHERING = "gathering"
    RUNNING = "running"
    DISBANDING = "disbanding"
    FINISHING = "finishing"
    STOPPING = "stopping"
    FAILING = "failing"
    ENDED = "ended"


_LAST = (Phase.FINISHING, Phase.STOPPING, Phase.FAILING, Phase.ENDED)
_LOSSES = (Cause.KILLED, Cause.DIED, Cause.SILENT, Cause.START)


class Membership:
    """The gang's state. Feed it with `handle` and, several times a second, `tick`; obey the orders it returns."""

    def __init__(self, sizes: Sizes, deadlines: Deadlines, now: float) -> None:
        self.phase = Phase.GATHERING
        self.formation = 0
        self.troubles: list[Trouble] = []
        """Of the current formation, or since the last one."""
        self.losses: list[Trouble] = []
        """Members that were lost, and that the gang went on without."""
        self.waits_s: list[float] = []
        """Seconds without a formation after each one that broke."""
        self.stop_asked = False
        self.step = -1
        self._sizes, self._deadlines = sizes, deadlines
        self._since = now
        self._members: dict[int, Member] = {}
        self._recruit_at = now
        self._broken = 0
        self._blamed: set[int] = set()
        self._regrouping = False

    # --- what others want to know ------------------------------------------------------------------------------------

    @property
    def ended(self) -> bool:
        """Whether there is nothing left to wait for."""
        return self.phase is Phase.ENDED

    @property
    def results(self) -> list[bytes] | None:
        """What the programs returned, by rank; empty bytes of a rank that was lost when rank 0 had returned."""
        ranks = self._formed(gone=True)
        found = [member.result for member in ranks]
        if not ranks or found[0] is None or (None in found and not self._sizes.survive):
            return None
        return [result or b"" for result in found]

    def rank(self, member: int) -> int:
        """Return a member's rank, or its number before it has one."""
        return self._members[member].name

    def leader(self) -> int | None:
        """Return the member that has rank 0, while a formation is at work."""
        formed = self._formed() if self.phase is Phase.RUNNING else []
        return formed[0].number if formed and formed[0].rank == 0 else None

    def worker(self, member: int) -> str:
        """Name the worker that `member` runs on, empty before it is known."""
        return self._members[member].worker if member in self._members else ""

    def unwatched(self) -> list[int]:
        """Return the members that no worker has begun to watch."""
        return [member.number for member in self._there() if not member.watched]

    def missing(self) -> list[int]:
        """Return the members that have not arrived."""
        return [member.number for member in self._there() if member.state is State.COMING]

    @property
    def broken(self) -> int:
        """How many formations have broken in a row without a step between them."""
        return self._broken

    def at_work(self) -> list[tuple[int, str]]:
        """Return members and workers of the ranks that work in the formation now, by rank; none between formations."""
        if self.phase is not Phase.RUNNING or self._leader_returned():
            return []
        formed = self._formed()
        return [(each.number, each.worker) for each in formed if each.state is State.ACTIVE and not each.lost]

    def verdict(self) -> Trouble | None:
        """Return the cause of the failure: the earliest, where a killed rank counts as earlier than complaints."""
        return cause_of(self.troubles)

    # --- events and time ---------------------------------------------------------------------------------------------

    def handle(self, event: Event, now: float) -> list[Order]:
        """Take in what happened."""
        if isinstance(event, StopAsked):
            return self._stop(event, now)
        if isinstance(event, RegroupAsked):
            return self._regroup("the work is dealt out anew")
        if isinstance(event, Enlisted):
            self._members[event.member] = member = Member(event.member, event.place, heard=now, progress=now)
            if self.phase in _LAST:
                member.kill_at = now
            return []
        member = self._members[event.member]
        member.heard = now
        if member.gone:
            return []
        match event:
            case Watched():
                member.worker, member.watched = event.worker, True
            case Arrived():
                return self._arrived(member, event, now)
            case Beat():
                member.note(event, now)
            case Spoke():
                member.progress = now
            case Committed():
                member.progress = now
                if event.step > self.step:
                    self.step, self._broken = event.step, 0
            case Left():
                return self._left(member, event, now)
            case Returned():
                member.result, member.state, member.progress = event.result, State.RETURNED, now
                return self._finish_if_done(now)
            case Complained():
                member.state = State.ENDING
                if not event.leaving:
                    return self._trouble(member, event.cause, event.text, now, event.details)
            case Gone():
                return self._gone(member, event, now)
        return []

    def tick(self, now: float) -> list[Order]:
        """Judge the waits. Call it only after everything that has arrived was handled."""
        orders = self._judge_silence(now)
        called = self._recruit(now)
        orders += called
        if self.phase is Phase.RUNNING:
            orders += self._judge_idleness(now) + self._grow(now)
        orders += self._form_if_ready(now, settled=not called)
        for member in self._there():
            if member.kill_at is not None and now >= member.kill_at:
                orders += self._kill(member, now)
        return orders

    # --- coming and forming ------------------------------------------------------------------------------------------

    def _arrived(self, member: Member, event: Arrived, now: float) -> list[Order]:
        if not member.lost and (member.kill_at is None or self.phase is Phase.DISBANDING):
            member.state, member.address, member.holds = State.READY, event.address, event.holds
            member.kill_at, member.progress, member.ready_since = None, now, now
        if self.phase in _LAST:
            return [Tell(member.number, "dismiss")]
        return self._form_if_ready(now, settled=False)

    def _recruit(self, now: float) -> list[Order]:
        if self.phase in _LAST or now < self._recruit_at or (self.phase is Phase.RUNNING and not self._sizes.survive):
            return []
        wanted = self._sizes.most if self.formation else self._sizes.start
        lacking = wanted - sum(not member.lost for member in self._there())
        if lacking <= 0:
            return []
        self._recruit_at = now + (SCOUT_S if self.phase is Phase.RUNNING else RECRUIT_S)
        return [Recruit(lacking)]

    def _form_if_ready(self, now: float, *, settled: bool) -> list[Order]:
        """Form if nothing is left to wait for; `settled` says that whoever could be called for has been called."""
        if self.phase is Phase.DISBANDING and not any(
            member.rank is not None and member.state is not State.READY for member in self._there()
        ):
            if self._broken > PATIENCE:
                return self._give_up(now)
            self._evict(now)
            self.phase = Phase.GATHERING
        if self.phase is not Phase.GATHERING:
            return []
        ready = [member for member in self._there() if member.state is State.READY and not member.lost]
        sizes, waited = self._sizes, now - self._since
        if len(ready) >= (sizes.most if self.formation else sizes.start):
            return self._form(ready, now)
        enough = len(ready) >= sizes.least
        if self.formation and enough and (waited >= self._deadlines.rejoin_s or (settled and not self.missing())):
            return self._form(ready, now)
        if waited > self._deadlines.start_s:
            if enough:
                return self._form(ready, now)
            return self._too_few(len(ready), now)
        return []

    def _form(self, ready: list[Member], now: float) -> list[Order]:
        """Introduce members to each other: old ranks first, in their order, newcomers behind them."""
        if self.formation:
            self.waits_s.append(now - self._since)
        chosen = sorted(ready, key=lambda each: (each.rank is None, each.rank, each.number))[: self._sizes.most]
        for member in self._members.values():
            member.rank = None
        for rank, member in enumerate(chosen):
            member.rank, member.state, member.result, member.progress = rank, State.ACTIVE, None, now
        self.formation += 1
        self.phase, self.troubles, self._regrouping, self._blamed = Phase.RUNNING, [], False, set()
        return [
            Introduce(
                self.formation,
                tuple(member.number for member in chosen),
                tuple(member.address for member in chosen),
                tuple(member.holds for member in chosen),
            )
        ]

    def _too_few(self, ready: int, now: float) -> list[Order]:
        limit, last = self._deadlines.start_s, self.verdict()
        if self.formation:
            text = f"{ready} of at least {self._sizes.least} ranks were there {limit:g} s after a loss"
        else:
            names = ", ".join(str(number) for number in self.missing())
            who = f"rank {names} of {self._sizes.start}" if names else f"{self._sizes.start - ready} ranks"
            text = f"{who} did not arrive within {limit:g} s"
        if last is not None:
            text += f" (rank {last.rank} on {last.worker or 'a worker'}: {last.text})"
        self.troubles = []
        details = {} if last is None else last.details
        return self._fail(Trouble(-1, Cause.START, text, now, formation=self.formation, details=details), now)

    def _grow(self, now: float) -> list[Order]:
        """Ask the leader for a new formation once those who have come back wait, and nobody else is about to come."""
        waiting = [member for member in self._there() if member.state is State.READY and not member.lost]
        if self._regrouping or not waiting or len(self._formed()) >= self._sizes.most:
            return []
        since = min(member.ready_since for member in waiting)
        if self.missing() and now - since < self._deadlines.rejoin_s:
            return []
        return self._regroup(f"{len(waiting)} more ranks are there")

    def _regroup(self, reason: str) -> list[Order]:
        """Ask the leader, once for each formation, to make all leave at the next step."""
        if self.phase is not Phase.RUNNING or self._regrouping or not self._sizes.survive:
            return []
        self._regrouping = True
        return [Tell(self._formed()[0].number, "regroup", reason)]

    # --- leaving, and going on ---------------------------------------------------------------------------------------

    def _left(self, member: Member, event: Left, now: float) -> list[Order]:
        member.state = State.COMING
        if self.phase is not Phase.RUNNING or member.rank is None:
            return []
        if event.blamed is None:
            return self._disband("the gang forms again", now)
        ranks = self._formed(gone=True)
        if 0 <= event.blamed < len(ranks):
            self._blamed.add(ranks[event.blamed].number)
        if not self._sizes.survive:
            return self._trouble(member, Cause.BLAMED, event.text, now, {"blamed": event.blamed})
        return self._break(f"rank {member.rank}: {event.text}", now)

    def _break(self, reason: str, now: float) -> list[Order]:
        self._broken += 1
        return self._disband(reason, now)

    def _disband(self, reason: str, now: float) -> list[Order]:
        self.phase, self._since, self._recruit_at = Phase.DISBANDING, now, now
        orders: list[Order] = []
        for member in self._formed():
            if member.state in (State.ACTIVE, State.RETURNED):
                orders.append(Tell(member.number, "leave", reason.splitlines()[0]))
            if member.kill_at is None and member.state is not State.READY:
                member.kill_at = now + DISBAND_S
        return orders

    def _evict(self, now: float) -> None:
        """Replace a member that its peers lost sight of again, while no watcher saw anybody die."""
        lost = {trouble.member for trouble in self.troubles}
        for member in self._there():
            if member.number not in self._blamed or lost:
                member.blames = 0
            else:
                member.blames += 1
            if member.blames >= BLAMES and member.kill_at is None:
                text = f"its peers lost sight of it in {member.blames} formations in a row"
                self.losses.append(self._trouble_of(member, Cause.SILENT, text, now, {}))
                member.kill_at, member.lost, member.rank = now, True, None

    def _give_up(self, now: float) -> list[Order]:
        """End a gang whose formations break again and again; all of the last one are resolved: its cause is known."""
        last, self.troubles = self.verdict(), []
        found = "ranks lost sight of each other" if last is None else f"rank {last.rank} on {last.worker}: {last.text}"
        text = f"{self._broken} formations in a row broke without a step in between; the last: {found}"
        details = {} if last is None else last.details
        return self._fail(Trouble(-1, Cause.KILLED, text, now, formation=self.formation, details=details), now)

    def _gone(self, member: Member, event: Gone, now: float) -> list[Order]:
        state, killed = member.state, member.killed is not None
        member.state, member.lost = State.GONE, True
        orders: list[Order] = []
        told = self.phase in _LAST and state is not State.ACTIVE  # it has left, and was dismissed
        expected = killed or told or state in (State.ENDING, State.RETURNED)
        if event.cause is Cause.MEMORY or not expected:
            orders = self._trouble(member, event.cause, event.text, now, event.details)
        elif event.details and self.troubles:
            self.troubles = [completed(trouble, event) for trouble in self.troubles]
        orders += self._finish_if_done(now)
        self._end_if_all_gone()
        return orders + self._form_if_ready(now, settled=False)

    # --- trouble -----------------------------------------------------------------------------------------------------

    def _trouble(self, member: Member, cause: Cause, text: str, now: float, details: dict[str, Any]) -> list[Order]:
        """Take in that a member is lost or has failed, and go on without it where that is possible."""
        if self.ended:
            return []
        trouble = self._trouble_of(member, cause, text, now, details)
        if self.phase in _LAST:
            self.troubles.append(trouble)
            return self._fail(trouble, now) if self.phase is Phase.STOPPING else []
        if cause not in _LOSSES or not (self._sizes.survive or not self.formation):
            return self._fail(trouble, now)
        self.troubles.append(trouble)
        if cause is not Cause.START:  # nothing is lost with one that no worker has begun to watch: another is sent for
            self.losses.append(trouble)
        early = [each for each in self.losses if each.formation == 0 and each.cause is Cause.DIED]
        if not self.formation and len(early) > BLAMES:
            return self._fail(trouble, now)
        self._recruit_at = min(self._recruit_at, now)
        if self.phase is Phase.RUNNING and member.rank is not None and not self._leader_returned():
            return self._break(f"rank {member.rank}: {text}", now)
        return []

    def _trouble_of(self, member: Member, cause: Cause, text: str, now: float, details: dict[str, Any]) -> Trouble:
        return Trouble(member.name, cause, text, now, member.worker, member.number, self.formation, details)

    def _fail(self, trouble: Trouble, now: float) -> list[Order]:
        if trouble not in self.troubles:
            self.troubles.append(trouble)
        self.phase = Phase.FAILING
        reason = f"rank {trouble.rank}: {trouble.text}" if trouble.rank >= 0 else trouble.text
        return self._dismiss(reason, now, 0.0 if trouble.cause is Cause.START else LEAVE_S)

    def _dismiss(self, reason: str, now: float, leave_s: float) -> list[Order]:
        orders: list[Order] = []
        for member in self._there():
            member.kill_at = now + leave_s if member.kill_at is None else min(member.kill_at, now + leave_s)
            orders.append(Tell(member.number, "dismiss", reason.partition("\n")[0]))
        self._end_if_all_gone()
        return orders

    def _stop(self, event: StopAsked, now: float) -> list[Order]:
        if self.ended or (self.stop_asked and not event.now):
            return []
        self.stop_asked = True
        begun = self.phase is Phase.RUNNING
        if self.phase not in _LAST:
            self.phase = Phase.STOPPING
        orders: list[Order] = []
        for member in self._there():
            saves = begun and member.state is State.ACTIVE and not event.now
            limit = now + self._deadlines.grace_s if saves else now
            member.kill_at = limit if member.kill_at is None else min(limit, member.kill_at)
            orders.append(Tell(member.number, "stop" if saves else "dismiss"))
        self._end_if_all_gone()
        return orders

    # --- silence, and the end ----------------------------------------------------------------------------------------

    def _judge_silence(self, now: float) -> list[Order]:
        limit = self._deadlines.silence_s
        orders: list[Order] = []
        for member in self._there():
            if member.lost or not member.watched or (member.kill_at is not None and self.phase in _LAST):
                continue
            text = ""
            if now - member.heard > limit:
                text = f"its worker's watcher has been silent for {now - member.heard:.1f} s"
            elif member.stopped_since is not None and now - member.stopped_since > limit:
                text = f"its process has been stopped for {now - member.stopped_since:.1f} s"
            if text:
                member.lost = True
                orders += self._trouble(member, Cause.SILENT, text, now, {})
                member.kill_at = now
        return orders

    def _judge_idleness(self, now: float) -> list[Order]:
        newest = max((member.progress for member in self._formed()), default=now)
        if now - newest <= self._deadlines.idle_s:
            return []
        text = f"no rank has computed or reported anything for {self._deadlines.idle_s:g} s"
        return self._fail(Trouble(-1, Cause.IDLE, text, now, formation=self.formation), now)

    def _kill(self, member: Member, now: float) -> list[Order]:
        """Order a kill once, and wait for its report only so long."""
        if member.killed is None:
            member.killed, member.lost = now, True
            if self.phase is Phase.DISBANDING and not any(each.member == member.number for each in self.troubles):
                text = f"it did not leave its formation within {DISBAND_S:g} s"
                trouble = self._trouble_of(member, Cause.SILENT, text, now, {})
                self.troubles.append(trouble)
                self.losses.append(trouble)
            return [Kill(member.number)]
        if now - member.killed > (DEAF_S if now - member.heard > DEAF_S else KILL_S):
            member.state = State.GONE
            orders = self._finish_if_done(now)
            self._end_if_all_gone()
            return orders
        return []

    def _leader_returned(self) -> bool:
        return any(member.rank == 0 and member.result is not None for member in self._members.values())

    def _finish_if_done(self, now: float) -> list[Order]:
        if self.phase not in (Phase.RUNNING, Phase.STOPPING) or self.results is None:
            return []
        if any(member.result is None for member in self._formed()):
            return []
        self.phase = Phase.FINISHING
        return self._dismiss("the work is done", now, LEAVE_S)

    def _end_if_all_gone(self) -> None:
        if self.phase in _LAST and not self._there():
            self.phase = Phase.ENDED

    def _there(self) -> list[Member]:
        return [member for member in self._members.values() if not member.gone]

    def _formed(self, *, gone: bool = False) -> list[Member]:
        """Return the current formation's members, by rank; also those that are gone, if asked for."""
        found = [member for member in self._members.values() if member.rank is not None and (gone or not member.gone)]
        return sorted(found, key=lambda member: member.rank or 0)
