"""Resumable weights of parameter servers on an object store, in parts: no process ever holds all of them.

A checkpoint is some parts, and a commit record that names them with their digests and is written last; it also holds
the account (`served_ledger`) between the same two updates. Parts are written to the worker's disk while updates wait,
and stored after they go on. Keys descend (10^10 - update), so that the first listed is the newest.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np

from pipelines.codec import digest, dump, load
from pipelines.errors import CorruptArtifactError, MutiraoError, ObjectNotFoundError
from pipelines.storage import open_store
from pipelines.training.gang.context import Array
from pipelines.training.strategies.parameter_server.layout import Layout

logger = logging.getLogger(__name__)

PART_BYTES = 64 << 20
_FIRST = 10**10
_SCHEMA = 1

Piece = tuple[int, Array, Array]
"""A shard, keys in it, and their rows, as `Client.snapshot` yields and `Client.restore` takes them."""


@dataclass(frozen=True)
class Part:
    """An object that holds some of the rows."""

    key: str
    digest: str
    size: int


@dataclass(frozen=True)
class Saved:
    """A commit record: the updates before the snapshot, the account, and the parts."""

    schema_number: int
    update: int
    account: dict[str, Any]
    parts: tuple[Part, ...]


class ServedCheckpoints:
    """The checkpoints of one training.

    Parameters
    ----------
    url : str
    identity : str
        Digest of what the training's course hangs on.
    keep : int
    """

    def __init__(self, url: str, identity: str, keep: int) -> None:
        self._store, self._keep, self._prefix = open_store(url), keep, f"served-{identity[:24]}"

    def latest(self) -> Saved | None:
        """Return the newest record whose parts are all there, in their sizes; others are passed over with a warning."""
        sizes = {info.key: info.size for info in self._store.list(f"{self._prefix}/parts")}
        for info in list(self._store.list(f"{self._prefix}/commits")):
            try:
                saved = load(Saved, self._store.get(info.key))
            except (ValueError, ObjectNotFoundError) as error:
                logger.warning("checkpoint %s can't be read and is passed over: %s", info.key, error)
                continue
            if all(sizes.get(part.key) == part.size for part in saved.parts):
                return saved
            logger.warning("checkpoint %s has lost some of its parts and is passed over", info.key)
        return None

    def save(self, update: int, account: dict[str, Any], files: Iterable[Path]) -> None:
        """Store parts, the record last, then remove all but the newest; the files are removed on the way.

        Raises
        ------
        StorageError
            Earlier checkpoints are untouched.
        """
        files, name = list(files), f"{_FIRST - update:011d}"
        folder, parts = f"{self._prefix}/parts/{name}-{secrets.token_hex(4)}", []
        for number, path in enumerate(files):
            data = path.read_bytes()
            path.unlink()
            key = f"{folder}/{number:05d}"
            self._store.replace(key, data)
            parts.append(Part(key, digest(data), len(data)))
        for emptied in {path.parent for path in files}:
            emptied.rmdir()
        self._store.replace(f"{self._prefix}/commits/{name}.json", dump(Saved(_SCHEMA, update, account, tuple(parts))))
        self._collect(folder)

    def pieces(self, saved: Saved, layout: Layout, scratch: Path) -> Iterator[Piece]:
        """Yield a checkpoint's rows for servers of any number, one part in memory at a time.

        Raises
        ------
        CorruptArtifactError
            A part is not what was saved.
        """
        for part in saved.parts:
            path = scratch / "part"
            self._store.get_to_file(part.key, path)
            if digest(path.read_bytes()) != part.digest:
                raise CorruptArtifactError(
                    "a part of a checkpoint is not what was saved",
                    on=f"{self._store.url}/{part.key}",
                    expected=part.digest,
                    remedy="Remove this checkpoint's record under commits/, to go on from the one before.",
                )
            for places, rows in _read(path):
                cuts = layout.cut(places)
                for shard, first in enumerate(layout.bounds[:-1]):
                    own = slice(cuts[shard], cuts[shard + 1])
                    if own.start < own.stop:
                        yield shard, places[own] - first, rows[own]
            path.unlink()

    def _collect(self, newest: str) -> None:
        """Remove old records, and then the parts that no record names; what fails now is done next time."""
        try:
            kept = {newest}
            for number, info in enumerate(list(self._store.list(f"{self._prefix}/commits"))):
                if number >= self._keep:
                    self._store.delete(info.key)
                    continue
                with suppress(ValueError, ObjectNotFoundError):
                    kept |= {part.key.rsplit("/", 1)[0] for part in load(Saved, self._store.get(info.key)).parts}
            for info in list(self._store.list(f"{self._prefix}/parts")):
                if info.key.rsplit("/", 1)[0] not in kept:
                    self._store.delete(info.key)
        except MutiraoError as error:
            logger.warning("old checkpoints under %s/%s were not removed: %s", self._store.url, self._prefix, error)


def spill(pieces: Iterable[Piece], layout: Layout, scratch: Path) -> list[Path]:
    """Write a snapshot to files of about `PART_BYTES` in a new folder of `scratch`; returns them."""
    folder = Path(mkdtemp(prefix="snapshot.", dir=scratch))
    files: list[Path] = []
    size = PART_BYTES
    for shard, keys, rows in pieces:
        if size >= PART_BYTES:
            files.append(folder / f"{len(files):05d}")
            size = 0
        with files[-1].open("ab") as file:
            np.save(file, (keys.astype(np.int64) + layout.bounds[shard]).astype(np.int32), allow_pickle=False)
            np.save(file, rows, allow_pickle=False)
            size = file.tell()
    return files


def _read(path: Path) -> Iterator[tuple[Array, Array]]:
    end = path.stat().st_size
    with path.open("rb") as file:
        while file.tell() < end:
            places = np.load(file, allow_pickle=False)
            yield places, np.load(file, allow_pickle=False)
