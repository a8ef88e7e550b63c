"""The user's code on every worker of a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from distributed import WorkerPlugin

from cluster.code_activation import Activation
from cluster.code_archive import CodeArchive
from cluster.errors import ClusterDeadlineError

_PLUGIN = "mutirao-code"


def install_code(client: Any, archive: CodeArchive, *, timeout_s: float = 60.0) -> None:
    """Bring code to every present and future worker of a cluster; returns when the present ones have it.

    Each unpacks it into ``code/<digest>`` of its local directory, puts that first on ``sys.path`` and into the
    environment variables ``MUTIRAO_CODE_PATH`` and ``PYTHONPATH``, so that its child processes import it too. A cluster
    has one archive: another replaces it, and modules imported from the old one are forgotten. May be repeated.

    Raises
    ------
    ClusterDeadlineError
        Some worker did not answer in time.
    """
    plugin = _CodePlugin(archive)
    try:
        # On the client's own event loop its methods are coroutines, which can be given a limit.
        client.sync(client.register_plugin, plugin, name=_PLUGIN, callback_timeout=timeout_s)
    except TimeoutError as error:
        raise ClusterDeadlineError(
            "a worker did not take the code in time", on=f"code {archive.digest[:12]}", expected=f"{timeout_s:g} s",
            remedy="Look at the dashboard for a worker that does not answer.",
        ) from error  # fmt: skip


class _CodePlugin(WorkerPlugin):
    """Unpacks an archive where a worker lives. Dask removes the former plugin of the same name first."""

    def __init__(self, archive: CodeArchive) -> None:
        self.archive = archive
        self.activation: Activation | None = None

    def setup(self, worker: Any) -> None:
        parent = Path(worker.local_directory) / "code"
        parent.mkdir(exist_ok=True)
        self.activation = Activation(self.archive, parent)

    def teardown(self, worker: Any) -> None:
        if self.activation is not None:
            self.activation.close()
