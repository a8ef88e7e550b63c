"""``mutirao run`` and ``mutirao plan``."""

from __future__ import annotations

import sys
from typing import Any

import click

from pipelines.cli.follow import follow
from pipelines.cli.output import cell, duration, guarded, json_option, moment, say, show_json, show_table
from pipelines.cli.plan_view import show_plan
from pipelines.cli.training_view import show_training
from pipelines.cli.trials_view import show_trials
from pipelines.codec import to_plain
from pipelines.data.split import PARTS
from pipelines.errors import DataError
from pipelines.run import Pipeline, RunHandle, RunRecord, attach, list_runs, resumes_by_itself
from pipelines.spec import find_places

runs_option = click.option("--runs", metavar="URL", help="The runs' store; default: as the settings say.")


class SpecGroup(click.Group):
    """A group whose first word may also be a spec: ``mutirao run SPEC`` beside ``mutirao run list``."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Take what is no subcommand for the arguments of ``start``."""
        if args and args[0] not in self.commands:
            return "start", self.commands["start"], args
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Let options of ``start`` stand before the spec, too."""
        if args and args[0].startswith("-") and args[0] not in ("--help", "-h"):
            args = ["start", *args]
        return super().parse_args(ctx, args)


@click.command()
@click.argument("spec")
@json_option
@guarded
def plan(spec: str, as_json: bool) -> None:
    """Check SPEC against its data and show what a run would do; nothing runs.

    \b
    Example:
        mutirao plan data_samples/flights_logistic.yaml
    """
    made = Pipeline(spec).plan(progress=None if as_json else _footers)
    if as_json:
        show_json(to_plain(made))
    else:
        show_plan(made)


@click.group(cls=SpecGroup, subcommand_metavar="SPEC | COMMAND [ARGS]...")
def run() -> None:
    """Run SPEC from its data to a published version, or look after runs.

    \b
    Examples:
        mutirao run data_samples/flights_logistic.yaml
        mutirao run list
        mutirao run resume RUN
    """


@run.command(hidden=True)
@click.argument("spec")
@click.option("--detach", is_flag=True, help="Return as soon as the driver runs.")
@click.option("--chaos", metavar="FAULTS", help="Inject faults into the training: 'kill=2, stop=1, slow=1:3x, seed=7'.")
@json_option
@guarded
def start(spec: str, detach: bool, chaos: str | None, as_json: bool) -> None:
    """Run SPEC and follow it. Ctrl-C stops the run, which can be resumed.

    \b
    Example:
        mutirao run data_samples/flights_logistic.yaml
        mutirao run data_samples/flights_logistic.yaml --chaos 'kill=2, stop=1, slow=1:3x, worker=1, driver=1, seed=7'
    """
    handle = Pipeline(spec).start(chaos=chaos, progress=None if as_json else _footers)
    if detach:
        if as_json:
            show_json({"run_id": handle.run_id, "runs": handle.runs})
        else:
            say(f"run {handle.run_id} goes on by itself; follow it: mutirao run attach {handle.run_id}")
        return
    _follow_to_end(handle, as_json=as_json, stop_on_interrupt=True)


@run.command()
@click.argument("run_id", metavar="RUN")
@runs_option
@json_option
@guarded
def resume(run_id: str, runs: str | None, as_json: bool) -> None:
    """Go on with RUN where it stopped, inside a training too, and follow it.

    \b
    Example:
        mutirao run resume late-flights-20260131-101500-3fa2
    """
    _follow_to_end(attach(run_id, runs).resume(), as_json=as_json, stop_on_interrupt=True)


@run.command(name="attach")
@click.argument("run_id", metavar="RUN")
@runs_option
@json_option
@guarded
def attach_command(run_id: str, runs: str | None, as_json: bool) -> None:
    """Follow RUN from anywhere. Ctrl-C leaves it running.

    \b
    Example:
        mutirao run attach late-flights-20260131-101500-3fa2
    """
    _follow_to_end(attach(run_id, runs), as_json=as_json, stop_on_interrupt=False)


@run.command()
@click.argument("run_id", metavar="RUN")
@click.option("--grace", default=60.0, show_default=True, help="Seconds to save the state in.")
@runs_option
@json_option
@guarded
def cancel(run_id: str, grace: float, runs: str | None, as_json: bool) -> None:
    """Stop RUN: it saves its state, ends its cluster, and can be resumed.

    \b
    Example:
        mutirao run cancel late-flights-20260131-101500-3fa2
    """
    record = attach(run_id, runs).cancel(grace_s=grace)
    if as_json:
        show_json(to_plain(record))
    else:
        say(f"run {run_id}: {record.status}")


@run.command(name="list")
@click.option("--limit", default=20, show_default=True, help="How many, newest first.")
@runs_option
@json_option
@guarded
def list_command(limit: int, runs: str | None, as_json: bool) -> None:
    """List runs, newest first.

    \b
    Example:
        mutirao run list --limit 5
    """
    records = list_runs(runs, limit=limit)
    if as_json:
        show_json([to_plain(record) for record in records])
        return
    if not records:
        say(f"no runs in {runs or find_places().runs}")
        return
    rows = [(r.run_id, r.status, moment(r.created), _took(r), r.version) for r in records]
    show_table("", ("run", "status", "started (UTC)", "took", "version"), rows)


@run.command()
@click.argument("run_id", metavar="RUN")
@click.option("--logs", is_flag=True, help="Print the end of the driver's log, too.")
@click.option("--checks", is_flag=True, help="Print what was found in the rows, too.")
@runs_option
@json_option
@guarded
def show(run_id: str, logs: bool, checks: bool, runs: str | None, as_json: bool) -> None:
    """Show what RUN has come to: stages, metrics, version, error.

    \b
    Example:
        mutirao run show late-flights-20260131-101500-3fa2
    """
    handle = attach(run_id, runs)
    record = handle.record()
    if as_json:
        extra = ({"logs": handle.logs()} if logs else {}) | ({"checks": handle.checks()} if checks else {})
        show_json(to_plain(record) | extra)
        return
    say(f"run        {record.run_id}\nstatus     {record.status}\nstarted    {moment(record.created)} UTC")
    say(f"attempts   {record.attempts}\nversion    {cell(record.version)}\n")
    rows = [(s.name, s.status, duration(s.seconds), _flat(s.summary)) for s in record.stages]
    show_table("", ("stage", "status", "took", "result"), rows)
    show_metrics(record)
    show_training(record)
    show_trials(record)
    for notice in record.notices:
        say(f"! {notice}")
    if record.error:
        say(f"\nerror: {record.error['message']}")
    if checks:
        for part, found in handle.checks().items():
            say()
            show_table(part, _CHECKED, [_check(name, column) for name, column in found["columns"].items()])
    if logs:
        say("\n" + handle.logs())


_CHECKED = ("column", "nulls", "distinct", "min", "max", "mean", "most frequent")


def _check(name: str, column: dict[str, Any]) -> tuple[Any, ...]:
    top = ", ".join(str(value) for value, _ in column.get("top", [])[:3])
    distinct = column.get("distinct")
    about = f"~{distinct:,}" if column.get("distinct_error") else distinct
    return (name, column.get("nulls"), about, *[column.get(key) for key in ("min", "max", "mean")], top)


def show_metrics(record: RunRecord) -> None:
    """Print a run's metrics, a column per part of the split."""
    parts = sorted(record.metrics, key=PARTS.index)
    names = list(dict.fromkeys(name for part in parts for name in record.metrics[part]))
    if names:
        say()
        rows = [(name, *[record.metrics[part].get(name) for part in parts]) for name in names]
        show_table("", ("metric", *parts), rows)


