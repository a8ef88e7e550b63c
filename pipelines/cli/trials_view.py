"""A search's trials as people read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipelines.cli.output import cell, duration, say, show_table
from pipelines.run import Event, RunRecord, TrialRecord

_ORDER = ("complete", "pruned", "failed", "running")


def show_trials(record: RunRecord) -> None:
    """Print a run's trials, the best first."""
    if not record.trials:
        return
    train = record.stage("train")
    metric = str((train.summary if train else {}).get("search", {}).get("metric", "value"))
    names = list(dict.fromkeys(name for trial in record.trials for name in trial.params))
    say()
    rows = [
        (
            *(t.number, t.state, t.value),
            *(t.params.get(name) for name in names),
            *(t.steps or None, duration(t.seconds), _short(t.error)),
        )
        for t in _best_first(record)
    ]
    show_table("trials", ("trial", "state", metric, *names, "steps", "took", "why"), rows)


def describe_trials(event: Event) -> str:
    """Say in a line what has happened to a trial; nothing when many are told at once."""
    if len(event.data["trials"]) != 1:
        return ""
    trial, best = event.data["trials"][0], event.data.get("best")
    params = _params(trial["params"])
    if trial["state"] == "running":
        return f"  trial {trial['number']}: {params}"
    found = {"complete": cell(trial["value"]), "failed": f"failed: {_short(trial['error'])}"}
    so_far = f" (best {cell(best['value'])} of trial {best['number']})" if best else ""
    return f"  trial {trial['number']}: {found.get(trial['state'], trial['state'])}{so_far}"


def _best_first(record: RunRecord) -> list[TrialRecord]:
    """Complete trials by value, the others behind them; which way is better shows in the search's best trial."""
    values = [trial.value for trial in record.trials if trial.value is not None]
    train = record.stage("train")
    found = (train.summary if train else {}).get("search", {}).get("value")
    sign = -1 if found is None or not values or found == max(values) else 1
    return sorted(record.trials, key=lambda t: (_ORDER.index(t.state), sign * (t.value or 0.0), t.number))


def _params(params: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {cell(value)}" for name, value in params.items())


def _short(text: str) -> str:
    line = text.splitlines()[0] if text else ""
    return line if len(line) <= 80 else line[:79] + "…"
