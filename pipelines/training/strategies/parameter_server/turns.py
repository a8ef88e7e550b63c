"""Who waits for a ticket, a turn or a pause, and for whom? The clock's queue, without input or output."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pipelines.training.strategies.clock import Clock
from pipelines.training.strategies.parameter_server.frames import TURN, Kind


@dataclass(frozen=True)
class Question:
    """What a client has asked: OPEN or TURN with the ticket's number, or PAUSE."""

    client: int
    kind: Kind
    number: int
    since: float


class Turns:
    """Answers questions in the order in which they can be answered.

    While it is paused, or `held` for a change of servers, no update gets its turn.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock, self.held = clock, False
        self._paused_by: int | None = None
        self._questions: list[Question] = []

    def ask(self, question: Question) -> None:
        """Take in a question.

        Raises
        ------
        KeyError
            A turn for a ticket that is not open.
        """
        ticket = (question.client, question.number)
        if question.kind == Kind.TURN and not self.clock.is_open(ticket):
            raise KeyError(ticket)
        self._questions.append(question)

    def resume(self, client: int) -> None:
        """End the pause of a client."""
        if self._paused_by == client:
            self._paused_by = None

    def leave(self, client: int) -> None:
        """Forget a client, its questions and its pause."""
        self._questions = [each for each in self._questions if each.client != client]
        self.resume(client)
        self.clock.leave(client)

    def settle(self) -> Iterator[tuple[Question, bytes]]:
        """Yield every question that can be answered now, with its answer; each answer may allow another."""
        again = True
        while again:
            again = False
            for question in list(self._questions):
                answer = self._decide(question)
                if answer is not None:
                    self._questions.remove(question)
                    again = True
                    yield question, answer

    def give_up(self, now: float, limit_s: float) -> Iterator[tuple[Question, str]]:
        """Yield every question that has waited for longer than `limit_s`, with whom it waited for."""
        for question in [each for each in self._questions if now > each.since + limit_s]:
            self._questions.remove(question)
            yield question, f"waited {limit_s:g} s for the others{self._explain()}"

    def _explain(self) -> str:
        slowest = self.clock.slowest
        if self._paused_by is not None:
            return f": worker {self._paused_by} has paused all updates"
        return f": worker {slowest[0]} does not finish its batch" if slowest else ""

    def _decide(self, question: Question) -> bytes | None:
        ticket = (question.client, question.number)
        if question.kind == Kind.OPEN:
            return b"" if self.clock.open(ticket) else None
        if question.kind == Kind.TURN:
            if self._paused_by is not None or self.held:
                return None
            turn = self.clock.turn(ticket)
            return None if turn is None else TURN.pack(turn)
        if self._paused_by is None:
            self._paused_by = question.client
        return b"" if self._paused_by == question.client and self.clock.quiet else None
