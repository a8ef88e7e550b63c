"""Whether a model reaches what the spec requires, and whether it is better than another."""

from __future__ import annotations

from pipelines.evaluation.catalogue import is_better, metric
from pipelines.evaluation.config import EvaluateConfig, parse_bound
from pipelines.evaluation.result import Comparison, Evaluation, GateResult, Part


def check_gates(config: EvaluateConfig, evaluation: Evaluation) -> tuple[GateResult, ...]:
    """Hold every requirement of the config against an evaluation, in the order of the spec.

    A metric that was not measured, or is undefined on that part, does not meet its requirement.
    """
    return tuple(
        _gate(name, part, bound, evaluation)
        for name, bounds in config.require.items()
        for part, bound in bounds.items()
    )


def compare(
    candidate: Evaluation, champion: Evaluation, name: str, *, part: Part = "test", min_improvement: float = 0.0
) -> Comparison:
    """Say whether a candidate is better than a champion by a metric, in the metric's own direction.

    It is better when it improves at all and by at least `min_improvement`. Evaluations of other rows, of another kind
    of label or without the metric are not compared: the result says why, and is not better.
    """
    entry = metric(name)
    ours, theirs = candidate.value(entry.name, part), champion.value(entry.name, part)
    refused = _refusal(candidate, champion, entry.name, part)
    if refused or ours is None or theirs is None:
        return Comparison(entry.name, part, ours, theirs, None, min_improvement, False, refused)
    gain = is_better(entry, ours, theirs)
    return Comparison(entry.name, part, ours, theirs, gain, min_improvement, gain > 0 and gain >= min_improvement)


def _gate(name: str, part: Part, bound: str, evaluation: Evaluation) -> GateResult:
    measured = evaluation.value(name, part)
    reason = "" if measured is not None else _why_missing(evaluation, name, part)
    return GateResult(name, part, bound, measured, parse_bound(bound).met_by(measured), reason)


def _why_missing(evaluation: Evaluation, name: str, part: Part) -> str:
    found = evaluation.parts.get(part)
    if found is None:
        return f"{part} was not evaluated"
    return found.measures.undefined.get(name, "not measured")


def _refusal(candidate: Evaluation, champion: Evaluation, name: str, part: Part) -> str:
    if candidate.kind != champion.kind:
        return f"the candidate predicts a {candidate.kind} label, the champion a {champion.kind} one"
    if candidate.kind != "regression" and candidate.classes != champion.classes:
        return f"the candidate's classes are {list(candidate.classes)}, the champion's {list(champion.classes)}"
    for who, evaluation in (("candidate", candidate), ("champion", champion)):
        if evaluation.value(name, part) is None:
            return f"the {who} has no {name} on {part}: {_why_missing(evaluation, name, part)}"
    ours, theirs = candidate.parts[part], champion.parts[part]
    if ours.rows_digest != theirs.rows_digest:
        return (
            f"they were evaluated on different rows of {part} "
            f"({ours.measures.rows} and {theirs.measures.rows}); evaluate the champion on the candidate's data"
        )
    return ""
