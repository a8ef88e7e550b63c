"""Can a spec's search be made as it is written? Names, values and combinations of its space, metric and split."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from pydantic import ValidationError

from pipelines.errors import Fault, MutiraoError, SpecError
from pipelines.evaluation.catalogue import Kind, metric, names_for
from pipelines.spec.document import Document, Path
from pipelines.training.config import TrainConfig
from pipelines.training.estimators.registry import ESTIMATORS, Estimator
from pipelines.training.tuning import TuneConfig

_PATH: Path = ("train", "tune")


def search_faults(sections: Mapping[str, Any], estimator: Estimator, document: Document) -> Iterator[Fault]:
    """Find what is wrong with a search whose own keys are valid."""
    train: TrainConfig = sections["train"]
    tune = train.tune
    assert tune is not None
    for name in tune.space:
        if name in train.params:
            place = document.place((*_PATH, "space", name))
            yield Fault(place, f"{name} is also in train.params", "Remove it there: it is searched")
    yield from _metric_faults(tune, sections, estimator, document)
    split = sections.get("split")
    if split is not None and split.validation == 0:
        place = document.place(_PATH)
        yield Fault(place, "trials are judged on the validation rows, and split.validation is 0", "Set it")
    if tune.pruner != "none" and train.estimator not in ESTIMATORS:
        place = document.place((*_PATH, "pruner"))
        yield Fault(place, f"{train.estimator} says nothing on its way that trials could be pruned by", "Leave it out")
    if not any(name in train.params for name in tune.space):
        yield from _value_faults(train, tune, estimator, document)


def _metric_faults(
    tune: TuneConfig, sections: Mapping[str, Any], estimator: Estimator, document: Document
) -> Iterator[Fault]:
    if tune.metric is None:
        return
    place = document.place((*_PATH, "metric"))
    try:
        entry = metric(tune.metric)
    except ValueError as error:
        yield Fault(place, str(error))
        return
    kind = getattr(sections.get("label"), "kind", "auto")
    kinds = cast(tuple[Kind, ...], estimator.label_kinds if kind == "auto" else (kind,))
    if not set(entry.kinds) & set(kinds):
        fix = f"Use one of {', '.join(dict.fromkeys(name for each in kinds for name in names_for(each)))}"
        yield Fault(place, f"{entry.name} is not for a {' or '.join(kinds)} label", fix)


def _value_faults(train: TrainConfig, tune: TuneConfig, estimator: Estimator, document: Document) -> Iterator[Fault]:
    """Let the estimator check combinations of ends, middles and choices; each complaint is told once."""
    told: set[tuple[Path, str]] = set()
    for found in tune.examples():
        for name, message in _complaints(train.for_trial(found), estimator):
            path = (*_PATH, "space", name) if name in tune.space else (*_PATH, "space")
            if name in train.params:
                path = ("train", "params", name)
            if (path, message) in told:
                continue
            told.add((path, message))
            with_it = ", ".join(f"{key}: {value}" for key, value in found.items())
            at = f"{name}: {found[name]}" if name in found else with_it
            fix = f"See the parameters of {train.estimator}; every combination of the space must be allowed"
            yield Fault(document.place(path), f"{message} ({at})", fix)


def _complaints(config: TrainConfig, estimator: Estimator) -> list[tuple[str, str]]:
    """What an estimator has against a plain training: the parameter, if it is one's, and the message."""
    try:
        estimator.check(config)
    except ValidationError as error:
        items = error.errors(include_url=False, include_context=False)
        return [(_name(item), _message(item)) for item in items]
    except SpecError as error:
        return [(fault.path.rpartition(".")[2], fault.message) for fault in error.faults]
    except (ValueError, MutiraoError) as error:
        return [("", str(error))]
    return []


def _name(item: Any) -> str:
    return str(item["loc"][0]) if item["loc"] else ""


def _message(item: Any) -> str:
    if item["type"] == "extra_forbidden":
        return "the estimator has no such parameter"
    message = str(item["msg"]).removeprefix("Value error, ")
    return message[:1].lower() + message[1:] if message[1:2].islower() else message
