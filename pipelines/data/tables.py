"""Which files make up a Delta or Iceberg table? Its log says so; a listing shows files of old versions too."""

from __future__ import annotations

import importlib
import posixpath
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from pipelines.data.commits import VERSIONS
from pipelines.data.partitions import Values
from pipelines.errors import DataError, StorageError, UsageError
from pipelines.storage import aws, join_url, open_store
from pipelines.storage.urls import parse_url

_DELTA, _ICEBERG = re.compile(r"(?:^|/)_delta_log/"), re.compile(r"(?:^|/)metadata/[^/]*\.metadata\.json$")
_DELTA_FEATURES = {
    "appendOnly",
    "columnMapping",
    "deletionVectors",
    "timestampNtz",
    "typeWidening",
    "typeWidening-preview",
    "v2Checkpoint",
    "v2Checkpoint-preview",
    "vacuumProtocolCheck",
}
_REWRITE = "Write the table again without them (Spark: REORG TABLE … APPLY (PURGE))"


@dataclass(frozen=True, eq=False)
class LoggedTable:
    """What a table's log says.

    Attributes
    ----------
    kind : {"delta", "iceberg", "versioned"}
    version : str
        Of the table; the same version always has the same files.
    paths : tuple of str
        Of its files, relative to the table.
    values : tuple of Values
        Partition values of each file.
    declared : mapping of column to type
        Of partition columns.
    columns : tuple of str, optional
        The only columns that count; None: all that the files have.
    field_ids : mapping of column to int
        The identity that a file's column must have to be the table's column of that name.
    """

    kind: str
    version: str
    paths: tuple[str, ...]
    values: tuple[Values, ...]
    declared: Mapping[str, pa.DataType] = field(default_factory=dict)
    columns: tuple[str, ...] | None = None
    field_ids: Mapping[str, int] = field(default_factory=dict)


def table_of(root: str, paths: Iterable[str]) -> LoggedTable | None:
    """Read the log of the table at `root`, given the paths of all files there; None where there is no table.

    Raises
    ------
    DataError
        Tables below the root, or a table whose log says things that can't be honoured.
    UsageError
        The library that reads the log is missing.
    """
    logs: dict[tuple[str, str], list[str]] = {}
    for path in paths:
        for kind, pattern in (("delta", _DELTA), ("iceberg", _ICEBERG)):
            if found := pattern.search(path):
                logs.setdefault((path[: found.start()], kind), []).append(path)
    if below := sorted(folder for folder, _ in logs if folder):
        raise _inside(join_url(root, below[0]), f"there is a table in {below[0]!r}")
    kinds = {kind: found for (_, kind), found in logs.items()}
    if "delta" in kinds:
        return _read_delta(root)
    return _read_iceberg(root, kinds["iceberg"]) if "iceberg" in kinds else None


def refuse_inside_table(folder: str) -> None:
    """Raise when a folder lies inside a table, or is one: its files can't be told from those of old versions.

    Raises
    ------
    DataError
    """
    url = parse_url(folder)
    parts = [part for part in url.path.split("/") if part]
    scheme = "/" if url.scheme == "file" else f"{url.scheme}://{url.authority}/"
    if url.scheme == "hdfs":
        return
    for depth in range(len(parts), 0, -1):
        above = scheme + "/".join(parts[:depth])
        store = open_store(above)
        try:
            logs = [*store.list("_delta_log", limit=1), *store.list(VERSIONS, limit=1)]
            logs += [info for info in store.list("metadata", limit=100) if _ICEBERG.search(info.key)]
        except StorageError:
            return  # who may read a folder need not have the right to list those above it
        if logs:
            raise _inside(above, "the source names files of a table or of a versioned dataset")


def _inside(table: str, what: str) -> DataError:
    return DataError(
        f"{what}; its log alone says which files are current",
        on=table,
        remedy=f"Name that folder as the source ({table}), and choose rows with `filter:`.",
    )


