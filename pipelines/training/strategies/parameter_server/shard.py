"""One shard's weights and what its rule remembers of them: dense rows that take memory once they are written.

Rows of a shard are one array that the kernel hands out page by page: what was never written costs nothing, a page
(4 KiB, or 2 MiB where the kernel gives large ones) is paid for with the first of its rows. A row's numbers lie side by
side and are moved as one integer: a key costs one cache miss, and a row of two numbers a tenth of what NumPy takes to
move it as a row (50,000 keys: 0.4 ms against 4.3). No thread safety: a shard has one owner.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipelines.errors import DataError
from pipelines.training.gang.context import Array
from pipelines.training.strategies.parameter_server.rules import Rule

_CELLS = {1: np.uint32, 2: np.uint64}
"""The integer that holds a row of so many float32."""


class Shard:
    """Weights numbered from 0 to `size`.

    Parameters
    ----------
    size : int
    rule : Rule
    free : sequence of int
        The weights that are not penalised.
    """

    def __init__(self, size: int, rule: Rule, free: Sequence[int] = ()) -> None:
        self.size, self._rule, self._free = size, rule, np.array(sorted(free), np.int64)
        self._cells = np.zeros(size, _CELLS[rule.columns])
        self.occupied = 0
        """Rows that are not zero: weights that training has touched."""

    @property
    def columns(self) -> int:
        """Numbers of a row."""
        return self._rule.columns

    def pull(self, keys: Array) -> Array:
        """Return the weights of ascending `keys` (float32)."""
        self._check(keys)
        return self._rule.weights(self._rows(self._take(keys)), self._find_free(keys))

    def push(self, keys: Array, gradient: Array, clock: int) -> Array:
        """Apply one update to ascending `keys`; returns their new rows, for `write` on a replica.

        Raises
        ------
        DataError
            Keys that are not here or do not ascend, or a gradient that is not finite; nothing was changed.
        """
        self._check(keys)
        if len(gradient) != len(keys) or not np.isfinite(gradient.sum(dtype=np.float64)):
            raise DataError("an update was refused", expected=f"{len(keys)} finite numbers", found=_describe(gradient))
        old = self._take(keys)
        new = self._rule.update(self._rows(old), gradient, clock, self._find_free(keys))
        self._put(keys, old, new)
        return new

    def write(self, keys: Array, rows: Array) -> None:
        """Set the rows of ascending `keys`."""
        self._check(keys)
        self._put(keys, self._take(keys), rows)

    def read(self, start: int, stop: int) -> tuple[Array, Array]:
        """Return the rows in ``start:stop`` that are not zero: keys (int32), and a copy of their rows."""
        part = self._cells[start:stop]
        found = np.flatnonzero(part)
        return (found + start).astype(np.int32), self._rows(part[found])

    def _take(self, keys: Array) -> Array:
        # The mode spares NumPy a copy of the result; `_check` has seen to the bounds.
        return self._cells.take(keys, mode="clip")

    def _put(self, keys: Array, old: Array, rows: Array) -> None:
        new = np.ascontiguousarray(rows, np.float32).reshape(-1).view(self._cells.dtype)
        self._cells[keys] = new
        self.occupied += int(np.count_nonzero(new)) - int(np.count_nonzero(old))

    def _rows(self, cells: Array) -> Array:
        return cells.view(np.float32).reshape(len(cells), self.columns)

    def _find_free(self, keys: Array) -> Array:
        return places_of(self._free, keys)

    def _check(self, keys: Array) -> None:
        """Refuse keys that would be written twice or elsewhere."""
        if not len(keys):
            return
        inside = keys[0] >= 0 and keys[-1] < self.size
        if not inside or not (keys[1:] > keys[:-1]).all():
            raise DataError(
                "keys were refused by a shard",
                expected=f"ascending keys from 0 to {self.size - 1}, each once",
                found=f"{len(keys)} keys from {keys[0]} to {keys[-1]}",
            )


def places_of(few: Array, keys: Array) -> Array:
    """Return where some of `few` are among ascending `keys`."""
    at = np.searchsorted(keys, few)
    inside = at[at < len(keys)]
    found: Array = inside[keys[inside] == few[: len(inside)]]
    return found


def _describe(gradient: Array) -> str:
    return f"{len(gradient)} numbers, {int(np.count_nonzero(~np.isfinite(gradient)))} of them not finite"
