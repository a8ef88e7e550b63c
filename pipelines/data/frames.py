"""How does a dataset become a Dask DataFrame, and a Dask DataFrame a dataset?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

import dask
import dask.dataframe as dd
import pandas as pd
import pyarrow as pa
import pyarrow.types as pt
from dask.dataframe.utils import clear_known_categories

from pipelines.data.commits import Mode, Write, WrittenFile, begin_write, commit
from pipelines.data.dataset import Dataset, open_dataset
from pipelines.data.reader import read_batches
from pipelines.data.shards import Shard, plan_shards
from pipelines.data.source import Source, input_columns, make_source
from pipelines.data.writer import write_part

PARTITION_BYTES = 64 << 20


def to_dask(
    dataset: Dataset, columns: Sequence[str] | None = None, *, partition_bytes: int = PARTITION_BYTES
) -> dd.DataFrame:
    """Make a Dask DataFrame of a dataset, in its order; a task is a shard, and reads it when it runs.

    Floats, timestamps and text have pandas' own types. Whatever has no null there (integers, booleans, dates, decimals)
    is Arrow-backed, so that all partitions have the same types whether they hold nulls or not. Categories are unknown.

    Parameters
    ----------
    columns : sequence of str, optional
        By default all.
    partition_bytes : int
        Uncompressed Parquet bytes of a partition, about.
    """
    names = tuple(dataset.schema.names if columns is None else columns)
    source = make_source(dataset)
    inputs = input_columns(source, names)
    weights = plan_shards(dataset, inputs, shards=1)
    shards = plan_shards(dataset, inputs, shards=max(1, -(-weights.bytes // partition_bytes))).shards
    empty = pa.schema([dataset.schema.field(name) for name in names]).empty_table()
    meta = clear_known_categories(_to_pandas(empty))
    frame: dd.DataFrame = dd.from_map(_read, shards, args=[source, names], meta=meta, label="read-shard")
    return frame


def from_dask(frame: dd.DataFrame, url: str, *, mode: Mode = "overwrite") -> Dataset:
    """Write a Dask DataFrame as a new version of the dataset at `url`, in its order, and open it.

    Partitions are written where they are computed: by the current Dask client's workers, or in threads. The index is
    not kept. Categories become their values.

    Raises
    ------
    DataError
        A column whose values are not of one type.
    StorageError
        The place can't be written.
    """
    schema = _storable(pa.Schema.from_pandas(frame._meta_nonempty, preserve_index=False))
    write = begin_write(url)
    tasks = [dask.delayed(_write, pure=False)(part, i, write, schema) for i, part in enumerate(frame.to_delayed())]
    written: Sequence[tuple[WrittenFile, ...]] = dask.compute(*tasks)
    commit(write, [file for files in written for file in files], mode=mode)
    return open_dataset({"versioned": url})


def _read(shard: Shard, source: Source, names: tuple[str, ...]) -> pd.DataFrame:
    schema = pa.schema([source.stored_schema.field(name) for name in names])
    with closing(read_batches(source, [shard], names)) as reads:
        batches = [read.batch for read in reads]
    return _to_pandas(pa.Table.from_batches(batches, schema).unify_dictionaries())


def _write(part: pd.DataFrame, number: int, write: Write, schema: pa.Schema) -> tuple[WrittenFile, ...]:
    columns: Mapping[str, Any] = {name: pa.Array.from_pandas(part[name]) for name in schema.names}
    plain = {name: each.dictionary_decode() if pt.is_dictionary(each.type) else each for name, each in columns.items()}
    table = pa.table([plain[field.name].cast(field.type) for field in schema], schema=schema)
    return write_part(write, number, [table], schema)


def _storable(schema: pa.Schema) -> pa.Schema:
    """Forget pandas' metadata, and write the values of categories."""
    return pa.schema([(f.name, f.type.value_type if pt.is_dictionary(f.type) else f.type) for f in schema])


def _to_pandas(table: pa.Table) -> pd.DataFrame:
    return table.to_pandas(types_mapper=_pandas_type, split_blocks=True, date_as_object=False)


def _pandas_type(type: pa.DataType) -> pd.ArrowDtype | None:
    native = (
        pt.is_floating(type)
        or pt.is_timestamp(type)
        or pt.is_duration(type)
        or pt.is_string(type)
        or pt.is_large_string(type)
        or pt.is_dictionary(type)
    )
    return None if native else pd.ArrowDtype(type)
