"""``mutirao predict``: score a dataset with a version or an alias."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import click

from cluster import ClusterSpec, connect, load_cluster_spec, machine
from pipelines.cli.model_commands import registry_option
from pipelines.cli.output import guarded, json_option, say, show_json
from pipelines.cli.shard_bar import ShardBar
from pipelines.codec import to_plain
from pipelines.data.dataset import open_dataset
from pipelines.run import open_registry
from pipelines.serving.batch import predict_dataset

if TYPE_CHECKING:
    from distributed import Client

_SMALL_BYTES = 256 << 20
"""Datasets up to this size (uncompressed) are scored in this process: a cluster takes longer to start."""
_MOST_LOCAL_WORKERS = 4


@click.command()
@click.argument("model", metavar="MODEL")
@click.argument("input_url", metavar="INPUT")
@click.argument("output_url", metavar="OUTPUT")
@click.option("--key", "keys", multiple=True, help="An input column to keep beside the predictions; '*' for all.")
@click.option("--filter", "filter_text", help="Score only rows for which this expression is true.")
@click.option("--cluster", "cluster_file", metavar="FILE", help="Where to run; default: this machine.")
@registry_option
@json_option
@guarded
def predict(
    model: str,
    input_url: str,
    output_url: str,
    keys: tuple[str, ...],
    filter_text: str | None,
    cluster_file: str | None,
    registry: str | None,
    as_json: bool,
) -> None:
    """Score the Parquet dataset INPUT with MODEL (NAME@ALIAS or NAME/NUMBER) into the dataset OUTPUT.

    Rows keep their order, and OUTPUT appears complete or not at all: each call writes its next version.
    `pipelines.open_dataset` reads the newest; readers that know no versions read all of them at once.

    \b
    Example:
        mutirao predict late-flights@champion data_samples/flights predictions --key day --key flight
    """
    dataset = open_dataset(input_url)
    with ExitStack() as stack:
        client = _client(stack, cluster_file, dataset.bytes)
        bar = stack.enter_context(ShardBar("scoring", quiet=as_json))
        scored = predict_dataset(
            model,
            dataset,
            output_url,
            registry=open_registry(registry),
            client=client,
            key_columns=keys,
            filter=filter_text,
            on_done=bar.update,
        )
    if as_json:
        show_json(to_plain(scored))
    else:
        say(f"{scored.model}: {scored.rows:,} rows in {scored.files:,} files: {scored.url}, version {scored.version}")
        if scored.version > 1:
            say("earlier versions are still there: pipelines.open_dataset reads the newest, other readers read all")


def _client(stack: ExitStack, cluster_file: str | None, size_bytes: int) -> Client | None:
    if cluster_file is None and size_bytes <= _SMALL_BYTES:
        return None
    spec = load_cluster_spec(cluster_file) if cluster_file else _this_machine()
    return stack.enter_context(connect(spec)).client


def _this_machine() -> ClusterSpec:
    here = machine()
    workers = max(1, min(_MOST_LOCAL_WORKERS, int(here.cpus)))
    return ClusterSpec.model_validate(
        {"workers": workers, "worker": {"memory": min(4 << 30, here.memory_bytes // (workers + 1))}}
    )
