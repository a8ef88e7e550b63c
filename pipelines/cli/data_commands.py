"""``mutirao data``: look at datasets, compare and compact them."""

from __future__ import annotations

from typing import Any

import click
from pydantic import TypeAdapter, ValidationError

from pipelines.cli.output import cell, guarded, json_option, say, show_json, show_table, size
from pipelines.cli.shard_bar import ShardBar
from pipelines.codec import to_plain
from pipelines.config import Bytes
from pipelines.data.compact import compact
from pipelines.data.compare import ColumnSummary, DatasetDiff, compare
from pipelines.data.dataset import Dataset, open_dataset
from pipelines.errors import UsageError

LEAST_TARGET_BYTES = 1 << 20

_SHOWN = 10

drift_option = click.option(
    "--on-drift", type=click.Choice(["widen", "strict"]), default="widen", show_default=True, help="As in a spec."
)
bad_file_option = click.option(
    "--on-bad-file", type=click.Choice(["fail", "skip"]), default="fail", show_default=True, help="As in a spec."
)


@click.group()
def data() -> None:
    """Look at Parquet datasets.

    \b
    Examples:
        mutirao data inspect data_samples/flights
        mutirao data diff s3://lake/events/2025 s3://lake/events/2026
    """


@data.command()
@click.argument("source")
@drift_option
@bad_file_option
@json_option
@guarded
def inspect(source: str, on_drift: Any, on_bad_file: Any, as_json: bool) -> None:
    """Read every footer of SOURCE and show its unified schema, size, partitions and drift.

    \b
    Example:
        mutirao data inspect data_samples/flights
    """
    dataset = _open(source, on_drift, on_bad_file)
    found = dataset.describe()
    if as_json:
        show_json(found)
        return
    say(f"dataset     {found['root']}")
    per_group = found["rows_per_row_group"]
    say(f"rows        {found['rows']:,} in {found['files']:,} files")
    say(f"row groups  {found['row_groups']:,} of {cell(per_group['min'])}–{cell(per_group['max'])} rows")
    say(f"size        {size(found['file_bytes'])}, uncompressed {size(found['bytes'])}")
    say(f"content     {found['content_digest']}")
    for partition in found["partitions"]:
        values = ", ".join(str(value) for value in partition["values"][:12])
        more = " …" if partition["distinct"] > 12 else ""
        say(f"partition   {partition['column']}: {partition['type']}, {partition['distinct']} values: {values}{more}")
    for drift in dataset.drift:
        say(f"drift       {drift}")
    for skipped in found["skipped"]:
        say(f"skipped     {skipped['path']}: {skipped['reason']}")
    say()
    rows = [(c["name"], c["type"], size(c["bytes"]), "partition" if c["partition"] else "") for c in found["columns"]]
    show_table("", ("column", "type", "uncompressed", ""), rows)


@data.command()
@click.argument("before")
@click.argument("after")
@json_option
@guarded
def diff(before: str, after: str, as_json: bool) -> None:
    """Say how dataset AFTER differs from BEFORE: schema, files, rows, statistics. Exit code 0 either way.

    \b
    Example:
        mutirao data diff lake/events lake/events-copy
    """
    found = compare(_open(before), _open(after))
    if as_json:
        show_json(to_plain(found))
    else:
        _show_difference(found)


@data.command(name="compact")
@click.argument("source")
@click.argument("output")
@click.option("--target", default="256 MiB", show_default=True, help="Size of the new files.")
@click.option("--dry-run", is_flag=True, help="Only tell what would be written.")
@json_option
@guarded
def compact_command(source: str, output: str, target: str, dry_run: bool, as_json: bool) -> None:
    """Write the small files of SOURCE again as few good ones, in order, as a new version of the dataset OUTPUT.

    SOURCE and OUTPUT may be the same versioned dataset. Nothing is deleted; readers see the old version, then the new.

    \b
    Example:
        mutirao data compact lake/events lake/events-compact --dry-run
    """
    dataset = _open(source)
    with ShardBar("compacting", quiet=as_json) as bar:
        found = compact(dataset, output, target_bytes=_amount(target), dry_run=dry_run, on_done=bar.update)
    if as_json:
        show_json(to_plain(found))
        return
    would = "would be" if dry_run else "were"
    after = f"{'about ' if dry_run else ''}{found.files_after:,}"
    say(f"{found.url}: files {found.files_before:,} → {after}, of which {found.files_kept:,} are kept")
    say(f"{found.rewritten_rows:,} rows, of {size(found.rewritten_bytes)}, {would} written again")
    if found.version is not None:
        say(f"version {found.version.number}")


def _amount(text: str) -> int:
    try:
        amount = TypeAdapter[int](Bytes).validate_python(text)
    except ValidationError as error:
        message = str(error.errors()[0]["msg"]).removeprefix("Value error, ")
        raise UsageError(message, on="--target") from None
    if amount < LEAST_TARGET_BYTES:
        remedy = "Write it with its unit, like '256 MiB'."
        raise UsageError(
            "such small files help nobody", on="--target", expected="at least 1 MiB", found=text, remedy=remedy
        )
    return amount


def _show_difference(found: DatasetDiff) -> None:
    say("the same content" if found.same_content else "different content")
    counts = (("rows", found.rows), ("row groups", found.row_groups), ("bytes", found.bytes))
    show_table("", ("", "before", "after"), [(name, *pair) for name, pair in counts])
    files = found.files
    say(f"\nfiles: {files.same:,} the same")
    for word, names in (("added", files.added), ("removed", files.removed), ("changed", files.changed)):
        if names:
            say(f"  {len(names):,} {word}: {', '.join(names[:_SHOWN])}{' …' if len(names) > _SHOWN else ''}")
    if found.schema:
        say()
        show_table("", ("column", "type before", "after"), [(d.column, d.before, d.after) for d in found.schema])
    if found.statistics:
        say()
        rows = [(d.column, _range(d.before), _range(d.after)) for d in found.statistics]
        show_table("", ("column", "values before", "after"), rows)


def _range(summary: ColumnSummary) -> str:
    nulls = "" if summary.nulls is None else f", {summary.nulls:,} nulls"
    return f"{cell(summary.minimum)} – {cell(summary.maximum)}{nulls}"


def _open(source: str, on_drift: Any = "widen", on_bad_file: Any = "fail") -> Dataset:
    return open_dataset(source, on_drift=on_drift, on_bad_file=on_bad_file)
