"""What several tests of faults need."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.injecting import Injector


@pytest.fixture
def injector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Injector:
    return Injector(tmp_path, monkeypatch)
