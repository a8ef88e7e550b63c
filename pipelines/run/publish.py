"""The last stage: gates, the new version, and whether it becomes the champion."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any

from cluster import describe_environment
from pipelines.errors import GateNotMetError
from pipelines.evaluation import Evaluation, ModelRef, check_gates, evaluate
from pipelines.model import golden_rows, save_model
from pipelines.registry import GitState, Lineage, ModelVersion, Registry, lineage_of, promote_by
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
    alias = f"{config.model}@{config.alias}"
    if not promotion.promoted:
        notice(f"{version.ref} was not promoted to {alias}: {promotion.reason}")
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


def _lineage(work: Work) -> Lineage:
    compiled, fitted = work.compiled, work.fitted()
    environment = describe_environment()
    libraries = dict(environment.packages)
    return lineage_of(
        compiled.dataset,
        compiled.source,
        work.split(),
        dict(compiled.plan.spec),
        rows=dict(fitted.rows),
        dropped=dict(fitted.dropped),
        code_digest=compiled.plan.code_digest,
        git=git_state(),
        environment={"python": environment.python, "platform": environment.platform, **libraries},
        seed=compiled.spec.train.random_state,
        run_id=work.folder.run_id,
        checkpoint=work.folder.checkpoint_url,
    )


def git_state() -> GitState | None:
    """The working tree that the run was started from; None where there is none, or no git."""

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(["git", *arguments], capture_output=True, text=True, timeout=10, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit, changes = git("rev-parse", "HEAD"), git("status", "--porcelain")
    return None if commit is None else GitState(commit, bool(changes))
