"""Faults built into ranks, for tests of what survives them: which rank does what to itself, and in which phase."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from pipelines.training.estimators import linear

PROGRAMS = Path(__file__).parents[1] / "unit" / "training"
"""Where `chaos_programs` lies, which has the phases."""
PHASES = ("start", "load", "step", "collective", "share", "checkpoint", "close")
"""Those that every strategy with a leader comes by."""


class Injector:
    """Builds faults into the ranks' program."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder, self._patch = folder, monkeypatch
        monkeypatch.setattr(linear, "PROGRAM", "chaos_programs:program")
        monkeypatch.setenv("MUTIRAO_CODE_PATH", str(PROGRAMS))

    def plan(self, faults: Sequence[tuple[str, int, int, str]]) -> None:
        """Let rank r do something at the n-th time that it comes by a phase: (phase, n, r, what)."""
        self.flags = [self._folder / f"struck-{number}" for number in range(len(faults))]
        named = [
            {"phase": phase, "nth": nth, "rank": rank, "what": what, "flag": str(flag)}
            for (phase, nth, rank, what), flag in zip(faults, self.flags, strict=True)
        ]
        self._patch.setenv("MUTIRAO_TEST_FAULTS", json.dumps(named))

    @property
    def struck(self) -> int:
        """How many of them have happened."""
        return sum(flag.exists() for flag in self.flags)
