"""Small Parquet datasets with shards cut by hand: any cutting is allowed, so tests can choose one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.codec import schema_to_text
from pipelines.data.rows import RowIds
from pipelines.data.shards import FileRef, Shard, Slice
from pipelines.data.source import Source
from pipelines.data.split import SplitPlan
from pipelines.features import FeatureConfig, Fitted, LabelConfig, fit_features

EVERY_ROW_TRAINS = SplitPlan("hash", None, 0.0, 0.0, 0)


@dataclass(frozen=True)
class Made:
    """A dataset on disk, and its rows in memory in the order of the files."""

    root: Path
    table: pa.Table
    refs: tuple[FileRef, ...]
    row_group_rows: int

    @property
    def source(self) -> Source:
        return Source(str(self.root), schema_to_text(self.table.schema))

    def shards(self, count: int) -> tuple[Shard, ...]:
        """Cut into `count` contiguous shards of about as many rows, through row groups."""
        cuts = np.linspace(0, self.table.num_rows, count + 1).astype(int)
        return tuple(self._shard(index, *cuts[index : index + 2]) for index in range(count))

    def parts(self, split: SplitPlan) -> np.ndarray:
        """Each row's split part."""
        found = []
        for at, first, stop in self._groups():
            ids = RowIds(self.refs[at].path, first[1], np.arange(stop - first[0]), first[2])
            found.append(
                split.assign(self.table.slice(first[0], stop - first[0]).combine_chunks().to_batches()[0], ids)
            )
        return np.concatenate(found)

    def _groups(self) -> list[tuple[int, tuple[int, int, int], int]]:
        """Per row group: file, (first row of all, number in the file, first row in the file), end row of all."""
        found, start = [], 0
        for at, ref in enumerate(self.refs):
            rows = pq.ParquetFile(self.root / ref.path).metadata.num_rows
            for number, first in enumerate(range(0, rows, self.row_group_rows)):
                stop = min(first + self.row_group_rows, rows)
                found.append((at, (start + first, number, first), start + stop))
            start += rows
        return found

    def _shard(self, index: int, begin: int, end: int) -> Shard:
        slices = []
        for at, (first, number, in_file), stop in self._groups():
            low, high = max(begin, first), min(end, stop)
            if low < high:
                slices.append(Slice(self.refs[at], number, int(low - first), int(high - first), in_file, high - low))
        return Shard(index, tuple(slices), int(end - begin), int(end - begin))


@pytest.fixture(scope="session")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Made]:
    """Write a table as a dataset: ``make(table, files=2, row_group_rows=100)``."""

    def write(table: pa.Table, files: int = 2, row_group_rows: int = 100) -> Made:
        root = tmp_path_factory.mktemp("dataset")
        cuts = np.linspace(0, table.num_rows, files + 1).astype(int)
        refs = []
        for number in range(files):
            path = root / f"part-{number}.parquet"
            part = table.slice(cuts[number], cuts[number + 1] - cuts[number])
            pq.write_table(part, path, row_group_size=row_group_rows)
            stat = path.stat()
            refs.append(FileRef(path.name, stat.st_size, f"mtime:{stat.st_mtime_ns}"))
        return Made(root, table, tuple(refs), row_group_rows)

    return write


@pytest.fixture(scope="session")
def fit(make: Callable[..., Made]) -> Callable[..., Fitted]:
    """Fit on a table of which every row trains; a label ``y`` is added: ``fit(table, {...}, {...})``."""

    def run(table: pa.Table, *features: Any, shards: int = 3, files: int = 2, **arguments: Any) -> Fitted:
        labelled = table.append_column("y", pa.array(np.arange(table.num_rows) % 2 == 0))
        made = make(labelled, files=files)
        configs = [FeatureConfig.model_validate(feature) for feature in features]
        return fit_features(
            configs, LabelConfig(column="y"), made.source, made.shards(shards), EVERY_ROW_TRAINS, **arguments
        )

    return run
