"""How commands speak: tables for people, JSON for machines, errors with their exit codes."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import wraps
from typing import Any, NoReturn, ParamSpec, TypeVar

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cluster import ClusterError
from pipelines.errors import MutiraoError

P = ParamSpec("P")
R = TypeVar("R")

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for machines instead of tables.")


def console() -> Console:
    """A console on standard output; wide plain text when that is no terminal, so that nothing is wrapped."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else 220)


def say(text: str = "") -> None:
    """Print a line for people."""
    click.echo(text)


def show_json(value: Any) -> None:
    """Print a JSON value for machines."""
    click.echo(json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, default=str))


def show_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table; numbers are aligned to the right."""
    rows = [list(row) for row in rows]
    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[index], int | float) for row in rows)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*[escape(cell(value)) for value in row])
    console().print(table)


def cell(value: Any) -> str:
    """A value as it stands in a table."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def size(count: float) -> str:
    """An amount of memory: ``1.5 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(count) < 1024 or unit == "TiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError("unreachable")


def moment(time_s: float | None) -> str:
    """A point in time, to the second, in UTC."""
    return "–" if not time_s else datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%d %H:%M:%S")


def duration(seconds: float) -> str:
    """A duration: ``4.2 s``, ``3 min 20 s``, ``2 h 5 min``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def guarded(command: Callable[P, R]) -> Callable[P, R]:
    """Turn errors of the platform into one message on standard error and their exit code."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except (MutiraoError, ClusterError) as error:
            fail(error, error.exit_code)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            sys.exit(130)
        except click.exceptions.Exit:
            raise
        except click.ClickException:
            raise
        except Exception as error:  # noqa: BLE001 - the last boundary: an exit code that means something
            click.echo(traceback.format_exc(), err=True)
            fail(RuntimeError(f"unforeseen {type(error).__name__}: {error}"), 5)

    return run


def fail(error: Exception, exit_code: int) -> NoReturn:
    """Print an error and leave."""
    click.echo(f"error: {error}", err=True)
    sys.exit(exit_code)
