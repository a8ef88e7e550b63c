"""The spec's `publish:` decides on the champion: on the same rows, never on rows that the champion has seen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from pipelines.errors import CorruptArtifactError, DataError, StorageError, UsageError, UserCodeError
from pipelines.evaluation import Evaluation
from pipelines.registry import ModelVersion, Promotion, PublishConfig, Registry, promote_by


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry.open(str(tmp_path / "registry"))


IF_BETTER = PublishConfig(model="flights", promote="if_better")


class Champion:
    """Evaluates champions with a given AUC, on the same rows, and counts."""

    def __init__(self, auc: float, rows: str = "same rows") -> None:
        self.auc, self.rows, self.asked = auc, rows, []

    def __call__(self, version: ModelVersion) -> Evaluation:
        self.asked.append(version.version)
        made = Evaluation("binary", "digest", {}, classes=(False, True))
        template = self.template.parts["test"]
        measures = replace(template.measures, metrics={"auc": self.auc, "log_loss": 1 - self.auc})
        return replace(made, parts={"test": replace(template, measures=measures, rows_digest=self.rows)})

    template: Evaluation


def publish_and_decide(
    registry: Registry, made: Any, config: PublishConfig = IF_BETTER, champion: Any = None, metric: str = "auc"
) -> tuple[ModelVersion, Promotion]:
    Champion.template = made.evaluation
    version = registry.publish("flights", made.model, **made.arguments())
    promotion = promote_by(
        registry,
        config,
        version,
        evaluation=made.evaluation,
        lineage=made.lineage,
        evaluate_champion=champion or Champion(0.6),
        metric=metric,
        who="run",
    )
    return version, promotion


def test_the_first_version_becomes_the_champion(registry: Registry, trained: Any) -> None:
    champion = Champion(0.6)
    version, promotion = publish_and_decide(registry, trained(), champion=champion)
    assert (promotion.promoted, promotion.outcome, champion.asked) == (True, "first", [])
    assert registry.get("flights") == version


@pytest.mark.parametrize(
    ("config", "theirs", "metric", "outcome"),
    [
        (IF_BETTER, 0.69, "auc", "better"),
        (IF_BETTER, 0.70, "auc", "not_better"),
        (IF_BETTER, 0.71, "auc", "not_better"),
        (IF_BETTER, 0.69, "log_loss", "better"),
        (IF_BETTER, 0.71, "log_loss", "not_better"),
        (IF_BETTER.model_copy(update={"metric": "log_loss"}), 0.69, "auc", "better"),
        (IF_BETTER.model_copy(update={"min_improvement": 0.02}), 0.69, "auc", "not_better"),
        (IF_BETTER.model_copy(update={"min_improvement": 0.005}), 0.69, "auc", "better"),
    ],
)
def test_a_version_is_promoted_if_it_is_better(
    registry: Registry, trained: Any, config: PublishConfig, theirs: float, metric: str, outcome: str
) -> None:
    publish_and_decide(registry, trained(0.1))
    version, promotion = publish_and_decide(registry, trained(0.2, auc=0.7), config, Champion(theirs), metric)
    assert promotion.outcome == outcome
    assert promotion.promoted is (outcome == "better")
    entry = registry.history("flights")[0]
    assert entry == promotion.entry
    assert entry.action == ("promote" if outcome == "better" else "refuse")
    assert entry.evidence["comparison"]["candidate"] == version.metrics["test"][entry.evidence["comparison"]["metric"]]
    assert registry.get("flights").version == (2 if outcome == "better" else 1)
    assert "flights/1" in entry.why


def test_a_champion_that_has_seen_the_rows_is_not_even_evaluated(registry: Registry, trained: Any) -> None:
    first = trained(0.1)
    publish_and_decide(registry, first)
    champion = Champion(0.1)
    other_split = replace(first.lineage.split, seed=first.lineage.split.seed + 1)
    _, promotion = publish_and_decide(registry, trained(0.2, split=other_split), champion=champion)
    assert (promotion.promoted, promotion.outcome, champion.asked) == (False, "contaminated", [])
    entry = registry.history("flights")[0]
    assert (entry.action, entry.candidate, entry.version) == ("refuse", 2, 1)
    assert entry.evidence == {"outcome": "contaminated"}
    assert "flights/1 may have seen the test rows" in entry.why
    assert registry.get("flights").version == 1


def test_evaluations_of_other_rows_are_not_compared(registry: Registry, trained: Any) -> None:
    publish_and_decide(registry, trained(0.1))
    _, promotion = publish_and_decide(registry, trained(0.2), champion=Champion(0.1, rows="others"))
    assert (promotion.promoted, promotion.outcome) == (False, "incomparable")
    assert "different rows" in promotion.reason


@pytest.mark.parametrize("kind", [DataError, UsageError, UserCodeError, CorruptArtifactError])
def test_a_champion_that_can_not_be_evaluated_here_stays(registry: Registry, trained: Any, kind: Any) -> None:
    def fail(version: ModelVersion) -> Evaluation:
        raise kind("the data lacks columns that the model reads: humidity")

    publish_and_decide(registry, trained(0.1))
    _, promotion = publish_and_decide(registry, trained(0.2), champion=fail)
    assert (promotion.promoted, promotion.outcome) == (False, "incomparable")
    assert "humidity" in promotion.reason


def test_a_store_that_fails_decides_nothing(registry: Registry, trained: Any) -> None:
    def fail(version: ModelVersion) -> Evaluation:
        raise StorageError("no answer")

    publish_and_decide(registry, trained(0.1))
    with pytest.raises(StorageError):
        publish_and_decide(registry, trained(0.2), champion=fail)
    assert len(registry.history("flights")) == 1


def test_never_and_always(registry: Registry, trained: Any) -> None:
    never = PublishConfig(model="flights", promote="never")
    _, promotion = publish_and_decide(registry, trained(0.1), never)
    assert (promotion.outcome, promotion.entry) == ("never", None)
    assert registry.aliases("flights") == {}
    always = PublishConfig(model="flights", promote="always", alias="latest")
    assert publish_and_decide(registry, trained(0.2), always)[1].outcome == "always"
    assert registry.aliases("flights") == {"latest": 2}


def test_a_resumed_run_finds_its_decision_taken(registry: Registry, trained: Any) -> None:
    made = trained(run_id="run-1")
    publish_and_decide(registry, made)
    _, promotion = publish_and_decide(registry, made)
    assert (promotion.promoted, promotion.outcome) == (True, "same")
    assert len(registry.history("flights")) == 1


def test_a_resumed_run_finds_its_refusal_too(registry: Registry, trained: Any) -> None:
    publish_and_decide(registry, trained(0.1, run_id="run-0"))
    made = trained(0.2, run_id="run-1")
    _, refused = publish_and_decide(registry, made, champion=Champion(0.9))
    champion = Champion(0.1)
    _, again = publish_and_decide(registry, made, champion=champion)
    assert (again.promoted, again.outcome, again.entry) == (False, "not_better", refused.entry)
    assert champion.asked == []


def test_who_loses_a_race_decides_again_against_the_new_champion(registry: Registry, trained: Any) -> None:
    """Two runs beat the old champion; the worse of them, being later, must not replace the better one."""
    publish_and_decide(registry, trained(0.1))
    publish_and_decide(registry, trained(0.2), PublishConfig(model="flights", promote="never"))

    class Overtaken(Champion):
        def __call__(self, version: ModelVersion) -> Evaluation:
            found = super().__call__(version)
            if version.version == 1:
                registry.promote("flights", 2)  # the other run is faster
                return found
            self.auc = 0.9
            return super().__call__(version)

    champion = Overtaken(0.6)
    _, promotion = publish_and_decide(registry, trained(0.3, auc=0.7), champion=champion)
    assert (promotion.promoted, promotion.outcome) == (False, "not_better")
    assert champion.asked[:2] == [1, 2]
    assert registry.get("flights").version == 2
    assert [entry.action for entry in registry.history("flights")] == ["refuse", "promote", "promote"]


@pytest.mark.parametrize(
    "wrong",
    [{"model": "7"}, {"model": "a/b"}, {"promote": "sometimes"}, {"alias": ""}, {"min_improvement": -1}, {"x": 1}],
)
def test_a_config_that_can_not_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        PublishConfig.model_validate({"model": "flights"} | wrong)
