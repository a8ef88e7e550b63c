"""Where runs and models live: spec > environment variable > ./mutirao.toml > ~/.mutirao."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pipelines.errors import Fault, SpecError
from pipelines.storage import absolute_url

SETTINGS_FILE = "mutirao.toml"


@dataclass(frozen=True)
class Places:
    """The stores of a pipeline, as URLs or absolute paths."""

    runs: str
    registry: str


def find_places(
    runs: str | None = None,
    registry: str | None = None,
    *,
    environment: Mapping[str, str] = os.environ,
    folder: Path | None = None,
) -> Places:
    """Decide the two places from what a spec says, ``MUTIRAO_RUNS`` and ``MUTIRAO_REGISTRY``, and ``mutirao.toml``.

    Raises
    ------
    SpecError
        A ``mutirao.toml`` that is no TOML, or has other keys than ``runs`` and ``registry``.
    """
    written = _read(folder or Path.cwd())
    home = Path(environment.get("HOME", "~")).expanduser() / ".mutirao"

    def place(key: str, spec: str | None) -> str:
        chosen = spec or environment.get(f"MUTIRAO_{key.upper()}") or written.get(key) or str(home / key)
        return absolute_url(os.path.expanduser(chosen))

    return Places(place("runs", runs), place("registry", registry))


def _read(folder: Path) -> dict[str, str]:
    path = folder / SETTINGS_FILE
    if not path.is_file():
        return {}
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SpecError([Fault("the file", f"not TOML: {error}", "Mend the syntax")], on=str(path)) from None
    faults = [
        Fault(key, "unknown key" if key not in ("runs", "registry") else "not a text", "Known keys: runs, registry")
        for key, value in values.items()
        if key not in ("runs", "registry") or not isinstance(value, str)
    ]
    if faults:
        raise SpecError(faults, on=str(path))
    return values
