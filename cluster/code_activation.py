"""Packed code made importable in this process and its children."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from cluster.code_archive import CodeArchive

CODE_PATH = "MUTIRAO_CODE_PATH"
"""Environment variable with the folder of the user's code; child processes find it there (and on PYTHONPATH)."""


class Activation:
    """Code that can be imported in this process (and its children) until closed. A context manager."""

    def __init__(self, archive: CodeArchive, parent: Path) -> None:
        self.folder = parent / archive.digest
        self._removal: Callable[[], object] = lambda: None
        if not self.folder.exists():
            draft = Path(tempfile.mkdtemp(prefix="draft-", dir=parent))
            archive.unpack(draft)
            try:
                draft.rename(self.folder)
            except OSError:  # somebody else unpacked the same digest meanwhile
                shutil.rmtree(draft)
        sys.path.insert(0, str(self.folder))
        self._before = {name: os.environ.get(name) for name in (CODE_PATH, "PYTHONPATH")}
        os.environ[CODE_PATH] = str(self.folder)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(self.folder), self._before["PYTHONPATH"]]))
        importlib.invalidate_caches()

    def __enter__(self) -> Activation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def remove_with(self, removal: Callable[[], object]) -> None:
        """Call `removal` on closing."""
        self._removal = removal

    def close(self) -> None:
        """Take the code off ``sys.path`` and the environment, and forget the modules that were imported from it."""
        if str(self.folder) not in sys.path:
            return
        sys.path.remove(str(self.folder))
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        for name, module in list(sys.modules.items()):
            if _lies_below(module, self.folder):
                del sys.modules[name]
        importlib.invalidate_caches()
        self._removal()


def activate_code(archive: CodeArchive, folder: str | Path | None = None) -> Activation:
    """Make code importable in this process and its children.

    It is unpacked below `folder`, under its digest, and stays; without one into a temporary folder, which is removed
    on closing or when this process ends.
    """
    if folder is not None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        return Activation(archive, Path(folder))
    temporary = tempfile.mkdtemp(prefix="mutirao-code-")
    activation = Activation(archive, Path(temporary))
    activation.remove_with(weakref.finalize(activation, shutil.rmtree, temporary, ignore_errors=True))
    return activation


def _lies_below(module: object, folder: Path) -> bool:
    places = [getattr(module, "__file__", None), *(getattr(module, "__path__", None) or [])]
    return any(isinstance(place, str) and Path(place).is_relative_to(folder) for place in places)
