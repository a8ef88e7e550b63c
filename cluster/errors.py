"""What can go wrong in ``cluster``, grouped by what the caller does next.

The shape is that of ``pipelines.errors`` (this package can be used without that one): fields in ``args``, the text in
``__str__``, so that an error survives the trip from a worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class ClusterError(Exception):
    """Base of all errors of ``cluster``.

    Parameters
    ----------
    what : str
        What failed and why, as a sentence without its full stop.
    on : str, optional
        The thing it failed on: a key of the spec, a folder, a worker's address.
    expected, found : str, optional
        What was needed and what was there.
    remedy : str, optional
        What the reader can do about it.
    """

    exit_code = 5

    def __init__(self, what: str, *, on: str = "", expected: str = "", found: str = "", remedy: str = "") -> None:
        super().__init__(what, on, expected, found, remedy)
        self.what, self.on, self.expected, self.found, self.remedy = what, on, expected, found, remedy

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args)

    def __str__(self) -> str:
        head = f"{self.on}: {self.what}" if self.on else self.what
        pair = [f"expected {self.expected}"] * bool(self.expected) + [f"found {self.found}"] * bool(self.found)
        return "; ".join([head, *pair]) + (f". {self.remedy}" if self.remedy else "")


def _rebuild(cls: type[ClusterError], args: tuple[str, ...]) -> ClusterError:
    error = cls.__new__(cls)
    ClusterError.__init__(error, args[0], on=args[1], expected=args[2], found=args[3], remedy=args[4])
    return error


# --- change the spec or the command (exit code 2) --------------------------------------------------------------------


class ClusterUsageError(ClusterError):
    """An argument that can't be used as given."""

    exit_code = 2


class CodeError(ClusterUsageError):
    """The user's own code can't be packed: an entry that is not there, too large, or twice under one name."""


@dataclass(frozen=True)
class SpecFault:
    """One fault of a cluster spec: where it is, what is wrong and how to mend it."""

    path: str
    message: str
    fix: str = ""

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" + (f". {self.fix}" if self.fix else "")


class ClusterSpecError(ClusterUsageError):
    """A cluster spec that can't be used as written: all its faults at once."""

    def __init__(self, faults: Sequence[SpecFault], *, on: str = "cluster") -> None:
        self.faults = tuple(faults)
        count = "1 fault" if len(self.faults) == 1 else f"{len(self.faults)} faults"
        super().__init__(count + "".join(f"\n  {fault}" for fault in self.faults), on=on)

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild_spec_error, (self.faults, self.on)


def _rebuild_spec_error(faults: tuple[SpecFault, ...], on: str) -> ClusterSpecError:
    return ClusterSpecError(faults, on=on)


# --- mend the machine, then start again (exit code 3) ----------------------------------------------------------------


class PreflightError(ClusterError):
    """What has to be there before a start is not there; nothing was started."""

    exit_code = 3


# --- look at the infrastructure, perhaps try again (exit code 5) -----------------------------------------------------


class ClusterDeadlineError(ClusterError):
    """A wait reached its limit; the message names the first thing that was missing."""


class ClusterLostError(ClusterError):
    """The cluster is not there any more: closed, stopped for idleness, or its scheduler died."""


class JobError(ClusterError):
    """A job that could not be started, found or stopped."""


# --- resume (exit code 6) --------------------------------------------------------------------------------------------


class ClusterPreemptedError(ClusterError):
    """The machines were taken away by whoever lent them."""

    exit_code = 6
