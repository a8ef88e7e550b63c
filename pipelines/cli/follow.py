"""A run's events on a terminal: one line per stage, with rate, loss or metric, and time left."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from typing import Any

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table

from pipelines.cli.output import cell, duration
from pipelines.cli.trials_view import describe_trials
from pipelines.run import Event, RunRecord, StageRecord, fold

_MARKS = {"running": "▸", "done": "✓", "cached": "=", "failed": "✗", "interrupted": "‖"}


def follow(record: RunRecord, events: Iterable[Event], *, quiet: bool = False, since: int = 0) -> RunRecord:
    """Show events until they end; returns what the run has come to. Lines of attempts up to `since` are left out.

    A terminal gets lines that update in place; a file or pipe gets a line per change of a stage, on standard error.
    """
    console = Console(stderr=True, highlight=False)
    if quiet:
        return fold(record, events)
    if console.is_terminal:
        with Live(console=console, refresh_per_second=4, transient=False) as live:
            for event in events:
                record = fold(record, [event])
                live.update(_table(record))
        return record
    for event in events:
        record = fold(record, [event])
        line = _line(record, event)
        if line and record.attempts > since:
            click.echo(line, err=True)
            sys.stderr.flush()
    return record


def _table(record: RunRecord) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, expand=False)
    for _ in range(4):
        table.add_column(overflow="fold")
    if record.dashboard:
        table.add_row("", "dashboard", record.dashboard, "")
    for stage in record.stages:
        spent = time.time() - stage.started if stage.status == "running" else stage.seconds
        table.add_row(_MARKS[stage.status], stage.name, describe(stage), duration(spent))
    for notice in record.notices:
        table.add_row("!", "notice", notice, "")
    return table


def _line(record: RunRecord, event: Event) -> str:
    if event.kind == "notice":
        return f"! {event.data['text']}"
    if event.kind == "training":
        return f"{'!' if event.data['notice'] else ' '} {event.data['text']}"
    if event.kind == "trials":
        return describe_trials(event)
    if event.kind == "cluster":
        return f"  dashboard {record.dashboard}" if record.dashboard else ""
    stage = record.stage(event.stage) if event.kind == "stage" else None
    if stage is None:
        return ""
    spent = f" ({duration(stage.seconds)})" if stage.status in ("done", "failed", "interrupted") else ""
    return f"{_MARKS[stage.status]} {stage.name}: {describe(stage) or event.data.get('why', '')}{spent}"


def describe(stage: StageRecord) -> str:
    """Say in a few words how far a stage is, or what it found."""
    if stage.status == "running":
        return _progress(stage)
    if stage.status in ("failed", "interrupted"):
        return stage.status
    return ("cached; " if stage.status == "cached" else "") + _summary(stage)


def _progress(stage: StageRecord) -> str:
    data = stage.progress
    if not data:
        return "starting"
    if data.get("waiting"):
        return str(data["waiting"])
    done, total = data.get("done", 0), data.get("total")
    parts = [f"{done:,}/{total:,} {data.get('unit', '')}" if total else f"{done:,} {data.get('unit', '')}"]
    if data.get("rows_per_s"):
        parts.append(f"{data['rows_per_s']:,.0f} rows/s")
    parts += [f"{name} {value:.6g}" for name, value in (data.get("metrics") or {}).items()]
    if total and done and data.get("unit") != "steps":
        left = (time.time() - stage.started) * (total - done) / done
        parts.append(f"{duration(left)} left")
    return ", ".join(parts)


def _search(found: dict[str, Any] | None) -> str:
    if not found:
        return ""
    counts = ", ".join(f"{found[state]} {state}" for state in ("complete", "pruned", "failed") if found[state])
    params = ", ".join(f"{name} {cell(value)}" for name, value in found["params"].items())
    return f"; trials: {counts}; best {found['metric']} {cell(found['value'])} of trial {found['trial']}: {params}"


def _summary(stage: StageRecord) -> str:
    summary = stage.summary
    match stage.name:
        case "split":
            by = f" by {summary['by']}" if summary.get("by") else ""
            return f"{summary.get('kind', '')}{by}"
        case "features":
            rows = ", ".join(f"{part} {count:,}" for part, count in summary.get("rows", {}).items())
            dropped = sum(summary.get("dropped", {}).values())
            lost = f"; {dropped:,} rows dropped" if dropped else ""
            return f"{summary.get('features')} features, {summary.get('target')} label; rows: {rows}{lost}"
        case "train":
            steps = summary.get("n_iter", summary.get("num_boost_round"))
            reason = f", {summary['stop_reason']}" if summary.get("stop_reason") else ""
            return f"{cell(steps)} iterations{reason}{_search(summary.get('search'))}"
        case "evaluate":
            test = summary.get("metrics", {}).get("test") or {}
            return ", ".join(f"{name} {cell(value)}" for name, value in test.items())
        case "publish":
            return f"{summary.get('version')}" + (f", {summary['promotion']}" if summary.get("promotion") else "")
        case _:
            return cell(summary.get("result"))
