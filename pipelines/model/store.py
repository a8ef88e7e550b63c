"""Models on an object store: content-addressed files, a manifest last, verified when read."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

from pipelines import codec
from pipelines.errors import CorruptArtifactError, ObjectExistsError
from pipelines.model.model import Model
from pipelines.storage import ObjectStore, open_store

_CACHED = 4  # models kept per process: a worker scores many shards with one or two


@dataclass(frozen=True)
class ModelManifest:
    """Which files a stored model has: path within the model → SHA-256 of its bytes."""

    files: dict[str, str]
    schema: int = 1


def save_model(model: Model, store: ObjectStore, prefix: str) -> str:
    """Store a model under `prefix`; whoever reads sees the old model or the new one, never a mix.

    Files are content-addressed, so saving the same model again writes nothing twice; may be tried again.

    Returns
    -------
    str
        The model's digest, which `load_model` verifies.
    """
    files = model.files()
    manifest = ModelManifest({path: codec.digest(data) for path, data in files.items()})
    for path, data in files.items():
        try:
            store.create(f"{prefix}/files/{manifest.files[path]}", data)
        except ObjectExistsError:
            continue  # a key says its content, and objects are complete or absent
    store.replace(f"{prefix}/manifest.json", codec.dump(manifest))
    return model.digest


def load_model(store_url: str, prefix: str, digest: str | None = None) -> Model:
    """Load and verify a model; the last few are kept per process, by digest.

    Parameters
    ----------
    store_url : str
        As `open_store` takes it.
    prefix : str
        Where `save_model` put it.
    digest : str, optional
        What `save_model` returned; a model with another digest is refused.

    Raises
    ------
    ObjectNotFoundError
        There is no model there.
    CorruptArtifactError
        Its bytes are not those that were stored.
    """
    if digest is not None and (cached := _cache.get(digest)) is not None:
        return cached
    where = f"{store_url.rstrip('/')}/{prefix}"
    store = open_store(store_url)
    manifest = _manifest(store.get(f"{prefix}/manifest.json"), where)
    found = codec.digest(codec.canonical(manifest.files))
    if digest is not None and found != digest:
        raise CorruptArtifactError("the model is not the one that was recorded", on=where, expected=digest, found=found)
    if (cached := _cache.get(found)) is not None:
        return cached
    model = Model.from_files({path: _verified(store, prefix, sha, path) for path, sha in manifest.files.items()})
    _cache.put(found, model)
    return model


def _manifest(data: bytes, where: str) -> ModelManifest:
    try:
        return codec.load(ModelManifest, data)
    except ValueError as error:
        raise CorruptArtifactError("manifest.json can't be read", on=where, found=str(error)) from error


def _verified(store: ObjectStore, prefix: str, sha: str, path: str) -> bytes:
    data = store.get(f"{prefix}/files/{sha}")
    if (found := codec.digest(data)) != sha:
        raise CorruptArtifactError(
            f"the model's {path} has other bytes than were stored",
            on=f"{store.url.rstrip('/')}/{prefix}/files/{sha}",
            expected=sha,
            found=found,
            remedy="Restore the object from a replica, or train again.",
        )
    return data


class _Cache:
    """The last few models by digest, behind a lock."""

    def __init__(self, size: int) -> None:
        self._size, self._models, self._lock = size, OrderedDict[str, Model](), threading.Lock()

    def get(self, digest: str) -> Model | None:
        with self._lock:
            if digest in self._models:
                self._models.move_to_end(digest)
            return self._models.get(digest)

    def put(self, digest: str, model: Model) -> None:
        with self._lock:
            self._models[digest] = model
            while len(self._models) > self._size:
                self._models.popitem(last=False)


_cache = _Cache(_CACHED)
