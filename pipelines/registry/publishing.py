"""How a model becomes a version: artifacts first, loaded back and checked, the record last."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from pipelines.codec import dump
from pipelines.errors import CorruptArtifactError
from pipelines.evaluation import Evaluation
from pipelines.model import Golden, Model
from pipelines.registry.artifacts import read_folder, store_artifact
from pipelines.registry.lineage import Lineage
from pipelines.registry.log import append, records
from pipelines.registry.records import Artifact, ModelVersion, decode, encode
from pipelines.storage import ObjectStore, require_create_only

log = logging.getLogger(__name__)

_LOOK_BACK = 10


@dataclass(frozen=True)
class Publication:
    """What is published, and by whom."""

    name: str
    model: Model
    golden: Golden
    lineage: Lineage
    evaluation: Evaluation | None
    run_id: str
    notes: str
    who: str
    when: datetime


def versions_folder(name: str) -> str:
    """Return the folder of a model's version records."""
    return f"models/{name}/versions"


def publish(store: ObjectStore, publication: Publication) -> ModelVersion:
    """Publish a version. May be tried again: a run that has published this model already gets that version.

    Nothing is visible before the stored bytes were read back, verified, loaded and predicted the golden rows. A crash
    leaves at most artifacts that no version names.
    """
    again = _published_before(store, publication)
    if again is not None:
        log.info("run %s has published %s before", publication.run_id, again.ref)
        return again
    require_create_only(store)
    artifacts = {path: store_artifact(store, data) for path, data in _files(publication).items()}
    _check_stored(store, artifacts, publication.model.digest)
    draft = _draft(publication, artifacts)

    def build(number: int, _previous: bytes | None) -> bytes:
        return encode(replace(draft, version=number, write_id=uuid.uuid4().hex))

    appended = append(store, versions_folder(publication.name), build)
    assert appended is not None, "build always makes a record"
    version = decode(ModelVersion, appended[1], store.url)
    log.info("published %s: %d artifacts, model %s", version.ref, len(artifacts), version.model_digest[:12])
    return version


def _files(publication: Publication) -> dict[str, bytes]:
    files = {f"model/{path}": data for path, data in publication.model.files().items()}
    files |= {f"golden/{path}": data for path, data in publication.golden.files().items()}
    files["lineage.json"] = dump(publication.lineage)
    if publication.evaluation is not None:
        files["evaluation.json"] = dump(publication.evaluation)
    return files


def _check_stored(store: ObjectStore, artifacts: Mapping[str, Artifact], digest: str) -> None:
    model = load_stored(store, artifacts)
    if model.digest != digest:
        raise CorruptArtifactError(
            "the model is another one after it was loaded back", on=store.url, expected=digest, found=model.digest
        )
    load_golden(store, artifacts).check(model)


def load_stored(store: ObjectStore, artifacts: Mapping[str, Artifact]) -> Model:
    """Load a version's model from its verified artifacts."""
    return Model.from_files(read_folder(store, artifacts, "model"))


def load_golden(store: ObjectStore, artifacts: Mapping[str, Artifact]) -> Golden:
    """Load a version's golden rows from its verified artifacts."""
    return Golden.from_files(read_folder(store, artifacts, "golden"))


def _draft(publication: Publication, artifacts: dict[str, Artifact]) -> ModelVersion:
    model = publication.model
    return ModelVersion(
        name=publication.name,
        version=0,
        created=publication.when,
        created_by=publication.who,
        run_id=publication.run_id,
        kind=model.kind,
        model_digest=model.digest,
        python_only=model.python_only,
        inputs={field.name: str(field.type) for field in model.signature_in},
        outputs={field.name: str(field.type) for field in model.signature_out},
        artifacts=artifacts,
        metrics=_metrics(publication.evaluation),
        origin=_origin(publication.lineage),
        parent=publication.lineage.parent,
        notes=publication.notes,
    )


def _metrics(evaluation: Evaluation | None) -> dict[str, dict[str, float | None]]:
    parts = evaluation.parts.items() if evaluation is not None else ()
    return {name: dict(part.measures.metrics) for name, part in parts}


def _origin(lineage: Lineage) -> dict[str, Any]:
    """The lineage in short, so that a list of versions need not read the whole of it."""
    return {
        "root": lineage.root,
        "files": len(lineage.files),
        "rows": lineage.rows,
        "dropped": lineage.dropped,
        "content_digest": lineage.content_digest,
        "split_digest": lineage.split_digest,
        "test_rows_digest": lineage.test_rows_digest,
        "spec_digest": lineage.spec_digest,
        "code_digest": lineage.code_digest,
        "commit": lineage.git.commit if lineage.git else None,
        "dirty": lineage.git.dirty if lineage.git else None,
        "seed": lineage.seed,
    }


def _published_before(store: ObjectStore, publication: Publication) -> ModelVersion | None:
    """Find this run's version of this model among the newest: a resumed run must not publish twice."""
    if not publication.run_id:
        return None
    for _, data in records(store, versions_folder(publication.name), limit=_LOOK_BACK):
        version = decode(ModelVersion, data, store.url)
        if (version.run_id, version.model_digest) == (publication.run_id, publication.model.digest):
            return version
    return None
