"""What the registry stores: version records and alias entries, as JSON with a schema number."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, TypeVar

from pipelines.codec import dump, load
from pipelines.errors import CorruptArtifactError, UsageError

SCHEMA = 1

Action = Literal["promote", "rollback", "refuse"]

R = TypeVar("R", "ModelVersion", "AliasEntry")


@dataclass(frozen=True)
class Artifact:
    """Bytes of a version, stored once under their SHA-256."""

    sha256: str
    size: int

    @property
    def key(self) -> str:
        """Where they lie in the registry's store."""
        return f"artifacts/sha256/{self.sha256}"


@dataclass(frozen=True)
class ModelVersion:
    """A published version; nothing of it ever changes.

    Attributes
    ----------
    name : str
    version : int
        Counts from 1 without gaps.
    created : datetime
    created_by : str
    run_id : str
        The run that published it; empty outside of runs.
    kind, model_digest, python_only
        Of the model.
    inputs, outputs : dict of str to str
        Signature: Arrow types by column.
    artifacts : dict of str to Artifact
        By path: ``model/…``, ``golden/…``, ``lineage.json``, ``evaluation.json``.
    metrics : dict of dict
        Metrics by part of the split; undefined ones are None.
    origin : dict
        The lineage in short: digests, root, rows, commit.
    parent : str, optional
    write_id : str
        Random: tells who wrote the record.
    """

    name: str
    version: int
    created: datetime
    created_by: str
    run_id: str
    kind: str
    model_digest: str
    python_only: bool
    inputs: dict[str, str]
    outputs: dict[str, str]
    artifacts: dict[str, Artifact]
    metrics: dict[str, dict[str, float | None]] = field(default_factory=dict)
    origin: dict[str, Any] = field(default_factory=dict)
    parent: str | None = None
    notes: str = ""
    write_id: str = ""
    schema: int = SCHEMA

    @property
    def ref(self) -> str:
        """``name/number``."""
        return f"{self.name}/{self.version}"


@dataclass(frozen=True)
class AliasEntry:
    """One entry of an alias's log. The newest one's `version` is what the alias means.

    Attributes
    ----------
    number : int
        Counts from 1 without gaps.
    action : {"promote", "rollback", "refuse"}
        A refused promotion changes nothing and is kept: its `version` is `previous`, its `candidate` the one refused.
    version, previous : int or None
        What the alias means from here on, and what it meant before; None before its first promotion.
    candidate : int or None
    who : str
    when : datetime
    why : str
    evidence : dict
        The comparison behind an automatic decision.
    """

    name: str
    alias: str
    number: int
    action: Action
    version: int | None
    previous: int | None
    who: str
    when: datetime
    why: str = ""
    candidate: int | None = None
    evidence: dict[str, Any] = field(default_factory=dict)
    write_id: str = ""
    schema: int = SCHEMA


def encode(record: ModelVersion | AliasEntry) -> bytes:
    """Write a record as it is stored."""
    return dump(record)


def decode(kind: type[R], data: bytes, on: str) -> R:
    """Read a stored record.

    Raises
    ------
    UsageError
        It was written by a newer version of this package.
    CorruptArtifactError
        It can't be read.
    """
    try:
        schema = int(json.loads(data)["schema"])
        if schema > SCHEMA:
            raise UsageError(
                "the record was written by a newer version of mutirao",
                on=on,
                expected=f"schema ≤ {SCHEMA}",
                found=str(schema),
                remedy="Upgrade mutirao here.",
            )
        return load(kind, data)
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptArtifactError("the record can't be read", on=on, found=str(error)[:300]) from error
