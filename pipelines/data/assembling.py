"""How do footers and a listing become the columns of a manifest? Pure functions of Arrow tables."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.codec import canonical
from pipelines.data.footers import FILES, ROW_GROUPS, Footers
from pipelines.data.listing import ListedFile
from pipelines.data.schema import FileSchema
from pipelines.errors import DataError


def file_schemas(footers: Footers, paths: Sequence[str]) -> list[FileSchema]:
    """Count the files of each schema, and name the first; `paths` are those of all listed files."""
    numbers, places = footers.files["schema"].to_numpy(), footers.files["index"].to_numpy()
    found = []
    for number, schema in enumerate(footers.schemas):
        where = np.flatnonzero(numbers == number)
        if len(where):
            found.append(FileSchema(schema, len(where), paths[int(places[where[0]])]))
    return found


def restrict(
    found: Sequence[FileSchema], columns: Sequence[str] | None, ids: Mapping[str, int], on: str
) -> list[FileSchema]:
    """Leave out columns that a table has dropped, and refuse columns that a table knows under another name.

    Raises
    ------
    DataError
        A file's column bears the table's name of another one, or is one that the table has renamed.
    """
    if columns is None:
        return list(found)
    names = {number: name for name, number in ids.items()}
    kept = []
    for each in found:
        fields = []
        for field in each.schema:
            held = (field.metadata or {}).get(b"PARQUET:field_id")
            now = field.name if held is None else names.get(int(held))
            if now != field.name and (now is not None or field.name in columns):
                raise DataError(
                    "the table has renamed a column, which can't be honoured in files written before",
                    on=f"{on.rstrip('/')}/{each.example}",
                    expected=repr(now or f"another column than the table's {field.name!r}"),
                    found=repr(field.name),
                    remedy="Write those files again (Spark: CALL system.rewrite_data_files).",
                )
            if field.name in columns:
                fields.append(field)
        kept.append(FileSchema(pa.schema(fields), each.files, each.example))
    return kept


def placed(footers: Footers, places: Sequence[int]) -> Footers:
    """Renumber files: the i-th that was asked for is at ``places[i]`` of a longer list."""
    at = pa.array(places, pa.int64())
    tables = (t.set_column(0, t.schema.field(0), at.take(t["index"])) for t in (footers.files, footers.row_groups))
    files, row_groups = tables
    return Footers(files, row_groups, footers.schemas, footers.bad)


def sorted_by_place(footers: Footers) -> Footers:
    """Sort files and row groups by the files' places."""
    files = footers.files.sort_by("index")
    row_groups = footers.row_groups.sort_by([("index", "ascending"), ("row_group", "ascending")])
    return Footers(files, row_groups, footers.schemas, footers.bad)


def files_table(listed: Sequence[ListedFile], footers: Footers, partitions: pa.StructArray) -> pa.Table:
    """Join the listing with the footers of its good files."""
    good = [listed[i] for i in footers.files["index"].to_pylist()]
    return pa.table(
        {
            "path": pa.array([each.path for each in good], pa.string()),
            "size": pa.array([each.size for each in good], pa.int64()),
            "etag": pa.array([each.etag for each in good], pa.string()),
            "mtime_ns": pa.array([each.mtime_ns for each in good], pa.int64()),
            "rows": footers.files["rows"],
            "row_groups": footers.files["row_groups"],
            "schema": footers.files["schema"],
            "footer": footers.files["footer"],
            "partition": partitions,
        }
    )


