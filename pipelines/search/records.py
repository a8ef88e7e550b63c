"""The trials of a search as small create-only records on the object store, and read again.

Layout below the search's folder::

    trials/NNNNNN/asked.json   a trial's parameters, before it begins
    trials/NNNNNN/told.json    what it has come to, once it has ended
    models/NNNNNN/…            the model of a trial that may be the best, and summary.json of its training
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pipelines.codec import canonical, dump, load
from pipelines.errors import CorruptArtifactError, ObjectNotFoundError
from pipelines.evaluation import ModelRef
from pipelines.model import Model, load_model, save_model
from pipelines.storage import ObjectStore, create_once

State = Literal["running", "complete", "pruned", "failed"]


@dataclass(frozen=True)
class Asked:
    """A trial that has begun: its parameters."""

    number: int
    params: dict[str, Any]
    schema: int = 1


@dataclass(frozen=True)
class Trial:
    """A trial as far as it has come.

    Attributes
    ----------
    value : float or None
        The metric on validation, of complete trials.
    steps : tuple of (step, value)
        What the pruner saw on the way, in the direction of the search.
    notes : dict
        What the pruner has noted about it.
    seconds : float
    error : str
        Why it failed; `cause` is the error's class.
    attempts : int
        How often it was tried: infrastructure may fail once.
    model : str
        Digest of the model, of complete trials.
    """

    number: int
    params: dict[str, Any]
    state: State = "running"
    value: float | None = None
    steps: tuple[tuple[int, float], ...] = ()
    notes: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    error: str = ""
    cause: str = ""
    attempts: int = 1
    model: str = ""
    schema: int = 1


class Trials:
    """Reads and writes a search's records. The driver is the only writer."""

    def __init__(self, store: ObjectStore, folder: str) -> None:
        self._store, self._folder = store, folder

    def read(self) -> list[Trial]:
        """Read all trials, by number; those that have not ended are ``running``."""
        names = {"asked.json": {}, "told.json": {}}  # type: dict[str, dict[int, str]]
        for info in list(self._store.list(f"{self._folder}/trials")):
            number, name = info.key.split("/")[-2:]
            names.get(name, {})[int(number)] = info.key
        asked = {number: load(Asked, self._store.get(key)) for number, key in names["asked.json"].items()}
        told = {number: load(Trial, self._store.get(key)) for number, key in names["told.json"].items()}
        return [told.get(number) or Trial(number, asked[number].params) for number in sorted({*asked, *told})]

    def ask(self, number: int, params: dict[str, Any]) -> None:
        """Note that a trial begins."""
        self._create(f"{self._trial(number)}/asked.json", dump(Asked(number, params)))

    def tell(self, trial: Trial) -> None:
        """Note what a trial has come to; the last of its records."""
        self._create(f"{self._trial(trial.number)}/told.json", dump(trial))

    def save_model(self, number: int, model: Model, summary: dict[str, Any]) -> ModelRef:
        """Keep a trial's model, and what its training says about itself."""
        prefix = self._model(number)
        self._store.replace(f"{prefix}/summary.json", json.dumps(summary, sort_keys=True, default=float).encode())
        return ModelRef(self._store.url, prefix, save_model(model, self._store, prefix))

    def load_model(self, trial: Trial) -> tuple[Model, dict[str, Any]]:
        """Load a complete trial's model, and what its training said about itself.

        Raises
        ------
        CorruptArtifactError
            They are not there any more.
        """
        prefix = self._model(trial.number)
        try:
            summary: dict[str, Any] = json.loads(self._store.get(f"{prefix}/summary.json"))
            return load_model(self._store.url, prefix, trial.model), summary
        except ObjectNotFoundError as error:
            where = f"{self._store.url}/{prefix}"
            remedy = "Run the spec again: a search that has ended can't be mended."
            raise CorruptArtifactError("the best trial's model is gone", on=where, remedy=remedy) from error

    def drop_models(self, numbers: Sequence[int]) -> None:
        """Remove models that are not the best."""
        for number in numbers:
            for info in list(self._store.list(self._model(number))):
                self._store.delete(info.key)

    def _trial(self, number: int) -> str:
        return f"{self._folder}/trials/{number:06d}"

    def _model(self, number: int) -> str:
        return f"{self._folder}/models/{number:06d}"

    def _create(self, key: str, data: bytes) -> None:
        if not create_once(self._store, key, data):
            raise CorruptArtifactError(
                "a trial's record is there already, with other contents",
                on=f"{self._store.url}/{key}",
                remedy="Does another driver work on this run? Only one may.",
            )


def best_of(trials: Sequence[Trial], *, maximise: bool) -> Trial | None:
    """Find the best complete trial; of equal ones the first."""
    complete = [trial for trial in trials if trial.state == "complete" and trial.value is not None]
    return min(complete, key=lambda t: ((-1 if maximise else 1) * (t.value or 0.0), t.number), default=None)


def plain(trials: Sequence[Trial]) -> bytes:
    """Write trials as JSON."""
    return canonical([json.loads(dump(trial)) for trial in trials])
