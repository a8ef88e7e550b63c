"""Which commit is the user's working tree at?"""

from __future__ import annotations

import subprocess

from pipelines.registry import GitState

_LIMIT_S = 10


def git_state() -> GitState | None:
    """Describe the working tree that this process stands in; None where there is none, or no git."""

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(["git", *arguments], capture_output=True, text=True, timeout=_LIMIT_S, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit, changes = git("rev-parse", "HEAD"), git("status", "--porcelain")
    return None if commit is None else GitState(commit, bool(changes))
