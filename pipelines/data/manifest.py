"""How is a manifest kept? As one Arrow IPC file: its tables as they are, the rest as JSON in the schema's metadata."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from pipelines import codec
from pipelines.data.dataset import Dataset, Opened, SkippedFile
from pipelines.data.schema import Drift
from pipelines.errors import CorruptArtifactError, StorageError
from pipelines.storage import ObjectStore

SCHEMA = 1
"""Number of the layout; files of higher numbers are refused."""

_KEY, _NUMBER = b"mutirao.manifest", b"mutirao.manifest.schema"


@dataclass(frozen=True)
class _Head:
    """What a manifest holds beside its tables."""

    root: str
    schema: str
    partition_columns: tuple[str, ...]
    drift: tuple[Drift, ...]
    skipped: tuple[SkippedFile, ...]
    content_digest: str
    location_digest: str
    opened: Opened
    file_schemas: tuple[str, ...]


def save_dataset(dataset: Dataset, store: ObjectStore, key: str) -> None:
    """Write a manifest over what may be at `key`."""
    head = _Head(
        root=dataset.root,
        schema=codec.schema_to_text(dataset.schema),
        partition_columns=dataset.partition_columns,
        drift=dataset.drift,
        skipped=dataset.skipped,
        content_digest=dataset.content_digest,
        location_digest=dataset.location_digest,
        opened=dataset.opened,
        file_schemas=tuple(map(codec.schema_to_text, dataset.file_schemas)),
    )
    tables = [_to_ipc(dataset.files), _to_ipc(dataset.row_groups)]
    metadata = {_KEY: codec.dump(head), _NUMBER: str(SCHEMA)}
    outer = pa.schema([pa.field("files", pa.large_binary()), pa.field("row_groups", pa.large_binary())], metadata)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, outer) as writer:
        writer.write_batch(pa.record_batch([pa.array([t], pa.large_binary()) for t in tables], schema=outer))
    store.replace(key, sink.getvalue().to_pybytes())


def load_dataset(store: ObjectStore, key: str) -> Dataset:
    """Read what `save_dataset` wrote."""
    data, where = store.get(key), f"{store.url.rstrip('/')}/{key}"
    try:
        reader = pa.ipc.open_file(pa.py_buffer(data))
        metadata = reader.schema.metadata or {}
        number = int(metadata[_NUMBER])
        if number > SCHEMA:
            raise StorageError(
                "this manifest was written by a later release",
                on=where,
                expected=f"layout {SCHEMA} or less",
                found=str(number),
                remedy="Install that release, or open the dataset from its files.",
            )
        head = codec.load(_Head, metadata[_KEY])
        batch = reader.get_batch(0)
        files, row_groups = (_from_ipc(batch[name][0].as_buffer()) for name in ("files", "row_groups"))
        return Dataset(
            root=head.root,
            schema=codec.schema_from_text(head.schema),
            files=files,
            row_groups=row_groups,
            partition_columns=head.partition_columns,
            drift=head.drift,
            skipped=head.skipped,
            content_digest=head.content_digest,
            location_digest=head.location_digest,
            opened=head.opened,
            file_schemas=tuple(map(codec.schema_from_text, head.file_schemas)),
        )
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise CorruptArtifactError(
            "this is no manifest, or a damaged one",
            on=where,
            found=str(error).splitlines()[0],
            remedy="Delete it and open the dataset from its files.",
        ) from error


def _to_ipc(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table.combine_chunks())
    return bytes(sink.getvalue().to_pybytes())


def _from_ipc(buffer: pa.Buffer) -> pa.Table:
    return pa.ipc.open_stream(buffer).read_all()
