"""Content-addressed bytes: stored once under their SHA-256, and verified whenever they are read."""

from __future__ import annotations

from collections.abc import Mapping

from pipelines.codec import digest
from pipelines.errors import CorruptArtifactError, ObjectNotFoundError
from pipelines.registry.records import Artifact
from pipelines.storage import ObjectStore, create_once

_RESTORE = "Restore the object from a replica or a backup, or publish the version again from its run."


def store_artifact(store: ObjectStore, data: bytes) -> Artifact:
    """Store bytes, unless they are there already.

    Raises
    ------
    CorruptArtifactError
        There are other bytes under their digest.
    """
    artifact = Artifact(digest(data), len(data))
    if not create_once(store, artifact.key, data):
        raise CorruptArtifactError(
            "the artifact has other bytes than its name says", on=f"{store.url}/{artifact.key}", remedy=_RESTORE
        )
    return artifact


def read_artifact(store: ObjectStore, path: str, artifact: Artifact) -> bytes:
    """Read the bytes of an artifact; `path` is what the version calls them, for messages.

    Raises
    ------
    CorruptArtifactError
        They are gone, or are not the bytes that were stored.
    """
    on = f"{store.url}/{artifact.key}"
    try:
        data = store.get(artifact.key)
    except ObjectNotFoundError:
        raise CorruptArtifactError(f"the artifact {path} is missing", on=on, remedy=_RESTORE) from None
    if (found := digest(data)) != artifact.sha256:
        raise CorruptArtifactError(
            f"the artifact {path} has other bytes than were stored",
            on=on,
            expected=f"{artifact.sha256} ({artifact.size} bytes)",
            found=f"{found} ({len(data)} bytes)",
            remedy=_RESTORE,
        )
    return data


def read_folder(store: ObjectStore, artifacts: Mapping[str, Artifact], folder: str) -> dict[str, bytes]:
    """Read all artifacts of a version below a folder of its paths, by the rest of their path."""
    chosen = {path: artifact for path, artifact in artifacts.items() if path.startswith(f"{folder}/")}
    return {path[len(folder) + 1 :]: read_artifact(store, path, artifact) for path, artifact in chosen.items()}


def missing_artifacts(store: ObjectStore, artifacts: Mapping[str, Artifact]) -> tuple[str, ...]:
    """Look whether all artifacts are there with their sizes, without reading them; return what is wrong."""
    problems = []
    for path, artifact in artifacts.items():
        found = store.head(artifact.key)
        if found is None:
            problems.append(f"{path}: {artifact.key} is missing")
        elif found.size != artifact.size:
            problems.append(f"{path}: {artifact.key} has {found.size} bytes instead of {artifact.size}")
    return tuple(problems)
