"""``mutirao model``: versions, aliases, history."""

from __future__ import annotations

import sys
from collections.abc import Mapping

import click

from pipelines.cli.output import cell, guarded, json_option, say, show_json, show_table, size
from pipelines.codec import to_plain
from pipelines.data.split import PARTS
from pipelines.errors import CorruptArtifactError
from pipelines.registry import AliasEntry, ModelVersion
from pipelines.registry.names import CHAMPION
from pipelines.run import open_registry
from pipelines.spec import find_places

registry_option = click.option("--registry", metavar="URL", help="The registry; default: as the settings say.")
why_option = click.option("--why", default="", help="A reason, for the history.")


@click.group()
def model() -> None:
    """Look after model versions and aliases.

    \b
    Examples:
        mutirao model list
        mutirao model show late-flights@champion
        mutirao model rollback late-flights
    """


@model.command(name="list")
@click.argument("name", required=False)
@registry_option
@json_option
@guarded
def list_command(name: str | None, registry: str | None, as_json: bool) -> None:
    """List models, or the versions of NAME, newest first.

    \b
    Example:
        mutirao model list late-flights
    """
    opened = open_registry(registry)
    if name is None:
        found = opened.models()
        if as_json:
            show_json([to_plain(each) for each in found])
            return
        if not found:
            say(f"no models in {registry or find_places().registry}")
            return
        rows = [(each.name, each.newest.version, _aliases(each.aliases), each.newest.created) for each in found]
        show_table("", ("model", "newest", "aliases", "published (UTC)"), [(*r[:3], f"{r[3]:%F %T}") for r in rows])
        return
    versions, aliases = opened.versions(name), opened.aliases(name)
    if as_json:
        show_json([to_plain(each) for each in versions])
        return
    table = [
        (
            each.ref,
            each.kind,
            _aliases({alias: n for alias, n in aliases.items() if n == each.version}),
            _short_metrics(each),
            f"{each.created:%F %T}",
        )
        for each in versions
    ]
    show_table("", ("version", "kind", "aliases", "test metrics", "published (UTC)"), table)


@model.command()
@click.argument("ref")
@registry_option
@json_option
@guarded
def show(ref: str, registry: str | None, as_json: bool) -> None:
    """Show one version: metrics, signature, where it comes from. REF is NAME/NUMBER or NAME@ALIAS.

    \b
    Example:
        mutirao model show late-flights@champion
    """
    opened = open_registry(registry)
    version = opened.get(ref)
    if as_json:
        show_json(to_plain(version))
        return
    aliases = {alias: n for alias, n in opened.aliases(version.name).items() if n == version.version}
    say(f"version    {version.ref}" + (f" ({_aliases(aliases)})" if aliases else ""))
    say(f"kind       {version.kind}" + (", python-only" if version.python_only else ""))
    say(f"published  {version.created:%F %T} UTC by {version.created_by}, run {version.run_id or '–'}")
    for key, value in version.origin.items():
        if value not in (None, "", {}, []):
            say(f"{key:<18} {cell(value) if not isinstance(value, dict) else _pairs(value)}")
    say()
    parts = sorted(version.metrics, key=PARTS.index)
    names = list(dict.fromkeys(name for part in parts for name in version.metrics[part]))
    show_table("", ("metric", *parts), [(n, *[version.metrics[p].get(n) for p in parts]) for n in names])
    say()
    columns = [(name, kind, "in") for name, kind in version.inputs.items()]
    columns += [(name, kind, "out") for name, kind in version.outputs.items()]
    show_table("", ("column", "type", ""), columns)
    say()
    rows = [(path, size(artifact.size), artifact.sha256[:16]) for path, artifact in version.artifacts.items()]
    show_table("", ("artifact", "size", "SHA-256"), rows)


@model.command()
@click.argument("ref")
@click.option("--deep", is_flag=True, help="Read every byte and predict the golden rows.")
@registry_option
@json_option
@guarded
def verify(ref: str, deep: bool, registry: str | None, as_json: bool) -> None:
    """Check that a version's artifacts are there and whole; exit code 5 when they are not.

    \b
    Example:
        mutirao model verify late-flights@champion --deep
    """
    found = open_registry(registry).verify(ref, deep=deep)
    if as_json:
        show_json(to_plain(found))
    elif found.ok:
        say(f"{found.ref}: {found.checked} artifacts {'and the golden rows ' if deep else ''}are as published")
    if not found.ok:
        remedy = "Promote another version, and publish this one again from its run."
        error = CorruptArtifactError("; ".join(found.problems), on=found.ref, remedy=remedy)
        click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)


@model.command()
@click.argument("ref")
@click.option("--alias", default=CHAMPION, show_default=True)
@why_option
@registry_option
@json_option
@guarded
def promote(ref: str, alias: str, why: str, registry: str | None, as_json: bool) -> None:
    """Make an alias mean the version REF.

    \b
    Example:
        mutirao model promote late-flights/1 --why "back to the linear model"
    """
    opened = open_registry(registry)
    version = opened.get(ref)
    _say_entry(opened.promote(version.name, version.version, alias, why=why), as_json)


@model.command()
@click.argument("name")
@click.option("--alias", default=CHAMPION, show_default=True)
@click.option("--to", type=int, help="A version that the alias has meant; default: the one before.")
@why_option
@registry_option
@json_option
@guarded
def rollback(name: str, alias: str, to: int | None, why: str, registry: str | None, as_json: bool) -> None:
    """Set an alias of NAME back to the version that it meant before.

    \b
    Example:
        mutirao model rollback late-flights --why "too many false alarms"
    """
    _say_entry(open_registry(registry).rollback(name, alias, to=to, why=why), as_json)


@model.command()
@click.argument("name")
@click.argument("alias", default=CHAMPION)
@registry_option
@json_option
@guarded
def history(name: str, alias: str, registry: str | None, as_json: bool) -> None:
    """List everything that happened to an alias of NAME, refused promotions too, newest first.

    \b
    Example:
        mutirao model history late-flights champion
    """
    entries = open_registry(registry).history(name, alias)
    if as_json:
        show_json([to_plain(entry) for entry in entries])
        return
    rows = [(e.number, f"{e.when:%F %T}", e.action, e.previous, e.version, e.candidate, e.who, e.why) for e in entries]
    show_table("", ("entry", "when (UTC)", "action", "from", "to", "candidate", "who", "why"), rows)


def _say_entry(entry: AliasEntry, as_json: bool) -> None:
    if as_json:
        show_json(to_plain(entry))
    else:
        say(f"{entry.name}@{entry.alias}: {cell(entry.previous)} → {cell(entry.version)} (entry {entry.number})")


def _aliases(aliases: dict[str, int]) -> str:
    return ", ".join(f"{alias} → {version}" for alias, version in sorted(aliases.items()))


def _short_metrics(version: ModelVersion) -> str:
    return _pairs(version.metrics.get("test") or {})


def _pairs(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {cell(value)}" for name, value in values.items())