def row_groups_table(footers: Footers, schema: pa.Schema) -> pa.Table:
    """Number files by their place among the good ones, and spread bytes over the columns of the unified schema."""
    places, numbers = footers.files["index"].to_numpy(), footers.files["schema"].to_numpy()
    file = np.searchsorted(places, footers.row_groups["index"].to_numpy())
    matrix = np.zeros((footers.row_groups.num_rows, len(schema)), np.int64)
    held = footers.row_groups["column_bytes"].combine_chunks()
    offsets, values = held.offsets.to_numpy(), held.values.to_numpy()
    position = {name: i for i, name in enumerate(schema.names)}
    for number, each in enumerate(footers.schemas):
        rows = np.flatnonzero(numbers[file] == number)
        own = [i for i, name in enumerate(each.names) if name in position]
        taken = values[offsets[rows][:, None] + np.array(own, np.int64)]
        target = np.array([position[each.names[i]] for i in own], np.int64)
        matrix[rows[:, None], target] = taken
    columns = {"file": pa.array(file, pa.int32())}
    columns |= {name: footers.row_groups[name] for name in ("row_group", "first_row", "rows", "bytes")}
    columns["column_bytes"] = pa.FixedSizeListArray.from_arrays(pa.array(matrix.ravel()), len(schema))
    return pa.table(columns)


def known_footers(
    files: pa.Table, row_groups: pa.Table, schemas: Sequence[pa.Schema], schema: pa.Schema, places: Mapping[str, int]
) -> Footers:
    """Turn a manifest back into the footers of those of its files that `places` names, at their new places."""
    new = np.array([places.get(path, -1) for path in files["path"].to_pylist()], np.int64)
    kept = np.flatnonzero(new >= 0)
    columns = {
        "index": pa.array(new[kept]),
        **{n: files[n].take(kept) for n in ("rows", "row_groups", "schema", "footer")},
    }
    file = row_groups["file"].to_numpy()
    rows = np.flatnonzero(new[file] >= 0)
    groups = row_groups.take(rows)
    lists = _own_bytes(groups, files["schema"].to_numpy()[file[rows]], schemas, schema)
    held = {"index": pa.array(new[file[rows]]), **{n: groups[n] for n in ("row_group", "first_row", "rows", "bytes")}}
    return Footers(
        pa.table(columns, schema=FILES),
        pa.table({**held, "column_bytes": lists}, schema=ROW_GROUPS),
        tuple(schemas),
        (),
    )


def _own_bytes(groups: pa.Table, numbers: np.ndarray, schemas: Sequence[pa.Schema], schema: pa.Schema) -> pa.ListArray:
    """Gather each row group's bytes in the order of its file's own schema; columns that were left out count 0."""
    matrix = column_matrix(groups, schema)
    padded = np.concatenate([matrix, np.zeros((len(matrix), 1), np.int64)], axis=1)
    position = {name: i for i, name in enumerate(schema.names)}
    orders = [np.array([position.get(name, len(schema)) for name in each.names], np.int64) for each in schemas]
    widths = np.array([len(order) for order in orders] or [0])[numbers]
    offsets = np.concatenate([[0], np.cumsum(widths)])
    values = np.empty(int(offsets[-1]), np.int64)
    for number, order in enumerate(orders):
        rows = np.flatnonzero(numbers == number)
        values[offsets[rows][:, None] + np.arange(len(order))] = padded[rows][:, order]
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(values))


def column_matrix(row_groups: pa.Table, schema: pa.Schema) -> np.ndarray:
    """Uncompressed bytes, shape (row groups, columns of the schema)."""
    held = row_groups["column_bytes"].combine_chunks()
    return pc.list_flatten(held).to_numpy().reshape(row_groups.num_rows, len(schema))


def content_digest(files: pa.Table, row_groups: pa.Table) -> str:
    """SHA-256 of relative paths, footers and chosen row groups."""
    digest = hashlib.sha256(canonical(files["path"].to_pylist()))
    digest.update(b"".join(files["footer"].to_pylist()))
    for name in ("file", "row_group"):
        digest.update(row_groups[name].to_numpy().astype("<i4").tobytes())
    return digest.hexdigest()


def location_digest(files: pa.Table) -> str:
    """SHA-256 of paths, sizes and ETags, or modification times where there are none."""
    columns = (files[name].to_pylist() for name in ("path", "size", "etag", "mtime_ns"))
    return hashlib.sha256(canonical([[p, s, e or m] for p, s, e, m in zip(*columns, strict=True)])).hexdigest()
