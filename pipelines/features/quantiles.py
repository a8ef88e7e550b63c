"""Where do a column's quantiles lie? Exact for few distinct values or few rows, else from a uniform sample.

The sample holds the rows whose identity hashes lowest, so it is the same however rows are grouped. The rank of a
quantile of m sampled rows is off by q(1 − q)/m in variance: with m = 131,072 by 0.14 % (one sigma, at the median), and
by at most 0.45 % at all quantiles at once in 99 of 100 fits (Dvoretzky, Kiefer & Wolfowitz; Massart 1990).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.features.counts import Counts

SAMPLE_ROWS = 131_072
SAMPLE_CELLS = 2**24
"""Most values of a sample (128 MiB as float64): with more than 128 columns it has fewer rows."""

OVERSAMPLE = 4
"""Shards send this many times the rows that are wanted, since split and filter leave an unknown share of them."""

FEWEST = 32
"""So many rows are in a sample whatever share split and filter leave, as far as there are any."""


@dataclass(frozen=True)
class SampleRule:
    """Which rows are in a sample: those with a hash up to `threshold`, or the `FEWEST` lowest; at most `rows`."""

    rows: int
    threshold: int

    @property
    def fewest(self) -> int:
        """So many of the lowest hashes are in the sample even beyond the threshold."""
        return min(self.rows, FEWEST)

    @classmethod
    def of(cls, rows: int, total: int) -> SampleRule:
        """Make the rule for at most `rows` of a dataset of `total` rows."""
        share = min(1.0, OVERSAMPLE * rows / max(total, 1))
        return cls(rows, 2**64 - 1 if share == 1.0 else int(share * 2**64))

    def chosen(self, hashes: np.ndarray) -> np.ndarray:
        """Places of the rows that may be in the sample; whatever the batches, the lowest of all are among them."""
        places = np.flatnonzero(hashes <= np.uint64(self.threshold))
        if len(places) >= self.fewest:
            return places
        if len(hashes) <= self.fewest:
            return np.arange(len(hashes))
        return np.sort(np.argpartition(hashes, self.fewest)[: self.fewest])

    def size(self, ordered: np.ndarray) -> int:
        """How many of these hashes, in order, are in the sample."""
        below = int(np.searchsorted(ordered, np.uint64(self.threshold), side="right"))
        return min(self.rows, max(below, self.fewest))


@dataclass
class Sample:
    """Rows in the order of their hashes, at most as many as the rule says.

    Parameters
    ----------
    rule : SampleRule
    schema : Schema
        Of the sampled columns.
    """

    rule: SampleRule
    schema: pa.Schema
    _tables: list[pa.Table] = field(default_factory=list)
    _pending: int = 0

    def update(self, hashes: np.ndarray, columns: Sequence[pa.Array]) -> None:
        """Take in rows that the rule has chosen, with their hashes."""
        if len(hashes):
            arrays = [
                column.cast(kind.type) if not column.type.equals(kind.type) else column
                for column, kind in zip(columns, self.schema, strict=True)
            ]
            self._add(pa.table([pa.array(hashes), *arrays], names=self._names))

    def merge(self, other: pa.Table) -> None:
        """Take in another sample's `table`."""
        self._add(other)

    @property
    def table(self) -> pa.Table:
        """The sample: a column ``hash`` and the sampled ones."""
        self._compact()
        return self._tables[0] if self._tables else self._empty

    @property
    def _names(self) -> list[str]:
        return ["hash", *(str(place) for place in range(len(self.schema)))]

    @property
    def _empty(self) -> pa.Table:
        types = [pa.uint64(), *self.schema.types]
        return pa.table([pa.array([], kind) for kind in types], names=self._names)

    def _add(self, table: pa.Table) -> None:
        self._tables.append(table)
        self._pending += table.num_rows
        if self._pending > 2 * OVERSAMPLE * self.rule.rows:
            self._compact()

    def _compact(self) -> None:
        if not self._tables:
            return
        joined = pa.concat_tables(self._tables).combine_chunks()
        order = pc.sort_indices(joined, sort_keys=[("hash", "ascending")])
        size = self.rule.size(joined["hash"].take(order).to_numpy())
        self._tables = [joined.take(order.slice(0, size)).combine_chunks()]
        self._pending = self._tables[0].num_rows


def quantiles_of_counts(counts: Counts, shares: Sequence[float]) -> np.ndarray:
    """Exact quantiles by linear interpolation, as ``numpy.quantile`` of all the counted values (float64)."""
    ends = np.cumsum(counts.counts)
    values = counts.values.to_numpy().astype(np.float64)
    ranks = np.asarray(shares) * (ends[-1] - 1)
    below = np.floor(ranks)
    low = values[np.searchsorted(ends, below, side="right")]
    high = values[np.searchsorted(ends, np.ceil(ranks), side="right")]
    return low + (high - low) * (ranks - below)


def quantiles_of_sample(values: np.ndarray, shares: Sequence[float]) -> np.ndarray:
    """Quantiles of the finite ones among sampled numbers (float64)."""
    values = np.asarray(values, np.float64)
    return np.quantile(values[np.isfinite(values)], np.asarray(shares))
