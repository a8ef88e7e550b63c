"""Folders on local disk that belong to one running cluster, and are cleared away when it is gone.

A cluster holds a lock on its folder, which the system lets go when the process dies, however it dies: a folder whose
lock can be taken belongs to nobody. What the workers wrote is removed at the next start here, logs after a week.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import time
from pathlib import Path
from tempfile import mkdtemp

from cluster.errors import PreflightError

logger = logging.getLogger(__name__)

KEEP_LOGS_S = 7 * 24 * 3600.0
_LOCK = "owner.lock"


class ScratchFolder:
    """A new folder below `parent`, locked by this process until `close`."""

    def __init__(self, parent: Path, *, now: float | None = None) -> None:
        try:
            make_private(parent)
            clear_abandoned(parent, now=time.time() if now is None else now)
            self.path = Path(mkdtemp(prefix="cluster-", dir=parent))
            self.workers, self.logs = self.path / "workers", self.path / "logs"
            self.workers.mkdir()
            self.logs.mkdir()
            # Not inherited by children (PEP 446): the lock ends with this process, not with its last child.
            self._lock = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise PreflightError(
                f"no scratch folder can be made ({error.strerror})",
                on=str(parent),
                remedy="Set scratch to a local disk.",
            ) from error
        self._open = True

    def close(self, *, keep_logs: bool = False) -> None:
        """Remove the folder, or all of it but the logs. May be called twice."""
        if not self._open:
            return
        self._open = False
        shutil.rmtree(self.workers if keep_logs else self.path, ignore_errors=True)
        os.close(self._lock)


def make_private(folder: Path) -> None:
    """Make a folder that only this user can enter.

    Raises
    ------
    PreflightError
        It is there and belongs to somebody else, who could put code in our way. In a shared temporary directory anybody
        can make a folder of any name.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    owner = folder.stat().st_uid
    if owner not in (os.getuid(), 0):
        raise PreflightError(
            "the scratch folder belongs to another user", on=str(folder), expected=f"uid {os.getuid()}",
            found=f"uid {owner}", remedy="Set scratch to a folder of your own.",
        )  # fmt: skip


def clear_abandoned(parent: Path, *, now: float) -> None:
    """Remove what clusters that died left below `parent`: their workers' files at once, their logs after a week."""
    for folder in parent.glob("cluster-*"):
        if not _is_abandoned(folder):
            continue
        old = now - folder.stat().st_mtime > KEEP_LOGS_S
        if old or (folder / "workers").exists():
            logger.info("clear %s: its cluster is gone", folder)
        shutil.rmtree(folder if old else folder / "workers", ignore_errors=True)


def _is_abandoned(folder: Path) -> bool:
    try:
        lock = os.open(folder / _LOCK, os.O_RDWR)
    except OSError:  # just being made, or somebody else's
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(lock)
