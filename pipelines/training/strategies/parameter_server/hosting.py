"""Which ranks start servers, and who keeps them going? Child processes of ranks, from formation to formation.

A rank that is lost takes its server along, a server that is lost is started again by its rank. With replicas no rank
starts a second server for one that was lost with another rank: both copies would go with it.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from pipelines.errors import GangError
from pipelines.training.gang.context import Collective, RankContext
from pipelines.training.strategies.parameter_server.layout import Layout
from pipelines.training.strategies.parameter_server.limits import Limits
from pipelines.training.strategies.parameter_server.rules import AnyRule, to_plain
from pipelines.training.strategies.parameter_server.views import Address

logger = logging.getLogger(__name__)

_CHILD = "pipelines.training.strategies.parameter_server.child"
_KEPT = "parameter servers"
_LOOK_S = 0.5
_MOST_REPLACED = 20
"""So many servers of one rank that ended by themselves are no accident."""
_END_S = 5.0


@dataclass(frozen=True)
class Servers:
    """What every server and client of a run must know.

    Parameters
    ----------
    arbiter : (host, port)
    token : bytes
    layout : Layout
    rule : Rule
    free : tuple of int
        The keys whose weights are not penalised.
    limits : Limits
    """

    arbiter: Address
    token: bytes
    layout: Layout
    rule: AnyRule
    free: tuple[int, ...]
    limits: Limits

    @property
    def bytes_each(self) -> int:
        """What a server holds at most: its shard, and a replica of another's."""
        return 2 * self.layout.length(0) * self.rule.columns * 4


def share_out(hosted: Sequence[int], servers: int, *, begun: bool) -> list[int]:
    """Say how many servers each rank is to start.

    Parameters
    ----------
    hosted : sequence of int
        How many each rank has, by rank.
    servers : int
        How many there are to be.
    begun : bool
        Whether all of them were there once: then only ranks without any start one.
    """
    now, found = list(hosted), [0] * len(hosted)
    for _ in range(servers - sum(hosted)):
        rank = min(range(len(now)), key=lambda each: (now[each], each))
        if begun and now[rank]:
            break
        now[rank] += 1
        found[rank] += 1
    return found


class Hosting:
    """The servers of one rank. Owned by the rank's first thread: the kernel ends them with the thread that starts them.

    Parameters
    ----------
    host : str
        Where they are reached.
    """

    def __init__(self, host: str) -> None:
        self._host = host
        self._children: list[subprocess.Popen[bytes]] = []
        self._looked = 0.0
        self.replaced = 0
        """How many ended that should not have, and were started again."""

    @classmethod
    def of(cls, context: RankContext) -> Hosting:
        """Return what this process has started already, or begin."""
        held = context.kept.values.get(_KEPT)
        if not isinstance(held, cls):
            held = cls(context.host)
            context.kept.values[_KEPT] = held
            context.kept.resources.callback(held.close)
        return held

    def fill(self, collective: Collective, servers: Servers, *, begun: bool) -> None:
        """Start what this rank is to start in this formation. Called by all ranks."""
        self._children = [child for child in self._children if child.poll() is None]
        words = collective.allgather(str(len(self._children)).encode())
        for _ in range(share_out([int(each) for each in words], servers.layout.shards, begun=begun)[collective.rank]):
            self._start(servers)

    def mend(self, servers: Servers) -> None:
        """Start a server again that has ended; looks twice a second at most.

        Raises
        ------
        GangError
            It was done too often.
        """
        now = time.monotonic()
        if now < self._looked + _LOOK_S:
            return
        self._looked = now
        for child in [each for each in self._children if each.poll() is not None]:
            self._children.remove(child)
            self.replaced += 1
            logger.warning("server process %d has ended with %d, and is replaced", child.pid, child.returncode)
            if self.replaced > _MOST_REPLACED:
                raise GangError(
                    "servers of the weights end again and again",
                    on=self._host,
                    found=f"{self.replaced} ended, the last one with {child.returncode}",
                    remedy="Look at the rank's log, and at its memory.",
                )
            self._start(servers)

    def close(self) -> None:
        """End them."""
        for child in self._children:
            child.kill()
        for child in self._children:
            child.wait(_END_S)
        self._children.clear()

    def _start(self, servers: Servers) -> None:
        child = subprocess.Popen([sys.executable, "-m", _CHILD], stdin=subprocess.PIPE)
        setting: dict[str, Any] = {
            "parent": os.getpid(),
            "host": self._host,
            "arbiter": servers.arbiter,
            "token": servers.token.hex(),
            "size": servers.layout.size,
            "shards": servers.layout.shards,
            "rule": to_plain(servers.rule),
            "free": servers.free,
            "limits": asdict(servers.limits),
        }
        assert child.stdin is not None
        with suppress(OSError):  # it has ended already: `mend` tells
            child.stdin.write(json.dumps(setting).encode() + b"\n")
            child.stdin.close()
        self._children.append(child)
