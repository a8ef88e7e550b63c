"""The process of one server: read from standard input who is to be served, and serve; ``python -m`` runs it.

It ends with the process that started it, by the kernel's hand, as a rank ends with its watcher.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

from pipelines.errors import MutiraoError
from pipelines.training.gang.mesh import listen
from pipelines.training.gang.process import die_with_parent
from pipelines.training.strategies.parameter_server.layout import Layout
from pipelines.training.strategies.parameter_server.limits import Limits
from pipelines.training.strategies.parameter_server.rules import from_plain
from pipelines.training.strategies.parameter_server.server import serve

logger = logging.getLogger(__name__)


def main() -> int:
    """Serve until the work is done; returns the exit code."""
    setting: dict[str, Any] = json.loads(sys.stdin.buffer.readline())
    die_with_parent(setting["parent"])
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    host, port = setting["arbiter"]
    try:
        serve(
            listen(setting["host"]),
            (host, port),
            bytes.fromhex(setting["token"]),
            Layout(setting["size"], setting["shards"]),
            from_plain(setting["rule"]),
            free=setting["free"],
            limits=Limits(**setting["limits"]),
        )
    except MutiraoError as error:
        logger.warning("this server has ended: %s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
