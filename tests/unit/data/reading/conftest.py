"""Datasets for the tests of reading, in temporary folders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.data.dataset import Dataset, open_dataset

Write = Callable[..., Dataset]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write tables as Parquet files of a folder, by their names, and open it as a dataset."""

    def make(
        tables: dict[str, pa.Table] | pa.Table,
        *,
        folder: str = "data",
        row_group_size: int = 100,
        use_dictionary: bool = True,
        **options: Any,
    ) -> Dataset:
        root = tmp_path / folder
        for name, table in ({"part.parquet": tables} if isinstance(tables, pa.Table) else tables).items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(table, root / name, row_group_size=row_group_size, use_dictionary=use_dictionary)
        return open_dataset(str(root), **options)

    return make
