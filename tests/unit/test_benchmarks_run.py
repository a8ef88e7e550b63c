"""Every benchmark runs, on small data: what it finds is not looked at, but that it finds something."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks.__main__ import NAMES

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_it_fills_its_rows(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.benchmarks", "--quick", "--one", name, "--workdir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    rows = json.loads((tmp_path / f"{name}.json").read_text())
    assert rows
    for row in rows:
        assert {"what", "ours", "peer", "ratio", "target", "runs", "note"} <= set(row)
        assert row["ours"]
