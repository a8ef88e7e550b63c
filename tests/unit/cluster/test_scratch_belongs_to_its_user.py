"""A scratch folder in a shared temporary directory is used only when it is this user's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cluster import PreflightError
from cluster.doctor import check_scratch
from cluster.scratch import ScratchFolder


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "mutirao"
    folder.mkdir()
    mine = os.getuid()
    if mine == 0:
        os.chown(folder, 12345, 12345)
    else:
        monkeypatch.setattr(os, "getuid", lambda: mine + 1)
    with pytest.raises(PreflightError, match="belongs to another user"):
        ScratchFolder(folder)
    finding = check_scratch(folder)
    assert not finding.ok
    assert "another user" in finding.evidence


def test_a_new_folder_is_closed_to_others(tmp_path: Path) -> None:
    scratch = ScratchFolder(tmp_path / "new")
    assert (tmp_path / "new").stat().st_mode & 0o077 == 0
    assert scratch.path.stat().st_mode & 0o077 == 0
    scratch.close()
    scratch.close()
