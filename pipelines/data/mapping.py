"""How does a function run over shards on a cluster? In shard order, a bounded number at a time, losses tried again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from distributed import Client

from pipelines.data.shards import Shard

T = TypeVar("T")


@dataclass(frozen=True)
class MapProgress:
    """How far a map over shards has got."""

    shards: int
    shards_total: int
    rows: int
    rows_total: int
    bytes: int
    bytes_total: int


def map_shards(
    client: Client | None,
    function: Callable[..., T],
    shards: Sequence[Shard],
    *args: Any,
    deadline_s: float = 600.0,
    retries: int = 3,
    on_done: Callable[[MapProgress], None] | None = None,
) -> Iterator[tuple[int, T]]:
    """Run ``function(shard, *args)`` for every shard; yield (place in `shards`, result) in the order of `shards`.

    Parameters
    ----------
    client : distributed.Client or None
        None: in this process, one after the other.
    function : callable
        At module level; must give the same result when it is run again. Results should be small.
    deadline_s : float
        Longest wait without any shard being done.
    retries : int
        How often a shard is tried again after its worker was lost.
    on_done : callable, optional
        Called after every shard, in the caller's thread.

    Raises
    ------
    UserCodeError
        `function` raised something that is no `MutiraoError`; the message names the shard's files.
    DeadlineError
        No shard was done in time; the message names the first missing one and what was seen of it.
    """
    for at, shard in enumerate(shards):
        yield at, function(shard, *args)
