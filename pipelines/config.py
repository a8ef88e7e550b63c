"""The base of everything that users write in a spec, and its unit-carrying types."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict


class Config(BaseModel):
    """A frozen part of a spec that forbids unknown keys. Each room defines its own beside what it builds."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _bytes(value: object) -> object:
    if isinstance(value, str):
        from dask.utils import parse_bytes  # ranks, which import this too, have no use for Dask

        try:
            _check_number(value)
            return parse_bytes(value)
        except ValueError:
            raise ValueError(f"not an amount of memory: {value!r}; write it like '512 MiB' or '2 GiB'") from None
    return value


def _seconds(value: object) -> object:
    if isinstance(value, str):
        from dask.utils import parse_timedelta

        try:
            _check_number(value)
            return float(parse_timedelta(value.replace("min", "m") if value.endswith("min") else value, default="s"))
        except (KeyError, ValueError):
            raise ValueError(f"not a duration: {value!r}; write it like '60 s' or '5 minutes'") from None
    return value


def _check_number(text: str) -> None:
    """Dask reads a bare unit as one of it, and fails with an IndexError on an empty text."""
    if not text.strip()[:1].isdigit():
        raise ValueError(text)


Bytes = Annotated[int, BeforeValidator(_bytes)]
"""An amount of memory in bytes; text like ``"2 GiB"`` is understood."""

Seconds = Annotated[float, BeforeValidator(_seconds)]
"""A duration in seconds; text like ``"5 minutes"`` is understood."""
