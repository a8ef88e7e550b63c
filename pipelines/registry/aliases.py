"""What an alias means now, what it meant before, and how it moves: a log of entries, of which the newest counts."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pipelines.errors import AliasMovedError, NotFoundError, UsageError
from pipelines.registry.log import append, newest, records
from pipelines.registry.records import Action, AliasEntry, decode, encode
from pipelines.storage import ObjectStore


@dataclass(frozen=True)
class Move:
    """What someone wants with an alias: to set it (promote, rollback), or to record that it stays (refuse).

    Attributes
    ----------
    version : int
        The version to set; for a refusal the one refused.
    expected : int, optional
        What the alias must mean now, where `guarded`.
    """

    name: str
    alias: str
    action: Action
    version: int
    who: str
    when: datetime
    why: str = ""
    guarded: bool = False
    expected: int | None = None
    evidence: dict[str, Any] = field(default_factory=dict)


def aliases_folder(name: str) -> str:
    """Return the folder of a model's aliases."""
    return f"models/{name}/aliases"


def current_entry(store: ObjectStore, name: str, alias: str) -> AliasEntry | None:
    """Read the newest entry of an alias's log."""
    found = newest(store, f"{aliases_folder(name)}/{alias}")
    return None if found is None else decode(AliasEntry, found[1], _on(store, name, alias))


def entries(store: ObjectStore, name: str, alias: str) -> tuple[AliasEntry, ...]:
    """Read an alias's whole log, newest first."""
    found = records(store, f"{aliases_folder(name)}/{alias}")
    return tuple(decode(AliasEntry, data, _on(store, name, alias)) for _, data in found)


def move(store: ObjectStore, wish: Move) -> AliasEntry:
    """Append an entry. Setting an alias to what it already means appends nothing and returns the newest entry.

    Raises
    ------
    AliasMovedError
        The move is guarded, and the alias means something else than expected.
    """

    def build(number: int, previous: bytes | None) -> bytes | None:
        before = decode(AliasEntry, previous, _on(store, wish.name, wish.alias)).version if previous else None
        if wish.guarded and before != wish.expected:
            raise AliasMovedError(
                "the alias has moved in the meantime",
                on=f"{wish.name}@{wish.alias}",
                expected=f"version {wish.expected or 'none'}",
                found=f"version {before or 'none'}",
                remedy="Look at its history and decide again.",
            )
        if wish.action != "refuse" and before == wish.version:
            return None
        return encode(_entry(wish, number, before))

    appended = append(store, f"{aliases_folder(wish.name)}/{wish.alias}", build)
    assert appended is not None, "a log that is left as it is has a newest record"
    return decode(AliasEntry, appended[1], _on(store, wish.name, wish.alias))


def rollback_target(log: Sequence[AliasEntry], on: str, to: int | None = None) -> int:
    """Decide which version a rollback sets: the one promoted before, or an earlier one that the alias has meant.

    Rollbacks undo promotions one after the other: after promotions of 1, 2 and 3 the first gives 2, the second 1.

    Parameters
    ----------
    log : sequence of AliasEntry
        Newest first.
    on : str
        The alias, for messages.
    to : int, optional

    Raises
    ------
    UsageError
        There is nothing to go back to, or the alias means `to` already.
    NotFoundError
        The alias has never meant `to`.
    """
    held = [entry.version for entry in log if entry.version is not None]
    if to is None:
        stack = _promoted(log)
        if len(stack) < 2:
            raise UsageError("there is nothing to roll back to", on=on, remedy="Promote another version.")
        return stack[-2]
    if to not in held:
        raise NotFoundError(
            f"the alias has never meant version {to}",
            on=on,
            expected=f"one of {', '.join(map(str, sorted(set(held))))}" if held else "",
            remedy="To set it for the first time, promote it.",
        )
    if held[0] == to:
        raise UsageError(f"the alias means version {to} already", on=on)
    return to


def _promoted(log: Sequence[AliasEntry]) -> list[int]:
    """The versions that rollbacks go through: promotions push, rollbacks pop down to what they set."""
    stack: list[int] = []
    for entry in reversed(log):
        if entry.action == "refuse" or entry.version is None:
            continue
        if entry.action == "rollback" and entry.version in stack:
            del stack[stack.index(entry.version) + 1 :]
        elif not stack or stack[-1] != entry.version:
            stack.append(entry.version)
    return stack


def _entry(wish: Move, number: int, before: int | None) -> AliasEntry:
    refused = wish.action == "refuse"
    return AliasEntry(
        name=wish.name,
        alias=wish.alias,
        number=number,
        action=wish.action,
        version=before if refused else wish.version,
        previous=before,
        who=wish.who,
        when=wish.when,
        why=wish.why,
        candidate=wish.version if refused else None,
        evidence=wish.evidence,
        write_id=uuid.uuid4().hex,
    )


def _on(store: ObjectStore, name: str, alias: str) -> str:
    return f"{store.url}/{aliases_folder(name)}/{alias}"
