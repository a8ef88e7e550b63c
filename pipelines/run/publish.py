"""The last stage: gates, the new version, and whether it becomes the champion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cluster import Environment
from pipelines.codec import load
from pipelines.errors import GateNotMetError
from pipelines.evaluation import Evaluation, ModelRef, check_gates, evaluate
from pipelines.model import golden_rows, save_model
from pipelines.registry import Lineage, ModelVersion, Registry, lineage_of, promote_by
from pipelines.run.stages import Work, promotion_metric, shard_progress


def run_publish(work: Work, notice: Callable[[str], None]) -> dict[str, Any]:
    """Publish the model if it meets the spec's gates, and promote it as the spec says.

    Raises
    ------
    GateNotMetError
        A requirement is not met; nothing was published.
    """
    compiled, evaluation = work.compiled, work.evaluation()
    spec, config = compiled.spec, compiled.spec.publish
    assert config is not None, "the plan has no publish stage without publish: in the spec"
    _require_gates(work, evaluation)
    registry = Registry.open(compiled.plan.registry)
    model, lineage = work.model(), _lineage(work)
    version = registry.publish(
        config.model,
        model,
        golden=golden_rows(model, seed=spec.train.random_state),
        lineage=lineage,
        evaluation=evaluation,
        run_id=work.folder.run_id,
    )
    metric = promotion_metric(work)
    assert metric is not None
    promotion = promote_by(
        registry,
        config,
        version,
        evaluation=evaluation,
        lineage=lineage,
        evaluate_champion=lambda champion: _evaluate_champion(work, registry, champion, metric),
        metric=metric,
    )
    work.folder.drop_champions()
    alias = f"{config.model}@{config.alias}"
    if not promotion.promoted:
        remedy = f"; to promote it all the same: mutirao model promote {version.ref} --alias {config.alias}"
        notice(f"{version.ref} was not promoted to {alias}: {promotion.reason}{remedy}")
    outcome = f"promoted to {alias}" if promotion.promoted else f"not promoted: {promotion.outcome}"
    return {"version": version.ref, "promotion": outcome, "reason": promotion.reason}


def _require_gates(work: Work, evaluation: Evaluation) -> None:
    missed = [gate for gate in check_gates(work.compiled.spec.evaluate, evaluation) if not gate.met]
    if missed:
        raise GateNotMetError(
            "; ".join(
                f"{gate.metric} on {gate.part} is {_number(gate.measured)}, required {gate.bound}"
                + (f" ({gate.reason})" if gate.reason else "")
                for gate in missed
            ),
            on=f"pipeline {work.compiled.spec.name!r}",
            remedy="Nothing was published. Improve the model, or change evaluate.require; all results are cached.",
        )


def _number(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.6g}"


def _evaluate_champion(work: Work, registry: Registry, champion: ModelVersion, metric: str) -> Evaluation:
    """Evaluate the champion on the very rows that the candidate was evaluated on."""
    store, prefix = work.folder.store, f"{work.folder.path}/champion/{champion.version}"
    digest = save_model(registry.load(champion), store, prefix)
    return evaluate(
        ModelRef(store.url, prefix, digest),
        work.evaluation_data(),
        work.compiled.spec.evaluate.model_copy(update={"segments": ()}),
        client=work.client(),
        scratch_url=work.folder.scratch_url,
        parts=("test",),
        also=(metric,),
        on_done=shard_progress(work, "publish"),
    )


def _spec_of_model(work: Work) -> dict[str, Any]:
    """The spec that gives the model: after a search with the parameters that were found, in place of the search."""
    spec = work.compiled.spec
    if spec.train.tune is not None:
        found = work.result("train").summary["search"]["params"]
        spec = spec.model_copy(update={"train": spec.train.for_trial(found)})
    return spec.model_dump(mode="json")


def _lineage(work: Work) -> Lineage:
    compiled, fitted = work.compiled, work.fitted()
    environment = load(Environment, work.read("train", "environment.json"))
    resumed = work.result("train").summary.get("resumed_from")
    return lineage_of(
        compiled.dataset,
        compiled.source,
        work.split(),
        _spec_of_model(work),
        rows=dict(fitted.rows),
        dropped=dict(fitted.dropped),
        code_digest=compiled.plan.code_digest,
        git=compiled.plan.git,
        environment={
            "python": environment.python,
            "platform": environment.platform,
            **dict(environment.packages),
        },
        seed=compiled.spec.train.random_state,
        run_id=work.folder.run_id,
        checkpoint=work.folder.checkpoint_url if resumed else None,
    )
