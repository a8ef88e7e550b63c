"""Resumable state on an object store: complete or absent, the newest first to be found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipelines.storage import ObjectStore


@dataclass(frozen=True)
class Checkpoint:
    """A committed state: the step it was taken at, and its bytes (verified against their digest)."""

    step: int
    payload: bytes


def save_checkpoint(store: ObjectStore, prefix: str, step: int, payload: bytes, *, keep: int = 3) -> None:
    """Save `payload` under ``prefix/``, commit marker last, then remove all but the newest `keep`."""
    raise NotImplementedError


def latest_checkpoint(store: ObjectStore, prefix: str) -> Checkpoint | None:
    """Return the newest committed checkpoint that is intact, or None; a torn one is passed over with a warning."""
    raise NotImplementedError