def _follow_to_end(handle: RunHandle, *, as_json: bool, stop_on_interrupt: bool) -> None:
    record = RunRecord(handle.run_id, handle.pipeline)
    if not as_json:
        click.echo(f"run {handle.run_id}", err=True)
    try:
        record = follow(record, handle.events(), quiet=as_json)
        if resumes_by_itself(record):
            click.echo("! the driver was killed, as was asked for: the run is resumed", err=True)
            fresh, last = RunRecord(handle.run_id, handle.pipeline), record.attempts
            record = follow(fresh, handle.resume().events(), quiet=as_json, since=last)
    except KeyboardInterrupt:
        if not stop_on_interrupt:
            click.echo(f"\nrun {handle.run_id} goes on", err=True)
            sys.exit(130)
        click.echo("\nstopping: the run saves its state …", err=True)
        record = handle.cancel()
    if as_json:
        show_json(to_plain(record))
    else:
        _conclude(record)
    sys.exit(record.exit_code if record.ended_run else 5)


def _conclude(record: RunRecord) -> None:
    show_metrics(record)
    if record.error:
        click.echo(f"error: {record.error['message']}", err=True)
    if record.exit_code == DataError.exit_code:
        click.echo(f"mend the data, then: mutirao run resume {record.run_id}; or the spec, and run that", err=True)
    elif record.status in ("interrupted", "preempted", "failed"):
        click.echo(f"go on with: mutirao run resume {record.run_id}", err=True)
    if record.version:
        say(f"\nversion {record.version}")
        name, _, number = record.version.partition("/")
        say(f"next: mutirao model show {name}/{number}   mutirao predict {name}/{number} INPUT OUTPUT")


def _took(record: RunRecord) -> str:
    return duration(record.ended - record.created) if record.ended else "–"


def _flat(summary: Any) -> str:
    pairs = ((k, v) for k, v in dict(summary).items() if isinstance(v, str | int | float) and len(str(v)) <= 40)
    return ", ".join(f"{key} {cell(value)}" for key, value in pairs)


def _footers(done: int, total: int) -> None:
    if total > 500 and (done % 500 == 0 or done == total):
        click.echo(f"\rfooters {done:,}/{total:,}", nl=done == total, err=True)
