"""Does a new version become the champion? The spec's `publish:` decides, on the same test rows for both."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pipelines.codec import to_plain
from pipelines.errors import AliasMovedError, CorruptArtifactError, DataError, UsageError, UserCodeError
from pipelines.evaluation import Comparison, Evaluation, compare
from pipelines.registry.config import PublishConfig
from pipelines.registry.contamination import seen_test_rows
from pipelines.registry.lineage import Lineage
from pipelines.registry.records import AliasEntry, ModelVersion
from pipelines.registry.registry import Registry

log = logging.getLogger(__name__)

Outcome = Literal["never", "always", "first", "better", "not_better", "contaminated", "incomparable", "same"]
EvaluateChampion = Callable[[ModelVersion], Evaluation]
"""Evaluates a published version on the very rows that the candidate was evaluated on."""

_RACES = 20


@dataclass(frozen=True)
class Promotion:
    """What was decided about a new version, and why.

    Attributes
    ----------
    outcome : str
        Promoted: ``always``, ``first`` (there was none), ``better``, ``same`` (the alias means it already).
        Not promoted: ``never``, ``not_better``, ``contaminated`` (the champion may have seen the test rows),
        ``incomparable``.
    comparison : Comparison, optional
    entry : AliasEntry, optional
        What was appended to the alias's log.
    """

    promoted: bool
    outcome: Outcome
    reason: str
    comparison: Comparison | None = None
    entry: AliasEntry | None = None


def promote_by(
    registry: Registry,
    config: PublishConfig,
    version: ModelVersion,
    *,
    evaluation: Evaluation,
    lineage: Lineage,
    evaluate_champion: EvaluateChampion,
    metric: str,
    who: str | None = None,
) -> Promotion:
    """Decide by the spec whether an alias moves to `version`, and record the decision, refusals too.

    When somebody else moves the alias in between, the decision is taken again against the new champion.

    Parameters
    ----------
    registry : Registry
    config : PublishConfig
    version : ModelVersion
        The candidate, just published.
    evaluation : Evaluation
        The candidate's.
    lineage : Lineage
        The candidate's.
    evaluate_champion : callable
        Called with the champion only when it has not seen the candidate's test rows.
    metric : str
        What is compared where the config names none.
    who : str, optional
    """
    if config.promote == "never":
        return Promotion(False, "never", "the spec says promote: never")
    if config.promote == "always":
        entry = registry.promote(
            version.name, version.version, config.alias, who=who, why="the spec says promote: always"
        )
        return Promotion(True, "always", entry.why, entry=entry)
    judged: dict[int, Promotion] = {}
    for _ in range(_RACES):
        champion = registry.current(version.name, config.alias)
        if champion is not None and champion.version == version.version:
            return Promotion(True, "same", "the alias means this version already")
        if (taken := _taken_before(registry, config, version)) is not None:
            return taken
        number = 0 if champion is None else champion.version
        if number not in judged:
            judged[number] = _judge(registry, config, champion, evaluation, lineage, evaluate_champion, metric)
        try:
            return _record(registry, config, version, champion, judged[number], who)
        except AliasMovedError as error:
            log.info("decide again on %s: %s", version.ref, error)
    raise AliasMovedError(f"the alias moved {_RACES} times while it was decided", on=f"{version.name}@{config.alias}")


def _taken_before(registry: Registry, config: PublishConfig, version: ModelVersion) -> Promotion | None:
    """The refusal of this very version, if it is the newest entry: a resumed run does not judge again."""
    entry = registry.newest_entry(version.name, config.alias)
    if entry is None or entry.action != "refuse" or entry.candidate != version.version:
        return None
    return Promotion(False, entry.evidence["outcome"], entry.why, entry=entry)


def _judge(
    registry: Registry,
    config: PublishConfig,
    champion: ModelVersion | None,
    evaluation: Evaluation,
    lineage: Lineage,
    evaluate_champion: EvaluateChampion,
    metric: str,
) -> Promotion:
    if champion is None:
        return Promotion(True, "first", "there was no champion")
    try:
        verdict = seen_test_rows(lineage, registry.lineage(champion))
        if not verdict.clean:
            return Promotion(False, "contaminated", f"{champion.ref} may have seen the test rows: {verdict.reason}")
        theirs = evaluate_champion(champion)
    except (CorruptArtifactError, DataError, UsageError, UserCodeError) as error:
        return Promotion(False, "incomparable", f"{champion.ref} can't be evaluated on this data: {error}")
    found = compare(evaluation, theirs, config.metric or metric, min_improvement=config.min_improvement)
    if found.refused:
        return Promotion(False, "incomparable", found.refused, found)
    outcome: Outcome = "better" if found.better else "not_better"
    return Promotion(found.better, outcome, _in_words(found, champion), found)


def _in_words(found: Comparison, champion: ModelVersion) -> str:
    verb = "better" if found.better else "not better"
    needed = f", needed {found.min_improvement:g}" if found.min_improvement else ""
    return (
        f"{verb} than {champion.ref}: {found.metric} on {found.part} {found.candidate:.6g} against "
        f"{found.champion:.6g} (improvement {found.improvement:.3g}{needed})"
    )


def _record(
    registry: Registry,
    config: PublishConfig,
    version: ModelVersion,
    champion: ModelVersion | None,
    judged: Promotion,
    who: str | None,
) -> Promotion:
    expected = None if champion is None else champion.version
    evidence = {"outcome": judged.outcome} | ({"comparison": to_plain(judged.comparison)} if judged.comparison else {})
    if judged.promoted:
        entry = registry.promote(
            version.name,
            version.version,
            config.alias,
            who=who,
            why=judged.reason,
            guarded=True,
            expected=expected,
            evidence=evidence,
        )
    else:
        entry = registry.refuse(
            version.name,
            version.version,
            config.alias,
            who=who,
            why=judged.reason,
            expected=expected,
            evidence=evidence,
        )
    return Promotion(judged.promoted, judged.outcome, judged.reason, judged.comparison, entry)
