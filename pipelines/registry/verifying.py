"""Is a version what it was when it was published?"""

from __future__ import annotations

from dataclasses import dataclass

from pipelines.errors import CorruptArtifactError, MutiraoError
from pipelines.registry.artifacts import missing_artifacts, read_artifact
from pipelines.registry.publishing import load_golden, load_stored
from pipelines.registry.records import ModelVersion
from pipelines.storage import ObjectStore


@dataclass(frozen=True)
class Verification:
    """What a check of a version found; `problems` name the artifacts."""

    ref: str
    deep: bool
    checked: int
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


def verify(store: ObjectStore, version: ModelVersion, *, deep: bool) -> Verification:
    """Check a version's artifacts; all that is wrong is reported, nothing raised but a store that fails.

    Quick: presence and size. Deep: SHA-256 of every artifact, then the model is loaded and predicts its golden rows.
    """
    if not deep:
        return Verification(version.ref, False, len(version.artifacts), missing_artifacts(store, version.artifacts))
    problems = []
    for path, artifact in version.artifacts.items():
        try:
            read_artifact(store, path, artifact)
        except CorruptArtifactError as error:
            problems.append(str(error))
    if not problems:
        problems = _predictions(store, version)
    return Verification(version.ref, True, len(version.artifacts), tuple(problems))


def _predictions(store: ObjectStore, version: ModelVersion) -> list[str]:
    try:
        model = load_stored(store, version.artifacts)
        load_golden(store, version.artifacts).check(model)
    except MutiraoError as error:
        return [f"{version.ref}: {error}"]
    found = model.digest
    return [] if found == version.model_digest else [f"{version.ref}: the model's digest is {found}"]
