"""The ``mutirao`` command: noun, then verb."""

from __future__ import annotations

from importlib.metadata import entry_points

import click

from pipelines.cli.run_commands import plan, run


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="mutirao")
def main() -> None:
    """Train, version and use models on Parquet datasets with Dask.

    \b
    Example:
        mutirao run data_samples/flights_logistic.yaml

    Exit codes: 0 ok, 2 usage or bad spec, 3 preflight failed, 4 the user's data or code, 5 infrastructure,
    6 preempted (resumable), 7 a gate was not met, 130 interrupted.
    """


main.add_command(plan)
main.add_command(run)
for _point in entry_points(group="mutirao.commands"):
    for _command in _point.load():
        main.add_command(_command)
