"""Which one schema fits all files?"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Found:
    """What some of the files say of a column: its type there (empty: the column is missing), how many, one of them."""

    type: str
    files: int
    example: str


@dataclass(frozen=True)
class Drift:
    """A difference between files that was bridged.

    Attributes
    ----------
    column : str
    kind : {"missing", "type", "shadowed"}
        Missing in some files (null there); of several types (widened to one); in the files although the folders' names
        say it too (the folder's value is used).
    type : str
        The unified type.
    found : tuple of Found
    """

    column: str
    kind: str
    type: str
    found: tuple[Found, ...]
