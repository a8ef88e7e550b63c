"""What can go wrong in pipelines, grouped by what the caller does next.

Every error carries its fields in ``args`` and builds its text in ``__str__``, so that it survives the trip from a
worker. The text says what failed, on which thing, expected against found, and what to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches


class MutiraoError(Exception):
    """Base of all errors of ``pipelines``.

    Parameters
    ----------
    what : str
        What failed and why, as a sentence without its full stop.
    on : str, optional
        The thing it failed on: a path with its URL scheme, a column, a key of the spec.
    expected, found : str, optional
        What was needed and what was there.
    remedy : str, optional
        What the reader can do about it.
    """

    exit_code = 5

    def __init__(self, what: str, *, on: str = "", expected: str = "", found: str = "", remedy: str = "") -> None:
        super().__init__(what, on, expected, found, remedy)
        what, found = what.removesuffix("."), found.removesuffix(".")
        self.what, self.on, self.expected, self.found, self.remedy = what, on, expected, found, remedy

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args)

    def __str__(self) -> str:
        head = f"{self.on}: {self.what}" if self.on else self.what
        pair = [f"expected {self.expected}"] * bool(self.expected) + [f"found {self.found}"] * bool(self.found)
        return "; ".join([head, *pair]) + (f". {self.remedy}" if self.remedy else "")


def _rebuild(cls: type[MutiraoError], args: tuple[str, ...]) -> MutiraoError:
    error = cls.__new__(cls)
    MutiraoError.__init__(error, args[0], on=args[1], expected=args[2], found=args[3], remedy=args[4])
    return error


# --- change the spec or the command (exit code 2) --------------------------------------------------------------------


@dataclass(frozen=True)
class Fault:
    """One fault of a spec: where it is, what is wrong and how to mend it."""

    path: str
    message: str
    fix: str = ""

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" + (f". {self.fix}" if self.fix else "")


class SpecError(MutiraoError):
    """A spec that can't be run as written: all its faults at once, each with its path and fix."""

    exit_code = 2

    def __init__(self, faults: Sequence[Fault], *, on: str = "spec") -> None:
        self.faults = tuple(faults)
        count = "1 fault" if len(self.faults) == 1 else f"{len(self.faults)} faults"
        super().__init__(count + "".join(f"\n  {fault}" for fault in self.faults), on=on)

    def __reduce__(self) -> tuple[object, ...]:
        return SpecError._again, (self.faults, self.on)

    @staticmethod
    def _again(faults: tuple[Fault, ...], on: str) -> SpecError:
        return SpecError(faults, on=on)


class UsageError(MutiraoError):
    """An argument that can't be used as given."""

    exit_code = 2


class NotFoundError(UsageError):
    """A named thing (version, alias, run, column) that does not exist; the nearest names are in the remedy."""

    @classmethod
    def among(cls, kind: str, name: str, known: Sequence[str], *, on: str = "") -> NotFoundError:
        """Build the error for `name`, suggesting the nearest of `known`."""
        near = get_close_matches(name, known, n=3, cutoff=0.5) or sorted(known)[:8]
        remedy = f"Did you mean {', '.join(near)}?" if near else f"There is no {kind} yet."
        return cls(f"there is no {kind} {name!r}", on=on, remedy=remedy)


# --- mend the data or the user's own code (exit code 4) --------------------------------------------------------------


class DataError(MutiraoError):
    """Data that can't be used: a bad file, a type that can't be reconciled, a label that can't be learned."""

    exit_code = 4


class DatasetChangedError(DataError):
    """The dataset is not the one that was planned: plan again."""


class UserCodeError(MutiraoError):
    """The user's own function or estimator raised."""

    exit_code = 4


class TrainingError(MutiraoError):
    """Training can't go on for a reason that lies in data or parameters (diverged, not finite, no rows)."""

    exit_code = 4


# --- look at the infrastructure, perhaps try again (exit code 5) ----------------------------------------------------


class StorageError(MutiraoError):
    """A store that can't be reached, written or trusted."""


class UnreachableStoreError(StorageError):
    """A store that could not be reached, broke off or did not answer in time: what was asked may or may not have
    happened, and is worth another try."""


class ObjectExistsError(StorageError):
    """A create-only put found the key taken: somebody else won the race."""


class ObjectNotFoundError(StorageError):
    """The key is not in the store."""


class ObjectChangedError(StorageError):
    """The object is not the one that was asked for: it was written again since."""


class CorruptArtifactError(StorageError):
    """Bytes that do not have the digest that was recorded for them."""


class AliasMovedError(MutiraoError):
    """Somebody else moved the alias in the meantime: decide again."""


class GangError(MutiraoError):
    """Ranks that could not be started, or were lost, or did not answer in time."""


class DeadlineError(MutiraoError):
    """A wait reached its limit; the message names the first thing that was missing."""


# --- resume (6), a gate (7), the user's own interrupt (130) ----------------------------------------------------------


class PreemptedError(MutiraoError):
    """The machines were taken away; the run resumes from its last checkpoint."""

    exit_code = 6


class GateNotMetError(MutiraoError):
    """The model was trained but does not meet a requirement of the spec, and is not published."""

    exit_code = 7


class InterruptedRunError(MutiraoError):
    """The user stopped the run; it resumes from its last checkpoint."""

    exit_code = 130


class RunFailedError(MutiraoError):
    """A run that was waited for did not succeed; its message is the cause's."""

    def with_exit_code(self, code: int) -> RunFailedError:
        """Take over the exit code of the cause."""
        self.exit_code = code
        return self
