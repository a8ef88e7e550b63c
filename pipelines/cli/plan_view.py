"""A plan as people read it."""

from __future__ import annotations

from pipelines.cli.output import duration, say, show_table, size
from pipelines.plan import Plan
from pipelines.plan.value import PlannedSearch


def show_plan(plan: Plan) -> None:
    """Print a plan: data, shards, stages with cache hits, memory against limits."""
    data, shards = plan.data, plan.shards
    say(f"pipeline   {plan.pipeline}")
    say(f"data       {data.root}: {data.rows:,} rows in {data.files:,} files, {data.row_groups:,} row groups")
    if (data.files_before, data.row_groups_before) != (data.files, data.row_groups):
        say(
            f"pruned     {data.files_before:,} → {data.files:,} files, "
            f"{data.row_groups_before:,} → {data.row_groups:,} row groups"
        )
    say(
        f"shards     {shards.count:,} of {shards.rows_min:,}–{shards.rows_max:,} rows, "
        f"{size(shards.bytes_min)}–{size(shards.bytes_max)}"
    )
    say(f"ranks      {plan.ranks} × {plan.threads} thread{'s' if plan.threads > 1 else ''}{_bounds(plan)}")
    if plan.search is not None:
        _show_search(plan.search)
    for drift in data.drift:
        say(f"drift      {drift}")
    for skipped in data.skipped:
        say(f"skipped    {skipped}")
    say()
    show_table(
        "", ("stage", "needs", "cached", "why"), [(s.name, ", ".join(s.needs), s.cached, s.why) for s in plan.stages]
    )
    say()
    rows = [(m.stage, size(m.predicted_bytes), size(m.limit_bytes), m.data, m.basis) for m in plan.memory]
    show_table("memory per worker", ("stage", "predicted", "limit", "training data", "basis"), rows)


def _bounds(plan: Plan) -> str:
    """Say what the training does when ranks are lost or workers come."""
    if plan.search is not None:
        return ""  # a lost trial is made again, with the workers that are there
    if plan.least is None:
        return "; losing one ends the training, which goes on from its checkpoint when resumed"
    grows = f", grows to {plan.most}" if plan.most > plan.ranks else ""
    least = f"{plan.least} or more" if plan.least < plan.ranks else f"no fewer than {plan.least}"
    return f" at the start{grows}; after losses it goes on with {least}"


def _show_search(search: PlannedSearch) -> None:
    limit = f" within {duration(search.timeout_s)}" if search.timeout_s is not None else ""
    aim = f", to {search.direction} {search.metric} on validation" if search.metric else ""
    pruner = f", pruner {search.pruner}" if search.pruner != "none" else ""
    say(f"search     {search.trials:,} trials{limit}{aim}; sampler {search.sampler}{pruner}")
    if search.parallel > 1:
        say(f"           {search.parallel} at a time, {search.ranks} rank{'s' if search.ranks > 1 else ''} each")
    for name, values in search.space.items():
        say(f"           {name}: {values}")
