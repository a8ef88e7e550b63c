"""Does a column of the files contradict the folders' value of the same name?

The folders' value is used: pruning rests on it. Where statistics show another value in a file, that is an error,
never a silent choice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.data.statistics import plain_type, read_statistics
from pipelines.errors import DataError

if TYPE_CHECKING:
    from pipelines.data.dataset import Dataset


def shadowed_columns(dataset: Dataset) -> tuple[str, ...]:
    """Return the partition columns that some files have as columns of their own, which are not read."""
    return tuple(name for name in dataset.partition_columns if any(name in s.names for s in dataset.file_schemas))


def refuse_contradictions(dataset: Dataset) -> None:
    """Compare the statistics of such columns with the folders' values.

    Raises
    ------
    DataError
        A row group holds another value.
    """
    names = shadowed_columns(dataset)
    if not names:
        return
    partition = dataset.files["partition"].combine_chunks()
    types = {name: partition.type.field(name).type for name in names}
    found = read_statistics(dataset.root, dataset.files, dataset.row_groups, types, dataset.file_schemas)
    for name, type in types.items():
        told = pc.struct_field(partition, name).cast(plain_type(type)).take(dataset.row_groups["file"].combine_chunks())
        for bound in (found[name].minimum, found[name].maximum):
            # A folder without a value contradicts any value; unknown bounds contradict nothing.
            differs = pc.and_kleene(pc.is_valid(bound), pc.fill_null(pc.not_equal(bound, told), True))
            if pc.any(differs).as_py():
                _refuse(dataset, name, type, told, bound, pc.index(differs, pa.scalar(True)).as_py())


def _refuse(dataset: Dataset, name: str, type: pa.DataType, told: pa.Array, bound: pa.Array, at: int) -> None:
    path = dataset.files["path"][dataset.row_groups["file"][at].as_py()].as_py()
    raise DataError(
        f"the file has a column {name!r} that contradicts its folder",
        on=f"{dataset.root.rstrip('/')}/{path}",
        expected=f"{told[at].cast(type).as_py()}",
        found=f"{bound[at].cast(type).as_py()} in row group {dataset.row_groups['row_group'][at].as_py()}",
        remedy="Move the file into the right folder, or drop the column from it.",
    )
