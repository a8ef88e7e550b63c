"""How are a wide model's features cut into column blocks, and which input columns does each of them need?

The cut hangs on the feature plan, the number of blocks and the rows only; ranks host whole blocks. So what is computed
for a block, and in which order blocks are added, does not depend on how many ranks there are.
"""

from __future__ import annotations

import base64
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from pipelines.errors import Fault, SpecError
from pipelines.features.plan import FeaturePlan
from pipelines.features.steps import Bins, Category, Foreign, Hashed, Step, output_names
from pipelines.training.blocks import BLOCK_VALUES, block_rows
from pipelines.training.gang.context import Array

WEIGHT_BYTES = 8 * 28
"""What a weight takes in training: itself, its gradient, twenty vectors of L-BFGS, and some room to compute in."""
_MOST_ROWS = 1 << 14


@dataclass(frozen=True, eq=False)
class ColumnBlock:
    """Some neighbouring features, and how they are computed.

    Parameters
    ----------
    number : int
    first, width : int
        Place of its first feature among all, and how many it has.
    plan : FeaturePlan
        The steps that its features come from, and no others.
    skip : int
        Outputs of `plan` before the first of these: a step may be cut.
    """

    number: int
    first: int
    width: int
    plan: FeaturePlan
    skip: int

    @property
    def names(self) -> tuple[str, ...]:
        """Its features."""
        return self.plan.names[self.skip : self.skip + self.width]

    @property
    def whole(self) -> bool:
        """Whether it has all that its plan computes."""
        return self.width == len(self.plan.names)

    def to_plain(self) -> dict[str, Any]:
        """Turn it into JSON values."""
        files = {name: base64.b64encode(data).decode() for name, data in self.plan.files().items()}
        return {"number": self.number, "first": self.first, "width": self.width, "skip": self.skip, "plan": files}

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> ColumnBlock:
        """Rebuild it in a rank."""
        files = {name: base64.b64decode(text) for name, text in plain["plan"].items()}
        plan = FeaturePlan.from_files(files)
        return cls(plain["number"], plain["first"], plain["width"], plan, plain["skip"])


@dataclass(frozen=True, eq=False)
class ColumnCut:
    """All column blocks, in the order of the features.

    Parameters
    ----------
    blocks : tuple of ColumnBlock
    sizes : tuple of int
        About the bytes that each takes in a rank: its values and its weights.
    page_rows : int
        Rows of a page, which is what a block's values are kept in: the same for all of them.
    """

    blocks: tuple[ColumnBlock, ...]
    sizes: tuple[int, ...]
    page_rows: int


def cut_columns(plan: FeaturePlan, blocks: int, *, rows: int, outputs: int) -> ColumnCut:
    """Cut a plan's features into column blocks of about equal bytes.

    No block has more bytes than the mean and its largest feature together, but for what it takes to leave each block a
    feature.

    Parameters
    ----------
    rows, outputs : int
        Training rows, and scores per row.

    Raises
    ------
    SpecError
        There are fewer features than blocks.
    """
    widths = [len(output_names(step, plan.stored.dictionaries)) for step in plan.steps]
    features = sum(widths)
    if blocks > features:
        raise SpecError(
            [
                Fault(
                    "train.strategy.blocks",
                    f"there are {features} features, which can't be cut into {blocks} blocks",
                    f"Set blocks to at most {features}, or leave it out",
                )
            ]
        )
    stored = np.concatenate([_stored(step, width, plan.sparse) for step, width in zip(plan.steps, widths, strict=True)])
    size = stored * rows * (8 if plan.sparse else 4) + outputs * WEIGHT_BYTES
    cuts = _cut_evenly(size, blocks)
    begins = [0, *accumulate(widths)]
    found = []
    for number, (first, stop) in enumerate(pairwise(cuts)):
        step = bisect_right(begins, first) - 1
        last = bisect_right(begins, stop - 1)
        found.append(ColumnBlock(number, first, stop - first, plan.part(step, last), first - begins[step]))
    sizes = tuple(int(size[first:stop].sum()) for first, stop in pairwise(cuts))
    most = max(float(stored[first:stop].sum()) for first, stop in pairwise(cuts))
    return ColumnCut(tuple(found), sizes, _page_rows(most, plan.sparse))


def _stored(step: Step, width: int, sparse: bool) -> Array:
    """Expected number of stored values in a row, for each of a step's features."""
    share = 1.0
    if sparse and isinstance(step, Bins | Category | Hashed) and step.layout == "one_hot":
        share = 1.0 / max(width, 1)
    if sparse and isinstance(step, Foreign) and step.density is not None:
        share = step.density
    return np.full(width, share)


def _cut_evenly(sizes: Array, parts: int) -> list[int]:
    """Boundaries of contiguous parts, none of them empty, each as near to its share of the whole as can be."""
    ends = np.cumsum(sizes)
    ideal = ends[-1] * np.arange(1, parts) / parts
    cuts = np.searchsorted(ends, ideal)
    before = np.where(cuts > 0, ends[cuts - 1], 0.0)
    cuts = cuts + (ends[cuts] - ideal < ideal - before)
    found = [0]
    for number, cut in enumerate(cuts.tolist(), 1):
        found.append(min(max(cut, found[-1] + 1), len(sizes) - parts + number))
    return [*found, len(sizes)]


def _page_rows(values: float, sparse: bool) -> int:
    if not sparse:
        return min(block_rows(round(values)), _MOST_ROWS)
    return min(max(int(BLOCK_VALUES / max(values, 1.0)) // 64 * 64, 64), _MOST_ROWS)


def widest(blocks: Sequence[ColumnBlock]) -> int:
    """Features of the widest block; 0 for none."""
    return max((block.width for block in blocks), default=0)
