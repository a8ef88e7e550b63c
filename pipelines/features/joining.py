"""In how many units are shards read once? In fewer than a training wants, since each unit has its price."""

from __future__ import annotations

from collections.abc import Sequence

from pipelines.data.shards import Shard, deal, join

UNITS = 64
UNIT_BYTES = 64 << 20


def join_shards(shards: Sequence[Shard]) -> list[Shard]:
    """Join neighbouring shards into at least 64, and into more where these would pass 64 MiB.

    A column's statistics cost some 0.1 ms for each part of each unit, however few rows it has. The result hangs on the
    shards only, so that it is the same for any number of workers.
    """
    count = max(UNITS, sum(shard.bytes for shard in shards) // UNIT_BYTES)
    return [join([shards[place] for place in run], index) for index, run in enumerate(deal(shards, count)) if run]
