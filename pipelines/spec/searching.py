"""Can a spec's search be made as it is written? Names, values and combinations of its space, metric and split."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple, cast

from pydantic import ValidationError

from pipelines.config import Config
from pipelines.errors import Fault, MutiraoError, SpecError
from pipelines.evaluation.catalogue import Kind, metric, names_for
from pipelines.spec.document import Document, Path
from pipelines.spec.faults import model_of
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
    examples = list(tune.examples())
    met: dict[_Complaint, list[dict[str, Any]]] = {}
    for found in examples:
        for complaint in _complaints(train.for_trial(found), estimator):
            met.setdefault(complaint, []).append(found)
    for complaint, with_these in met.items():
        name = complaint.path[-1]
        if name in tune.space:
            path, where = (*_PATH, "space", name), f" ({name}: {with_these[0][name]})"
        elif name in train.params or len(with_these) == len(examples):
            path, where = complaint.path, ""
        else:
            written = ", ".join(f"{key}: {value}" for key, value in with_these[0].items())
            path, where = (*_PATH, "space"), f" ({written})"
        fix = complaint.fix or f"See the parameters of {train.estimator}"
        among = "; every combination of the space must be allowed" if len(with_these) < len(examples) else ""
        yield Fault(document.place(path), f"{complaint.message}{where}", fix + among)


class _Complaint(NamedTuple):
    """What an estimator has against a plain training."""

    path: Path
    message: str
    fix: str = ""


def _complaints(config: TrainConfig, estimator: Estimator) -> list[_Complaint]:
    try:
        estimator.check(config)
    except ValidationError as error:
        items = error.errors(include_url=False, include_context=False)
        return [_Complaint(("train", "params", *item["loc"][:1]), *_told(item, model_of(error))) for item in items]
    except SpecError as error:
        return [_Complaint(tuple(fault.path.split(".")), fault.message, fault.fix) for fault in error.faults]
    except (ValueError, MutiraoError) as error:
        return [_Complaint(("train",), str(error))]
    return []


def _told(item: Any, model: type[Config]) -> tuple[str, str]:
    """What one of pydantic's errors says, and the fix if there is one."""
    if item["type"] == "extra_forbidden":
        near = get_close_matches(str(item["loc"][-1]), list(model.model_fields), n=1, cutoff=0.5)
        return "the estimator has no such parameter", f"Did you mean {near[0]}?" if near else ""
    message = str(item["msg"]).removeprefix("Value error, ")
    return message[:1].lower() + message[1:] if message[1:2].islower() else message, ""
