"""Every command block of the README does what it says, in order, in the checkout."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def blocks() -> list[tuple[str, str]]:
    """The README's fenced blocks: language and text."""
    return re.findall(r"^```(sh|python|yaml)\n(.*?)^```$", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)


def commands(text: str) -> list[str]:
    """The commands of a shell block, without the activation of the environment that the tests run in."""
    lines = [line.split("  #")[0].strip() for line in text.splitlines()]
    return [line for line in lines if line and not line.startswith(("#", ". .venv/bin/activate"))]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_block_runs_in_order(tmp_path: Path) -> None:
    environment = os.environ | {
        "HOME": str(tmp_path),
        "MUTIRAO_RUNS": str(tmp_path / "runs"),
        "MUTIRAO_REGISTRY": str(tmp_path / "registry"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    found = blocks()
    assert {language for language, _ in found} == {"sh", "python"}
    for language, text in found:
        wanted = (
            [["bash", "-ec", line] for line in commands(text)] if language == "sh" else [[sys.executable, "-c", text]]
        )
        for command in wanted:
            line = command[-1].replace(" predictions ", f" {tmp_path}/predictions ")
            if line.startswith("make "):
                line += f" VENV={Path(sys.executable).parents[1]}"
            done = subprocess.run(
                [*command[:-1], line],
                cwd=ROOT,
                env=environment,
                capture_output=True,
                text=True,
                timeout=600,
                check=False,
            )
            assert done.returncode == 0, f"$ {line}\n{done.stdout}\n{done.stderr}"
            print(f"$ {line}\n{done.stdout[-1500:]}")
