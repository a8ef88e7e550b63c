"""What several tests of faults need."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import dask
import pytest

from tests.faults.injecting import Injector


@pytest.fixture
def injector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Injector:
    return Injector(tmp_path, monkeypatch)


@pytest.fixture(scope="session", autouse=True)
def lasting_workers() -> Iterator[None]:
    """Dask ends a nanny whose worker is away 15 s after a loss; tests that lose one after the other need theirs."""
    with dask.config.set({"distributed.deploy.lost-worker-timeout": "1 day"}):
        yield
