"""What does one reading thread decode in one go? Neighbouring pieces of one row group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipelines.data.rows import Position
from pipelines.data.shards import Shard, Slice


@dataclass(frozen=True)
class Piece:
    """Rows from `start` on of a slice.

    Attributes
    ----------
    at, piece : int
        Place of the shard, and of the slice in it.
    offset : int
        Rows that this reading has before `start`, filter and split aside.
    """

    at: int
    piece: int
    slice: Slice
    start: int
    offset: int


Unit = list[Piece]


def units_of(shards: Sequence[Shard], position: Position) -> list[Unit]:
    """Cut what is left to read from a position on into units, in order."""
    units: list[Unit] = []
    offset = 0
    for at in range(position.shard, len(shards)):
        first = position.piece if at == position.shard else 0
        for number, one in enumerate(shards[at].slices[first:], first):
            row = position.row if (at, number) == (position.shard, position.piece) else 0
            piece = Piece(at, number, one, max(one.start, row), offset)
            if piece.start >= one.stop:
                continue
            offset += one.stop - piece.start
            if units and _follows(units[-1][-1].slice, piece):
                units[-1].append(piece)
            else:
                units.append([piece])
    return units


def _follows(before: Slice, piece: Piece) -> bool:
    same = (before.file, before.row_group) == (piece.slice.file, piece.slice.row_group)
    return same and before.stop <= piece.start
