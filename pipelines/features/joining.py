"""In how many units are shards read once? In fewer than a training wants, since each unit has its price."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pipelines.data.shards import Shard, Slice, deal

UNITS = 64
UNIT_BYTES = 64 << 20


def join_shards(shards: Sequence[Shard]) -> list[Shard]:
    """Join neighbouring shards into at least 64, and into more where these would pass 64 MiB.

    A column's statistics cost some 0.1 ms for each part of each unit, however few rows it has. The result hangs on the
    shards only, so that it is the same for any number of workers.
    """
    count = max(UNITS, sum(shard.bytes for shard in shards) // UNIT_BYTES)
    return [join([shards[place] for place in run], index) for index, run in enumerate(deal(shards, count)) if run]


def join(shards: Sequence[Shard], index: int = 0) -> Shard:
    """Make one shard of neighbours; slices that follow each other in a row group become one."""
    slices: list[Slice] = []
    for piece in (piece for shard in shards for piece in shard.slices):
        last = slices[-1] if slices else None
        if last and (last.file, last.row_group, last.stop) == (piece.file, piece.row_group, piece.start):
            slices[-1] = replace(last, stop=piece.stop, bytes=last.bytes + piece.bytes)
        else:
            slices.append(piece)
    return Shard(index, tuple(slices), sum(shard.rows for shard in shards), sum(shard.bytes for shard in shards))
