"""How models, aliases and versions are named, and how a reference to one is written."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pipelines.errors import UsageError

CHAMPION = "champion"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True)
class Ref:
    """A reference to a version of a model: by its number, or by an alias."""

    name: str
    version: int | None = None
    alias: str | None = None

    def __str__(self) -> str:
        return f"{self.name}/{self.version}" if self.alias is None else f"{self.name}@{self.alias}"


def is_name(text: str) -> bool:
    """Whether a text can name a model or an alias: a number alone would be taken for a version."""
    return bool(_NAME.fullmatch(text)) and not text.isdigit()


def check_name(kind: str, text: str) -> str:
    """Return a name that can be used.

    Raises
    ------
    UsageError
    """
    if not is_name(text):
        expected = "letters, digits, '.', '_' and '-', at most 100, not digits only"
        raise UsageError(f"not a name for a {kind}", on=repr(text), expected=expected)
    return text


def parse_ref(text: str) -> Ref:
    """Parse ``models:/name@alias``, ``models:/name/7``, ``name@alias``, ``name/7``, or ``name`` (its champion).

    A name alone never means the newest version: what nobody promoted is served to nobody who did not ask for it.

    Raises
    ------
    UsageError
        The text is none of these.
    """
    body = text.removeprefix("models:/")
    name, at, alias = body.partition("@")
    if at:
        return Ref(check_name("model", name), alias=check_name("alias", alias))
    name, slash, version = body.partition("/")
    if not slash:
        return Ref(check_name("model", name), alias=CHAMPION)
    if not re.fullmatch(r"[1-9][0-9]{0,8}", version):
        raise UsageError(
            "not a reference to a model", on=repr(text), expected="name, name@alias, name/7 or models:/name/7"
        )
    return Ref(check_name("model", name), version=int(version))
