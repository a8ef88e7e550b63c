"""The cluster's own commands, joined to ``mutirao`` by the entry-point group ``mutirao.commands``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

import click

from cluster.doctor import Finding, failures, run_checks
from cluster.errors import ClusterError, PreflightError
from cluster.spec import ClusterSpec, load_cluster_spec

EXAMPLES = """\b
Examples:
  mutirao doctor
  mutirao doctor --cluster cluster.yaml --store s3://models/registry --json"""


@click.command(epilog=EXAMPLES)
@click.option("--cluster", "cluster_file", type=click.Path(dir_okay=False), help="YAML file with a cluster spec.")
@click.option("--store", metavar="URL", help="Folder or object store that runs will be written to.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a table.")
@click.pass_context
def doctor(context: click.Context, cluster_file: str | None, store: str | None, as_json: bool) -> None:
    """Check software, machine, cluster spec and store before anything is started.

    Exit code 0 when everything that has to be there is there, 3 when not.
    """
    try:
        spec = load_cluster_spec(cluster_file) if cluster_file else ClusterSpec()
    except ClusterError as error:
        raise _Told(error) from error
    findings = run_checks(spec, store)
    click.echo(_as_json(findings) if as_json else _as_table(findings))
    if failures(findings):
        context.exit(PreflightError.exit_code)


commands: Sequence[click.Command] = (doctor,)


def _as_json(findings: Sequence[Finding]) -> str:
    return json.dumps({"ok": not failures(findings), "findings": [asdict(each) for each in findings]}, indent=2)


def _as_table(findings: Sequence[Finding]) -> str:
    width = max(len(finding.name) for finding in findings)
    lines = []
    for finding in findings:
        mark = "ok  " if finding.ok else "FAIL" if finding.blocking else "note"
        lines.append(f"{mark}  {finding.name:<{width}}  {finding.evidence}")
        if not finding.ok and finding.remedy:
            lines.append(f"      {'':<{width}}  → {finding.remedy}")
    return "\n".join(lines)


class _Told(click.ClickException):
    """An error of the cluster as click ends with it, with the error's own exit code."""

    def __init__(self, error: ClusterError) -> None:
        super().__init__(str(error))
        self.exit_code = error.exit_code  # type: ignore[misc]  # click reads it from the instance
