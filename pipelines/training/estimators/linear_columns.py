"""Which rank hosts which columns of a wide linear model? Whole blocks of them, dealt anew when ranks come or go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pipelines import codec
from pipelines.training.columns import cut_columns
from pipelines.training.config import ModelParallelConfig
from pipelines.training.estimators.linear import identity
from pipelines.training.estimators.registry import FitRequest
from pipelines.training.lanes import deal_weights


class ColumnDealer:
    """Says to each rank which column blocks it hosts; there are no more ranks than blocks.

    Parameters
    ----------
    request : FitRequest
    strategy : ModelParallelConfig
        By default there is a block for each thread of the ranks at the start, where there are as many features.

    Raises
    ------
    SpecError
        More blocks are asked for than there are features.
    """

    def __init__(self, request: FitRequest, strategy: ModelParallelConfig) -> None:
        data = request.data
        features = len(data.features.names)
        rows = (data.rows or {}).get("train") or sum(shard.rows for shard in data.shards.shards)
        blocks = strategy.blocks or max(1, min(request.ranks * request.threads, features))
        self._cut = cut_columns(data.features, blocks, rows=rows, outputs=data.outputs)
        self.ranks = min(request.ranks, blocks)
        self.most = max(self.ranks, min(request.max_ranks, blocks))
        self.rows = rows * blocks
        """Every rank reads all rows of each of its blocks."""
        self.identity = identity(request, blocks)
        self._common = {
            # What is read is said by each block; features that nobody looks at are not sent.
            "data": replace(data, features=data.features.part(0, 0)).to_plain(),
            "config": codec.to_plain(request.config),
            "features": features,
            "page_rows": self._cut.page_rows,
            "blocks_total": blocks,
            "checkpoint_url": request.checkpoint_url,
            "identity": codec.digest(codec.canonical(self.identity)),
        }

    def arguments(self, holds: Sequence[Sequence[int]], speeds: Sequence[float] | None = None) -> list[dict[str, Any]]:
        """Return the arguments of each rank of a formation; `holds` are the blocks that each has loaded."""
        dealt = deal_weights(self._cut.sizes, holds, speeds)
        return [{**self._common, "blocks": [self._cut.blocks[number].to_plain() for number in own]} for own in dealt]
