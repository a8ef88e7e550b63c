"""The ``mutirao`` command: noun, then verb."""

from __future__ import annotations

from importlib.metadata import entry_points

import click

from pipelines.cli.data_commands import data
from pipelines.cli.model_commands import model
from pipelines.cli.predict import predict
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


for _command in (run, plan, data, model, predict):
    main.add_command(_command)
for _point in entry_points(group="mutirao.commands"):
    for _command in _point.load():
        main.add_command(_command)
