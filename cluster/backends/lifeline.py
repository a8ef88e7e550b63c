"""Given to every local worker as its first plugin: it dies with its owner, ignores Ctrl-C, and logs into a file.

Dask itself ends a worker when a pipe to its parent closes. That takes a Python thread of the worker, which does not
come to run while native code holds the interpreter's lock or the process is stopped; the kernel's parent-death signal
needs nothing of the worker.
"""

from __future__ import annotations

import ctypes
import logging
import multiprocessing
import os
import platform
import signal
from pathlib import Path
from typing import Any

from distributed import WorkerPlugin

DASK_LOGGERS = ("distributed", "distributed.client", "distributed.gc", "bokeh", "tornado", "tornado.application")
"""The loggers that Dask gives a handler to the terminal."""

_PR_SET_PDEATHSIG = 1


class Lifeline(WorkerPlugin):
    """Set up by Dask in a worker before it registers with its scheduler."""

    def __init__(self, log_folder: str) -> None:
        self.log_folder = log_folder

    def setup(self, worker: Any) -> None:
        die_with_parent()
        # The terminal sends Ctrl-C to every process in it; the owner decides what it means.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        handler = FileLog(Path(self.log_folder) / f"worker-{worker.name}.log")
        for name in ("", *DASK_LOGGERS):
            redirect(logging.getLogger(name), handler)


class FileLog(logging.Handler):
    """Appends lines to a file. Not a StreamHandler: of those Dask changes the level at will."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = path.open("a", buffering=1)
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._file.write(self.format(record) + "\n")
        except (OSError, ValueError):
            self.handleError(record)

    def close(self) -> None:
        self._file.close()
        super().close()


def redirect(target: logging.Logger, handler: logging.Handler) -> list[logging.Handler]:
    """Send a logger's records to `handler` alone; gives what they went to before."""
    before = target.handlers[:]
    for old in before:
        target.removeHandler(old)
    target.addHandler(handler)
    return before


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies (Linux)."""
    if platform.system() != "Linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    parent = multiprocessing.parent_process()
    if parent is not None and os.getppid() != parent.pid:  # it died before the call
        os._exit(1)