def _library(name: str, root: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        kind = "a Delta" if name == "deltalake" else "an Iceberg"
        raise UsageError(
            f"this is {kind} table, and reading its log needs {name}", on=root, remedy="pip install 'mutirao[lakes]'"
        ) from None


# --- Delta -----------------------------------------------------------------------------------------------------------


def _read_delta(root: str) -> LoggedTable:
    deltalake = _library("deltalake", root)
    try:
        table = deltalake.DeltaTable(root, storage_options=_delta_options(root))
        _check_delta(table, root)
        added = pa.table(table.get_add_actions(flatten=True)).to_pylist()
        declared = {f.name: f.type for f in pa.schema(table.schema().to_arrow())}
    except (deltalake.exceptions.DeltaError, OSError, ValueError) as error:
        raise StorageError("the Delta table's log can't be read", on=root, found=str(error).splitlines()[0]) from error
    keys = table.metadata().partition_columns
    rows = sorted((_relative(unquote(each["path"]), root, ""), each) for each in added)
    return LoggedTable(
        kind="delta",
        version=str(table.version()),
        paths=tuple(path for path, _ in rows),
        values=tuple(tuple((key, _text(each[f"partition.{key}"])) for key in keys) for _, each in rows),
        declared={key: declared[key] for key in keys},
    )


def _check_delta(table: Any, root: str) -> None:
    features = set(table.protocol().reader_features or ())
    if unknown := features - _DELTA_FEATURES:
        raise DataError(
            "the Delta table uses features that can't be honoured",
            on=root,
            found=", ".join(sorted(unknown)),
            remedy="Write it again without them.",
        )
    if table.metadata().configuration.get("delta.columnMapping.mode", "none") != "none":
        raise DataError(
            "the Delta table renames columns (delta.columnMapping.mode), which can't be honoured",
            on=root,
            remedy="Write it again without column mapping.",
        )
    if "deletionVectors" in features and _has_deletion_vectors(table):
        raise DataError(
            "the Delta table has deletion vectors, which can't be honoured: deleted rows would come back",
            on=root,
            remedy=f"{_REWRITE}.",
        )


def _has_deletion_vectors(table: Any) -> bool:
    from deltalake.exceptions import DeltaError

    try:
        return any(pa.record_batch(batch).num_rows for batch in table.deletion_vectors())
    except (AttributeError, DeltaError, OSError):
        return True  # there are some, and they can't even be read


def _delta_options(root: str) -> dict[str, str]:
    if not root.startswith("s3://"):
        return {}
    settings = aws.s3_settings()
    options = {
        "AWS_REGION": settings.region,
        "AWS_ENDPOINT_URL": settings.endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": settings.access_key_id,
        "AWS_SECRET_ACCESS_KEY": settings.secret_access_key,
        "AWS_SESSION_TOKEN": settings.session_token,
    }
    return {name: value for name, value in options.items() if value}


# --- Iceberg ---------------------------------------------------------------------------------------------------------


def _read_iceberg(root: str, metadata: list[str]) -> LoggedTable:
    _library("pyiceberg", root)
    from pyiceberg.exceptions import NoSuchTableError, ValidationError
    from pyiceberg.table import StaticTable
    from pyiceberg.transforms import IdentityTransform

    newest = max(metadata, key=_iceberg_number)
    try:
        table = StaticTable.from_metadata(join_url(root, newest), _iceberg_options(root))
        tasks = list(table.scan().plan_files())
    except (OSError, ValueError, NoSuchTableError, ValidationError) as error:
        raise StorageError(
            "the Iceberg table's metadata can't be read",
            on=join_url(root, newest),
            found=str(error).splitlines()[0],
            remedy="A table that was moved must be registered and rewritten there: its metadata holds absolute paths.",
        ) from error
    if deleted := [task.file.file_path for task in tasks if task.delete_files]:
        raise DataError(
            "the Iceberg table has delete files, which can't be honoured: deleted rows would come back",
            on=root,
            found=f"{len(deleted)} files with deletes, such as {deleted[0]}",
            remedy="Write those files again (Spark: CALL system.rewrite_data_files).",
        )
    if other := [task.file.file_path for task in tasks if task.file.file_format.name != "PARQUET"]:
        raise DataError("the Iceberg table has files that are not Parquet", on=root, found=other[0])
    schema = table.schema()
    arrow = schema.as_arrow()
    spec = table.spec()
    same_spec = all(task.file.spec_id == spec.spec_id for task in tasks)
    keys = {
        schema.find_column_name(f.source_id): i
        for i, f in enumerate(spec.fields)
        if isinstance(f.transform, IdentityTransform) and same_spec
    }
    keys = {name: i for name, i in keys.items() if _speaks_as_text(arrow.field(name).type)}
    rows = sorted(((_relative(t.file.file_path, root, table.location()), t.file.partition) for t in tasks), key=_first)
    return LoggedTable(
        kind="iceberg",
        version=posixpath.basename(newest),
        paths=tuple(path for path, _ in rows),
        values=tuple(
            tuple((name, _iceberg_text(values[i], arrow.field(name).type)) for name, i in keys.items())
            for _, values in rows
        ),
        declared={name: arrow.field(name).type for name in keys},
        columns=tuple(arrow.names),
        field_ids={f.name: f.field_id for f in schema.fields},
    )


def _iceberg_number(path: str) -> tuple[int, str]:
    found = re.match(r"v?(\d+)", posixpath.basename(path))
    return (int(found[1]) if found else -1, path)


def _iceberg_options(root: str) -> dict[str, str]:
    if not root.startswith("s3://"):
        return {}
    settings = aws.s3_settings()
    options = {
        "s3.region": settings.region,
        "s3.endpoint": settings.endpoint,
        "s3.access-key-id": settings.access_key_id,
        "s3.secret-access-key": settings.secret_access_key,
        "s3.session-token": settings.session_token,
    }
    return {name: value for name, value in options.items() if value}


def _iceberg_text(value: object, type: pa.DataType) -> str | None:
    if isinstance(value, int) and pa.types.is_date(type):
        return (date(1970, 1, 1) + timedelta(days=value)).isoformat()
    return _text(value)


def _speaks_as_text(type: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_integer(type)
        or types.is_string(type)
        or types.is_large_string(type)
        or types.is_date(type)
        or types.is_boolean(type)
    )


# --- both ------------------------------------------------------------------------------------------------------------


def _relative(path: str, root: str, location: str) -> str:
    """Make a path of the log relative to the table, also when the table was copied since."""
    if "://" not in path and not path.startswith("/"):
        return path
    for base in (root, location):
        prefix = _plain(base).rstrip("/") + "/"
        if base and _plain(path).startswith(prefix):
            return _plain(path)[len(prefix) :]
    raise DataError(
        "the table refers to files outside of its folder, which can't be honoured",
        on=root,
        found=path,
        remedy="Write it again as a table of its own.",
    )


def _plain(url: str) -> str:
    return str(parse_url(url))


def _text(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    return value.isoformat() if isinstance(value, date) else str(value)


def _first(pair: tuple[str, Any]) -> str:
    return pair[0]
