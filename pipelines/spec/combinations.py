"""Combinations of keys that are right on their own and can't work together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from pipelines.errors import Fault, NotFoundError, UserCodeError
from pipelines.spec.document import Document
from pipelines.spec.faults import faults_of, model_of
from pipelines.spec.pipeline import BUILT_IN_STAGES, StageConfig
from pipelines.spec.searching import search_faults
from pipelines.training.estimators.registry import learns_several, resolve


def impossible(sections: Mapping[str, Any], document: Document) -> list[Fault]:
    """Find the impossible combinations among the sections that are valid on their own.

    Parameters
    ----------
    sections : mapping of str
        Sections of a spec by key; those that are invalid are left out.
    document : Document
        Where the spec was read from, to name places.
    """
    return [
        *_label_among_features(sections, document),
        *_estimator(sections, document),
        *_workers(sections, document),
        *_publishing(sections, document),
        *_stages(sections.get("stages") or (), document),
    ]


def _label_among_features(sections: Mapping[str, Any], document: Document) -> Iterator[Fault]:
    label, features = sections.get("label"), sections.get("features") or ()
    weight = getattr(sections.get("train"), "sample_weight", None)
    for i, feature in enumerate(features):
        for j, column in enumerate(feature.columns):
            place = document.place(("features", i, "columns", j))
            if label is not None and column in label.columns:
                yield Fault(place, f"{column!r} is the label", "A model that sees its label learns nothing: remove it")
            if column == weight:
                yield Fault(place, f"{column!r} is the sample weight", "Remove it here, or in train.sample_weight")
    if label is not None and weight in label.columns:
        yield Fault(document.place(("train", "sample_weight")), f"{weight!r} is the label", "Name another column")


def _estimator(sections: Mapping[str, Any], document: Document) -> Iterator[Fault]:
    train = sections.get("train")
    if train is None:
        return
    place = document.place(("train", "estimator"))
    try:
        estimator = resolve(train.estimator)
    except NotFoundError as error:
        yield Fault(place, error.what, error.remedy)
        return
    except UserCodeError as error:
        # a class of the user's own `code:` is importable only where that is unpacked: the run checks it there
        if not sections.get("code"):
            yield Fault(place, error.what, error.remedy)
        return
    if train.tune is not None:
        yield from search_faults(sections, estimator, document)
    try:
        if train.tune is None:  # else its parameters are not complete
            estimator.check(train)
    except ValidationError as error:
        yield from faults_of(error, document, model_of(error), under=("train", "params"))
    except ValueError as error:
        yield Fault(document.place(("train",)), str(error), f"See the parameters of {train.estimator}")
    except UserCodeError as error:
        if not sections.get("code"):
            yield Fault(place, error.what, error.remedy)
    if getattr(sections.get("label"), "others", ()) and not learns_several(estimator):
        yield Fault(place, f"{train.estimator} learns one label", "Name one column, or use linear_regression")
    kind = getattr(sections.get("label"), "kind", "auto")
    if kind != "auto" and kind not in estimator.label_kinds:
        learns = " or ".join(estimator.label_kinds)
        message = f"{train.estimator} learns {learns} labels, and label.kind is {kind}"
        yield Fault(place, message, "Change one of them")


def _workers(sections: Mapping[str, Any], document: Document) -> Iterator[Fault]:
    train, cluster = sections.get("train"), sections.get("cluster")
    if train is not None and cluster is not None and train.min_workers > cluster.highest:
        message = f"the training needs {train.min_workers} workers, and the cluster has at most {cluster.highest}"
        fix = "Lower it, or raise cluster.workers or cluster.max_workers"
        yield Fault(document.place(("train", "min_workers")), message, fix)


def _publishing(sections: Mapping[str, Any], document: Document) -> Iterator[Fault]:
    publish, split, evaluate = sections.get("publish"), sections.get("split"), sections.get("evaluate")
    shares = {} if split is None else {"validation": split.validation, "test": split.test}
    if publish is not None and publish.promote == "if_better" and shares.get("test") == 0:
        place = document.place(("publish", "promote"))
        yield Fault(place, "if_better compares on the test rows, and split.test is 0", "Set split.test, or promote")
    for metric, parts in {} if evaluate is None else evaluate.require.items():
        for part in parts:
            if shares.get(part) == 0:
                place = document.place(("evaluate", "require", metric))
                yield Fault(place, f"it is required on {part} rows, and split.{part} is 0", f"Set split.{part}")
    if evaluate is not None and shares.get("validation") == 0:
        if evaluate.calibrate != "none":
            place = document.place(("evaluate", "calibrate"))
            yield Fault(place, "curves are fitted on the validation rows, and split.validation is 0", "Set it")
        if isinstance(evaluate.threshold, str):
            place = document.place(("evaluate", "threshold"))
            yield Fault(place, "it is chosen on the validation rows, and split.validation is 0", "Set it")


def _stages(stages: Sequence[StageConfig], document: Document) -> Iterator[Fault]:
    names = [stage.name for stage in stages]
    known = [*BUILT_IN_STAGES, *names]
    for i, stage in enumerate(stages):
        if names.index(stage.name) != i:
            yield Fault(document.place(("stages", i, "name")), f"{stage.name!r} is a stage already", "Rename one")
        for j, need in enumerate(stage.needs):
            place = document.place(("stages", i, "needs", j))
            if need not in known:
                error = NotFoundError.among("stage", need, known)
                yield Fault(place, error.what, error.remedy)
            elif need == "publish":
                yield Fault(place, "nothing runs after publish", "Need evaluate instead: it has the final model")
    for circle in _circles({stage.name: stage.needs for stage in stages}):
        place = document.place(("stages",))
        yield Fault(place, f"stages need each other in a circle: {' → '.join(circle)}", "Remove one of these needs")


def _circles(needs: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """Find one circle, if there is any, by walking the needs depth first."""
    done: set[str] = set()

    def walk(name: str, trail: list[str]) -> list[str] | None:
        if name in trail:
            return [*trail[trail.index(name) :], name]
        if name in done:
            return None
        for need in needs.get(name, ()):
            found = walk(need, [*trail, name])
            if found:
                return found
        done.add(name)
        return None

    for name in needs:
        circle = walk(name, [])
        if circle:
            return [circle]
    return []
