"""Where does a row of a batch come from, and where in a sequence of shards has a reader got to?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Position:
    """The next row to read: JSON-able, and valid for the same sequence of shards, whatever the batch size.

    Parameters
    ----------
    shard : int
        Place in the sequence of shards that is read (not the shard's index).
    piece : int
        Place in that shard's slices.
    row : int
        Row in that slice's row group; 0 stands for the slice's start.
    """

    shard: int = 0
    piece: int = 0
    row: int = 0


@dataclass(frozen=True, eq=False)
class RowIds:
    """The identity of a batch's rows: a path relative to the dataset's root, a row group, rows in it.

    Parameters
    ----------
    path : str
    row_group : int
    rows : ndarray of int64, shape (rows,)
        Row numbers in the row group; ascending, with gaps where a filter or a split left rows out.
    first_row : int
        Row number in the file of the row group's first row.
    """

    path: str
    row_group: int
    rows: np.ndarray
    first_row: int

    @property
    def in_file(self) -> np.ndarray:
        """Row numbers in the file."""
        return self.rows + self.first_row
