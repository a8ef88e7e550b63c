"""Results of stages by content: what has been computed from the same ingredients is not computed again.

Layout below the runs' store::

    cache/STAGE/KEY/files/SHA256     the result's files
    cache/STAGE/KEY/done.json        names and digests of the files, summary, ingredients; written last, create-only
    cache/latest/PIPELINE/STAGE.json ingredients of the pipeline's last result, to say why a lookup missed
"""

from __future__ import annotations

import hashlib
import json
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from pipelines.codec import canonical
from pipelines.errors import CorruptArtifactError, ObjectExistsError, ObjectNotFoundError
from pipelines.plan.keys import StageKey, explain_difference
from pipelines.storage import ObjectStore

SCHEMA = 1


@dataclass(frozen=True)
class StageResult:
    """A committed result of a stage.

    Attributes
    ----------
    key : str
        Digest of its `StageKey`.
    files : dict
        SHA-256 by file name; `StageCache.read` fetches and verifies them.
    summary : dict
        JSON-able facts that the run's record shows.
    """

    stage: str
    key: str
    files: Mapping[str, str]
    summary: Mapping[str, Any] = field(default_factory=dict)


class StageCache:
    """The stage results on one runs' store. Several runs may use it at once: the first to commit a key wins."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store

    def folder(self, key: StageKey) -> str:
        """Where a key's result lives, for stages that write files of their own there before they commit."""
        return f"cache/{key.stage}/{key.digest}"

    def lookup(self, key: StageKey) -> StageResult | None:
        """Find the committed result of a key."""
        try:
            plain = json.loads(self.store.get(f"{self.folder(key)}/done.json"))
        except ObjectNotFoundError:
            return None
        if plain.get("schema") != SCHEMA:
            return None
        return StageResult(key.stage, key.digest, plain["files"], plain["summary"])

    def commit(
        self, pipeline: str, key: StageKey, files: Mapping[str, bytes], summary: Mapping[str, Any]
    ) -> StageResult:
        """Publish a result; if another run committed the same key meanwhile, theirs is returned."""
        digests = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
        for name, data in files.items():
            path = f"{self.folder(key)}/files/{digests[name]}"
            if self.store.head(path) is None:
                self.store.replace(path, data)
        record = {
            "schema": SCHEMA,
            "files": digests,
            "summary": dict(summary),
            "ingredients": dict(key.ingredients),
            "time": time.time(),
            "write_id": uuid.uuid4().hex,
        }
        with suppress(ObjectExistsError):
            self.store.create(f"{self.folder(key)}/done.json", canonical(record))
        self.remember(pipeline, key)
        result = self.lookup(key)
        if result is None:
            raise CorruptArtifactError(
                "a stage's result vanished right after it was committed",
                on=f"{self.store.url}/{self.folder(key)}",
                remedy="Does something else delete from the runs' store? Run again.",
            )
        return result

    def remember(self, pipeline: str, key: StageKey) -> None:
        """Note a key as the pipeline's latest of its stage."""
        latest = canonical({"schema": SCHEMA, "key": key.digest, "ingredients": dict(key.ingredients)})
        self.store.replace(f"cache/latest/{pipeline}/{key.stage}.json", latest)

    def why_missed(self, pipeline: str, key: StageKey) -> str:
        """Say why there is no result for a key: what changed since the pipeline's last result of this stage."""
        try:
            latest = json.loads(self.store.get(f"cache/latest/{pipeline}/{key.stage}.json"))
        except ObjectNotFoundError:
            return "not computed before"
        if latest["key"] == key.digest:
            return "the last result was removed"
        return explain_difference(latest["ingredients"], json.loads(canonical(dict(key.ingredients))))

    def read(self, key: StageKey, result: StageResult, name: str) -> bytes:
        """Fetch one file of a result and verify it.

        Raises
        ------
        CorruptArtifactError
            The bytes do not have the recorded digest.
        """
        path = f"{self.folder(key)}/files/{result.files[name]}"
        data = self.store.get(path)
        found = hashlib.sha256(data).hexdigest()
        if found != result.files[name]:
            raise CorruptArtifactError(
                f"{name!r} of stage {key.stage!r} is not what was written",
                on=f"{self.store.url}/{path}",
                expected=f"SHA-256 {result.files[name]}",
                found=found,
                remedy="Delete the folder of this key and run again.",
            )
        return data
