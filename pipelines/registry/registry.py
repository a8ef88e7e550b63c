"""Model versions and aliases on plain object storage, without a server."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from pipelines.codec import load
from pipelines.errors import CorruptArtifactError, NotFoundError, ObjectNotFoundError
from pipelines.evaluation import Evaluation
from pipelines.model import Golden, Model
from pipelines.registry import aliases as alias_log
from pipelines.registry.artifacts import missing_artifacts, read_artifact
from pipelines.registry.lineage import Lineage
from pipelines.registry.log import newest, record_key, records
from pipelines.registry.names import CHAMPION, Ref, check_name, parse_ref
from pipelines.registry.publishing import Publication, load_golden, load_stored, publish, versions_folder
from pipelines.registry.records import AliasEntry, Artifact, ModelVersion, decode
from pipelines.registry.verifying import Verification, verify
from pipelines.storage import ObjectStore, absolute_url, open_store

_AT_ONCE = 16


@dataclass(frozen=True)
class ModelSummary:
    """A model in a list: its newest version, and what its aliases mean."""

    name: str
    newest: ModelVersion
    aliases: dict[str, int]


@dataclass(frozen=True)
class Registry:
    """The models at one URL. Cheap to open, picklable, safe for any number of writers and readers.

    Parameters
    ----------
    store : ObjectStore
    clock : callable
        Tells the time that records carry.
    """

    store: ObjectStore
    clock: Callable[[], datetime] = field(default=lambda: datetime.now(UTC), repr=False, compare=False)

    @classmethod
    def open(cls, url: str) -> Registry:
        """Open the registry at a path or URL, which the first publication makes."""
        return cls(open_store(absolute_url(url)))

    def __reduce__(self) -> tuple[object, ...]:
        return Registry.open, (self.store.url,)

    @property
    def url(self) -> str:
        """The URL that opens it again."""
        return self.store.url

    # --- versions -----------------------------------------------------------------------------------------------------

    def publish(
        self,
        name: str,
        model: Model,
        *,
        golden: Golden,
        lineage: Lineage,
        evaluation: Evaluation | None = None,
        run_id: str = "",
        notes: str = "",
        who: str | None = None,
    ) -> ModelVersion:
        """Publish a model as the next version of `name`.

        Its artifacts are stored, read back and verified, and the loaded model predicts the golden rows, before the
        version is there for anybody. May be tried again: the same run's same model gets the version that it has.

        Raises
        ------
        GoldenRowsError
            The model predicts something else once it is loaded back.
        CorruptArtifactError
            The store gave back other bytes.
        StorageError
            The store can't be reached or written. After an `UnreachableStoreError` the version may be there.
        """
        when = self.clock()
        check_name("model", name)
        run_id = run_id or lineage.run_id
        publication = Publication(name, model, golden, lineage, evaluation, run_id, notes, who or this_user(), when)
        return publish(self.store, publication)

    def models(self) -> tuple[ModelSummary, ...]:
        """List the models, by name."""
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return tuple(each for each in pool.map(self._summary, self.store.folders("models")) if each is not None)

    def newest(self, name: str) -> ModelVersion | None:
        """Read the newest version of a model; None when there is none."""
        found = newest(self.store, versions_folder(check_name("model", name)))
        return None if found is None else self._decoded(found[1])

    def versions(self, name: str, limit: int | None = None) -> tuple[ModelVersion, ...]:
        """List the versions of a model, newest first.

        Raises
        ------
        NotFoundError
            There is no such model; the nearest names are in the remedy.
        """
        self._require(name)
        return tuple(self._decoded(data) for _, data in records(self.store, versions_folder(name), limit))

    def get(self, ref: str | Ref) -> ModelVersion:
        """Find the version that a reference names: see `parse_ref`.

        Raises
        ------
        UsageError
            It is no reference.
        NotFoundError
            There is no such model, version or alias; the nearest names are in the remedy.
        """
        ref = parse_ref(ref) if isinstance(ref, str) else ref
        version = self._meaning(ref) if ref.alias is not None else ref.version
        assert version is not None, "a reference has a version or an alias"
        try:
            return self._decoded(self.store.get(record_key(versions_folder(ref.name), version)))
        except ObjectNotFoundError:
            last = self._require(ref.name)
            raise NotFoundError(
                f"there is no version {version}", on=ref.name, remedy=f"The newest is {last.ref}."
            ) from None

    # --- what belongs to a version ------------------------------------------------------------------------------------

    def load(self, ref: str | Ref | ModelVersion) -> Model:
        """Load a version's model from verified bytes. The last few are kept in this process.

        Raises
        ------
        NotFoundError, UsageError
            See `get`.
        CorruptArtifactError
            Bytes are missing, or are not those that were published.
        """
        version = self._version(ref)
        return _load(self.url, tuple(version.artifacts.items()))

    def golden(self, ref: str | Ref | ModelVersion) -> Golden:
        """Load a version's golden rows."""
        return load_golden(self.store, self._version(ref).artifacts)

    def lineage(self, ref: str | Ref | ModelVersion) -> Lineage:
        """Load a version's whole lineage."""
        return load(Lineage, self.artifact(ref, "lineage.json"))

    def evaluation(self, ref: str | Ref | ModelVersion) -> Evaluation | None:
        """Load a version's evaluation; None when it was published without one."""
        version = self._version(ref)
        stored = "evaluation.json" in version.artifacts
        return load(Evaluation, self.artifact(version, "evaluation.json")) if stored else None

    def artifact(self, ref: str | Ref | ModelVersion, path: str) -> bytes:
        """Read the verified bytes of one artifact, by its path in the version."""
        version = self._version(ref)
        if path not in version.artifacts:
            raise NotFoundError.among("artifact", path, list(version.artifacts), on=version.ref)
        return read_artifact(self.store, path, version.artifacts[path])

    def verify(self, ref: str | Ref | ModelVersion, *, deep: bool = False) -> Verification:
        """Check a version: that its artifacts are there with their sizes, or (deep) every byte and every golden row."""
        return verify(self.store, self._version(ref), deep=deep)

    # --- aliases ------------------------------------------------------------------------------------------------------

    def aliases(self, name: str) -> dict[str, int]:
        """Return what the aliases of a model mean now, by their names."""
        names = self.store.folders(alias_log.aliases_folder(check_name("model", name)))
        found = {alias: alias_log.current_entry(self.store, name, alias) for alias in names}
        return {alias: entry.version for alias, entry in found.items() if entry is not None and entry.version}

    def current(self, name: str, alias: str = CHAMPION) -> ModelVersion | None:
        """Read the version that an alias means; None when it means none yet."""
        entry = self.newest_entry(name, alias)
        return None if entry is None or entry.version is None else self.get(Ref(name, version=entry.version))

    def newest_entry(self, name: str, alias: str = CHAMPION) -> AliasEntry | None:
        """Read the newest entry of an alias's log; None when nothing has happened to it."""
        return alias_log.current_entry(self.store, check_name("model", name), check_name("alias", alias))

    def promote(
        self,
        name: str,
        version: int,
        alias: str = CHAMPION,
        *,
        who: str | None = None,
        why: str = "",
        expected: int | None = None,
        guarded: bool = False,
        evidence: dict[str, Any] | None = None,
    ) -> AliasEntry:
        """Make an alias mean a version, and record who did it, when and why.

        Parameters
        ----------
        name : str
        version : int
        alias : str
        who : str, optional
            By default the user and host of this process.
        why : str
        expected, guarded
            With `guarded` the alias moves only if it still means version `expected` (None: nothing yet).
        evidence : dict, optional
            Plain JSON values that an automatic decision rests on.

        Returns
        -------
        AliasEntry
            The new entry; the newest one when the alias means that version already.

        Raises
        ------
        NotFoundError
            There is no such model or version.
        CorruptArtifactError
            Artifacts of the version are missing.
        AliasMovedError
            The alias means something else than `expected`.
        """
        chosen = self.get(Ref(check_name("model", name), version=version))
        problems = missing_artifacts(self.store, chosen.artifacts)
        if problems:
            raise CorruptArtifactError(f"can't be promoted: {'; '.join(problems)}", on=chosen.ref)
        wish = alias_log.Move(
            name=name,
            alias=check_name("alias", alias),
            action="promote",
            version=version,
            who=who or this_user(),
            when=self.clock(),
            why=why,
            guarded=guarded,
            expected=expected,
            evidence=evidence or {},
        )
        return alias_log.move(self.store, wish)

    def refuse(
        self,
        name: str,
        version: int,
        alias: str = CHAMPION,
        *,
        why: str,
        who: str | None = None,
        expected: int | None = None,
        evidence: dict[str, Any] | None = None,
    ) -> AliasEntry:
        """Record that a version was not promoted, and why; the alias stays with version `expected`.

        Raises
        ------
        AliasMovedError
            The alias means something else than `expected`.
        """
        wish = alias_log.Move(
            name=check_name("model", name),
            alias=check_name("alias", alias),
            action="refuse",
            version=version,
            who=who or this_user(),
            when=self.clock(),
            why=why,
            guarded=True,
            expected=expected,
            evidence=evidence or {},
        )
        return alias_log.move(self.store, wish)

    def rollback(
        self, name: str, alias: str = CHAMPION, *, to: int | None = None, who: str | None = None, why: str = ""
    ) -> AliasEntry:
        """Set an alias back to the version promoted before, or to an earlier one that it has meant.

        Raises
        ------
        UsageError, NotFoundError
            There is nothing to go back to; the alias has never meant `to`.
        AliasMovedError
            Somebody else moved the alias at the same time.
        """
        log = self.history(name, alias)
        target = alias_log.rollback_target(log, f"{name}@{alias}", to)
        wish = alias_log.Move(
            name=name,
            alias=alias,
            action="rollback",
            version=target,
            who=who or this_user(),
            when=self.clock(),
            why=why,
            guarded=True,
            expected=log[0].version,
        )
        return alias_log.move(self.store, wish)

    def history(self, name: str, alias: str = CHAMPION) -> tuple[AliasEntry, ...]:
        """List everything that happened to an alias, newest first.

        Raises
        ------
        NotFoundError
            There is no such model or alias.
        """
        log = alias_log.entries(self.store, check_name("model", name), check_name("alias", alias))
        if not log:
            self._meaning(Ref(name, alias=alias))
        return log

    # --- within -------------------------------------------------------------------------------------------------------

    def _summary(self, name: str) -> ModelSummary | None:
        newest = self.newest(name)
        return None if newest is None else ModelSummary(name, newest, self.aliases(name))

    def _version(self, ref: str | Ref | ModelVersion) -> ModelVersion:
        return ref if isinstance(ref, ModelVersion) else self.get(ref)

    def _decoded(self, data: bytes) -> ModelVersion:
        return decode(ModelVersion, data, self.store.url)

    def _require(self, name: str) -> ModelVersion:
        """Read the newest version of a model that must exist."""
        found = self.newest(name)
        if found is None:
            raise NotFoundError.among("model", name, [each.name for each in self.models()], on=self.url)
        return found

    def _meaning(self, ref: Ref) -> int:
        assert ref.alias is not None
        entry = alias_log.current_entry(self.store, ref.name, ref.alias)
        if entry is not None and entry.version is not None:
            return entry.version
        last, known = self._require(ref.name), self.aliases(ref.name)
        error = NotFoundError.among("alias", ref.alias, list(known), on=ref.name)
        remedy = f"{error.remedy} The newest version is {last.ref}; `mutirao model promote` sets an alias."
        raise NotFoundError(error.what, on=error.on, remedy=remedy)


@lru_cache(maxsize=4)
def _load(url: str, artifacts: tuple[tuple[str, Artifact], ...]) -> Model:
    """Load a model, which is immutable, once for the shards that a worker scores."""
    return load_stored(open_store(url), dict(artifacts))


def this_user() -> str:
    """Return who runs this process, ``user@host``."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # no entry in the user database, as in many containers
        user = "unknown"
    return f"{user}@{socket.gethostname()}"
