"""What happens to a training on its way that whoever owns it should know, beside its progress."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

What: TypeAlias = Literal["waits", "formation", "loss", "resumption", "notice"]


@dataclass(frozen=True)
class Happening:
    """One thing that happened.

    Attributes
    ----------
    what : str
        ``waits`` (in line for workers), ``formation`` (ranks have met), ``loss`` (of a rank; the training goes on),
        ``resumption`` (a formation begins its work, from what is left of the one before, or of the run) or ``notice``.
    text : str
        For people, one sentence without its full stop.
    data : dict
        The same for machines, JSON-able.
    """

    what: What
    text: str
    data: dict[str, Any] = field(default_factory=dict)


Happened: TypeAlias = Callable[[Happening], None]


def ignore(happening: Happening) -> None:
    """Nobody wants to know."""


def ranks_told(count: int) -> str:
    """A number of ranks in words."""
    return f"{count} rank" if count == 1 else f"{count} ranks"


def steps_told(count: int) -> str:
    """A number of steps in words."""
    return f"{count:,} step" if count == 1 else f"{count:,} steps"
