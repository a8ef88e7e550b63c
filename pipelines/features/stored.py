"""What is a plan on storage? ``plan.json``, ``categories.arrow`` and a skops file per foreign transformer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa
from pydantic import BaseModel, ValidationError

from pipelines.codec import canonical, schema_from_text, schema_to_text, to_plain
from pipelines.errors import CorruptArtifactError
from pipelines.features.steps import Domain, Step

SCHEMA = 1
"""Version of ``plan.json``."""

PLAN, CATEGORIES = "plan.json", "categories.arrow"


@dataclass(frozen=True, eq=False)
class Stored:
    """A plan's values.

    Parameters
    ----------
    input_schema : Schema
        Columns that it reads, with the types it was fitted on.
    steps : tuple of Step
    dictionaries : mapping of str to Array
        Category values by key: sorted, without nulls.
    objects : mapping of str to bytes
        Skops files by name.
    sparse : bool
    density : float
    domains : mapping of str to Domain
        By input column, without category values: the dictionaries hold them.
    """

    input_schema: pa.Schema
    steps: tuple[Step, ...]
    dictionaries: Mapping[str, pa.Array] = field(default_factory=dict)
    objects: Mapping[str, bytes] = field(default_factory=dict)
    sparse: bool = False
    density: float = 1.0
    domains: Mapping[str, Domain] = field(default_factory=dict)


class _Column(BaseModel):
    name: str
    type: str


class _Document(BaseModel):
    """``plan.json``; `columns` are for people, `input_schema` is what is read."""

    schema_number: int
    columns: list[_Column]
    input_schema: str
    steps: tuple[Step, ...]
    sparse: bool
    density: float
    domains: dict[str, Domain]


def write_files(stored: Stored) -> dict[str, bytes]:
    """Write a plan: the same values give the same bytes."""
    document = _Document(
        schema_number=SCHEMA,
        columns=[_Column(name=column.name, type=str(column.type)) for column in stored.input_schema],
        input_schema=schema_to_text(stored.input_schema),
        steps=stored.steps,
        sparse=stored.sparse,
        density=stored.density,
        domains=dict(stored.domains),
    )
    return {PLAN: canonical(to_plain(document)), CATEGORIES: _write_dictionaries(stored.dictionaries), **stored.objects}


def read_files(files: Mapping[str, bytes]) -> Stored:
    """Read a plan.

    Raises
    ------
    CorruptArtifactError
        Files are missing, damaged, or written by a newer release.
    """
    try:
        document = _Document.model_validate_json(files[PLAN])
        if document.schema_number != SCHEMA:
            raise ValueError(f"schema number {document.schema_number}")
        dictionaries = _read_dictionaries(files[CATEGORIES])
        schema = schema_from_text(document.input_schema)
    except (KeyError, ValidationError, pa.ArrowException, ValueError) as error:
        raise CorruptArtifactError(
            "the files are not a feature plan that this release reads", on=PLAN, expected=f"schema number {SCHEMA}",
            found=f"{type(error).__name__}: {error}", remedy="Load it with the release that wrote it, or train again",
        ) from error  # fmt: skip
    return Stored(
        input_schema=schema,
        steps=document.steps,
        dictionaries=dictionaries,
        objects={name: data for name, data in files.items() if name.endswith(".skops")},
        sparse=document.sparse,
        density=document.density,
        domains=document.domains,
    )


def _write_dictionaries(dictionaries: Mapping[str, pa.Array]) -> bytes:
    """An Arrow file of one row: column by key, each value a list of the categories."""
    lists = [pa.ListArray.from_arrays(pa.array([0, len(v)], pa.int32()), v) for v in dictionaries.values()]
    batch = pa.RecordBatch.from_arrays(lists, names=list(dictionaries))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def _read_dictionaries(data: bytes) -> dict[str, pa.Array]:
    with pa.ipc.open_file(pa.py_buffer(data)) as reader:
        batch = reader.get_batch(0)
    return {name: batch.column(place).flatten() for place, name in enumerate(batch.schema.names)}
