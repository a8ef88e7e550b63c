"""Who holds which shard, and what changes when a server comes or goes? Pure decisions of the arbiter.

A shard has a *primary*, which serves it, and a *replica*, which has every update before the worker hears of it, on
another machine where there is one. Every change of a shard's holders raises its *term*; who speaks with an older term
is no longer what it thinks it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeAlias

from pipelines.errors import GangError

Address: TypeAlias = tuple[str, int]


@dataclass(frozen=True)
class Holders:
    """Who holds a shard. `synced`: the replica has all of it, and may take over."""

    term: int
    primary: int
    replica: int | None
    synced: bool


@dataclass(frozen=True)
class View:
    """All shards' holders, and the addresses of the servers that are there, by their numbers."""

    shards: tuple[Holders, ...]
    servers: dict[int, Address]

    def to_json(self) -> dict[str, Any]:
        """Turn into JSON values."""
        return {"shards": [asdict(each) for each in self.shards], "servers": list(self.servers.items())}

    @staticmethod
    def from_json(value: dict[str, Any]) -> View:
        """Undo `to_json`."""
        servers = {int(server): (str(host), int(port)) for server, (host, port) in value["servers"]}
        return View(tuple(Holders(**each) for each in value["shards"]), servers)


def first_view(addresses: Sequence[Address], *, replicas: bool) -> View:
    """Give shard i to server i, and its replica to a server behind it. All shards are zero, so replicas are complete.

    The distance is the same for all, so that each keeps one replica: the one that puts most of them on another host.
    """
    count = len(addresses)
    hosts = [host for host, _ in addresses]
    distance = max(
        range(1, max(count, 2)), key=lambda d: (sum(hosts[i] != hosts[(i + d) % count] for i in range(count)), -d)
    )
    behind = [(shard + distance) % count if replicas and count > 1 else None for shard in range(count)]
    shards = tuple(Holders(1, shard, behind[shard], behind[shard] is not None) for shard in range(count))
    return View(shards, dict(enumerate(addresses)))


def without(view: View, lost: int) -> View:
    """Let replicas take over what `lost` has served, and end what it has replicated.

    Raises
    ------
    GangError
        A shard has no complete copy any more.
    """
    address = view.servers.get(lost)
    servers = {server: at for server, at in view.servers.items() if server != lost}
    shards = []
    for shard, held in enumerate(view.shards):
        if held.primary == lost:
            if held.replica is None or not held.synced:
                raise GangError(
                    f"shard {shard} of the weights was lost with server {lost}",
                    on=f"{address[0]}:{address[1]}" if address else "",
                    expected="a complete replica on another server",
                    found="none" if held.replica is None else f"one on server {held.replica} that was being filled",
                    remedy="Resume from the last checkpoint; losing one server at a time needs replicas.",
                )
            shards.append(Holders(held.term + 1, held.replica, None, False))
        elif held.replica == lost:
            shards.append(Holders(held.term + 1, held.primary, None, False))
        else:
            shards.append(held)
    return View(tuple(shards), servers)


def refilled(view: View) -> View:
    """Let servers that hold nothing keep the replicas that are missing; they are to be filled."""
    busy = {held.primary for held in view.shards} | {held.replica for held in view.shards}
    spare = [server for server in view.servers if server not in busy]
    if not spare:
        return view
    shards = tuple(
        Holders(held.term + 1, held.primary, spare[0], False) if held.replica is None else held for held in view.shards
    )
    return View(shards, view.servers)


def unlinked(view: View, shard: int, term: int) -> View:
    """Give up a replica that its primary can't reach, if it is still that term's."""
    held = view.shards[shard]
    if held.term != term or held.replica is None:
        return view
    alone = Holders(term + 1, held.primary, None, False)
    return View((*view.shards[:shard], alone, *view.shards[shard + 1 :]), view.servers)


def with_synced(view: View, shard: int, term: int) -> View:
    """Note that a shard's replica is complete, if it is still that term's."""
    return View(
        tuple(
            replace(held, synced=True) if at == shard and held.term == term and held.replica is not None else held
            for at, held in enumerate(view.shards)
        ),
        view.servers,
    )


def relieved(view: View) -> View | None:
    """Hand one shard of a server that serves several to its complete replica on a server that serves none; or None."""
    serving = Counter(held.primary for held in view.shards)
    for at, held in enumerate(view.shards):
        if serving[held.primary] > 1 and held.replica is not None and held.synced and not serving[held.replica]:
            swapped = Holders(held.term + 1, held.replica, held.primary, True)
            return View((*view.shards[:at], swapped, *view.shards[at + 1 :]), view.servers)
    return None
