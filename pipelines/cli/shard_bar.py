"""A progress bar over shards, for commands that map over a dataset in the foreground."""

from __future__ import annotations

from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from pipelines.data.mapping import MapProgress


class ShardBar:
    """A bar on standard error while a `with` lasts; nothing where that is no terminal, or when `quiet`."""

    def __init__(self, doing: str, *, quiet: bool) -> None:
        console = Console(stderr=True)
        columns = (TextColumn(doing), BarColumn(), MofNCompleteColumn(), TextColumn("shards"), TimeRemainingColumn())
        self._shown = Progress(*columns, console=console, disable=quiet or not console.is_terminal)
        self._task = self._shown.add_task(doing, total=None)

    def __enter__(self) -> Self:
        self._shown.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._shown.stop()

    def update(self, done: MapProgress) -> None:
        """Show how many shards are done."""
        self._shown.update(self._task, completed=done.shards, total=done.shards_total)
