"""A dataset in, its predictions out: in parallel, in the same order, all at once or not at all."""

from __future__ import annotations

import ast
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from pipelines.data.config import DataConfig, Versioned
from pipelines.data.dataset import Dataset, open_dataset
from pipelines.data.expressions import parse_expression
from pipelines.data.mapping import DEADLINE_S, MapProgress
from pipelines.data.reader import read_batches
from pipelines.data.shards import Shard, default_shards, plan_shards
from pipelines.data.source import Source, input_columns, make_source
from pipelines.data.writer import WriteOptions, write_shards
from pipelines.errors import NotFoundError, UsageError
from pipelines.evaluation import ModelRef
from pipelines.model import Model, load_model, save_model
from pipelines.registry import ModelVersion, Registry
from pipelines.serving.signature import check_signature, unique_columns
from pipelines.storage import absolute_url, open_store

if TYPE_CHECKING:
    from distributed import Client

LEAST_FILE_BYTES = 256 << 10
"""Columns that are read for one file of predictions, where nobody says how many files there are to be."""
_SCRATCH = "_scratch"


@dataclass(frozen=True)
class Scored:
    """What a batch prediction wrote.

    Attributes
    ----------
    url : str
        Open it with ``open_dataset({"versioned": url})``.
    version : int
        The version of the output that holds these predictions.
    rows, files : int
    model : str
        The version that predicted, ``name/number``, or the model's digest.
    """

    url: str
    version: int
    rows: int
    files: int
    model: str


def predict_dataset(
    model: Model | ModelRef | ModelVersion | str,
    source: str | Sequence[str] | Mapping[str, str] | DataConfig | Dataset,
    output_url: str,
    *,
    registry: Registry | str | None = None,
    client: Client | None = None,
    key_columns: Sequence[str] = (),
    filter: str | None = None,
    shards: int | None = None,
    options: WriteOptions | None = None,
    deadline_s: float = DEADLINE_S,
    on_done: Callable[[MapProgress], None] | None = None,
) -> Scored:
    """Predict every row of a dataset, and write the predictions as a new version of the dataset at `output_url`.

    Rows keep their order: the files of the output, in the order of their names, hold the rows in the order of the
    input's files and row groups. The output appears complete or not at all. A worker holds some batches of the input,
    one batch of features, and one row group of the output at a time, whatever the size of the dataset.

    Columns that the model's spec derived (``data.derive``) are derived here too, if the model or a key needs them and
    the data do not have them. Its filter is not applied: every row gets a prediction.

    Parameters
    ----------
    model : Model, ModelRef, ModelVersion or str
        A reference like ``name@alias`` is looked up once, in `registry`: all rows are predicted by the same version.
    source : str, sequence of str, mapping, DataConfig or Dataset
        What `open_dataset` takes, or a dataset that is open.
    output_url : str
        A folder of its own, outside of the input.
    registry : Registry or str, optional
        Where versions are found; needed for references.
    client : distributed.Client, optional
        None: in this process.
    key_columns : sequence of str
        Columns of the input (partition columns and derived ones too) that stand before the predictions in the output;
        ``["*"]`` for all of them.
    filter : str, optional
        Only rows for which this expression is true.
    shards : int, optional
        Into how many pieces the work is cut; by default by size. The output holds the same rows in the same order.
    options : WriteOptions, optional
    deadline_s : float
        Longest wait without any shard being done.
    on_done : callable, optional
        See `map_shards`.

    Returns
    -------
    Scored

    Raises
    ------
    DataError
        Columns that the model reads are missing or of another kind (all of them are named); bad files; bad values.
    NotFoundError
        There is no such version, alias, key column or dataset.
    UsageError
        A key column has the name of an output column; the output lies inside the input.
    StorageError
        The output can't be written. What was there before stays.
    """
    scorer = _scorer(model, registry)
    config = source if isinstance(source, DataConfig) else None
    dataset = source if isinstance(source, Dataset) else _open(source, client)
    _check_output(dataset, output_url)
    filter = filter if filter is not None or config is None else config.filter
    wanted = {*key_columns, *_names_in(filter)}
    derive = {**_derived(scorer, dataset.schema, wanted), **(config.derive if config is not None else {})}
    data = make_source(dataset, DataConfig(source=dataset.root, derive=derive, filter=filter))
    check_signature(
        data.arrow_schema, scorer.model.signature_in, on=dataset.root, model=scorer.name, derive=dict(scorer.derive)
    )
    keys = _keys(key_columns, data, scorer.model)
    columns = unique_columns(scorer.model.signature_in.names, keys)
    if filter is not None:
        dataset = dataset.prune(filter, dict(data.derive)).dataset
    stored = input_columns(data, columns)
    if shards is None:
        shards = default_shards(dataset, stored, max_workers=_workers(client), least_bytes=LEAST_FILE_BYTES)
    plan = plan_shards(dataset, stored, shards=shards)
    with _reachable(scorer, client, output_url) as reachable:
        version = write_shards(
            client,
            score_shard,
            plan.shards,
            reachable,
            data,
            columns,
            keys,
            url=absolute_url(output_url),
            schema=_output_schema(data, keys, scorer.model),
            options=options,
            properties={"model": scorer.name, "model_digest": scorer.model.digest},
            deadline_s=deadline_s,
            on_done=on_done,
        )
    return Scored(absolute_url(output_url), version.number, version.rows, len(version.files), scorer.name)


def score_shard(
    shard: Shard, model: Model | ModelRef | _Published, source: Source, columns: Sequence[str], keys: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Predict the rows of one shard, batch by batch. Runs on a worker, which keeps the model for the next shard."""
    loaded = _load(model)
    with closing(read_batches(source, [shard], columns)) as reads:
        for read in reads:
            predictions = loaded.predict(read.batch)
            kept = [_plain(read.batch.column(name)) for name in keys]
            names = [*keys, *predictions.column_names]
            table = pa.table([*kept, *predictions.columns], names=names)
            yield from table.combine_chunks().to_batches()


@dataclass(frozen=True)
class _Published:
    """A version in a registry, as small values that travel to workers."""

    registry: str
    version: ModelVersion


@dataclass(frozen=True)
class _Scorer:
    """A model with its name, what it needs derived, and how workers get it."""

    model: Model
    name: str
    reach: Model | ModelRef | _Published
    derive: tuple[tuple[str, str], ...] = ()


def _scorer(model: Model | ModelRef | ModelVersion | str, registry: Registry | str | None) -> _Scorer:
    if isinstance(model, Model):
        return _Scorer(model, f"model {model.digest[:12]}", model)
    if isinstance(model, ModelRef):
        return _Scorer(_load(model), f"model {model.digest[:12]}", model)
    if registry is None:
        raise UsageError("a version is found in a registry", on=str(model), remedy="Say which: registry=…")
    registry = Registry.open(registry) if isinstance(registry, str) else registry
    version = registry.get(model) if isinstance(model, str) else model
    derive = registry.lineage(version).derive
    return _Scorer(registry.load(version), version.ref, _Published(registry.url, version), derive)


def _load(model: Model | ModelRef | _Published) -> Model:
    if isinstance(model, Model):
        return model
    if isinstance(model, ModelRef):
        return load_model(model.url, model.prefix, model.digest)
    return Registry.open(model.registry).load(model.version)


def _workers(client: Client | None) -> int:
    return 1 if client is None else max(1, len(client.scheduler_info(n_workers=-1)["workers"]))


@contextmanager
def _reachable(scorer: _Scorer, client: Client | None, output_url: str) -> Iterator[Model | ModelRef | _Published]:
    """Give workers a way to the model: one that only this process has is laid beside the output meanwhile."""
    if client is None or not isinstance(scorer.reach, Model):
        yield scorer.reach
        return
    store, prefix = open_store(absolute_url(output_url)), f"{_SCRATCH}/{uuid.uuid4().hex}"
    try:
        yield ModelRef(store.url, prefix, save_model(scorer.reach, store, prefix))
    finally:
        for info in list(store.list(prefix)):
            store.delete(info.key)


def _open(source: str | Sequence[str] | Mapping[str, str] | Versioned | DataConfig, client: Client | None) -> Dataset:
    if not isinstance(source, DataConfig):
        return open_dataset(source, client=client)
    return open_dataset(
        source.source,
        columns=source.columns,
        on_drift=source.on_drift,
        on_bad_file=source.on_bad_file,
        client=client,
    )


def _check_output(dataset: Dataset, output_url: str) -> None:
    root, output = dataset.root.rstrip("/"), absolute_url(output_url).rstrip("/")
    if output == root or output.startswith(f"{root}/"):
        raise UsageError(
            "the output lies inside the input",
            on=output,
            expected=f"a folder outside of {root}",
            remedy="Choose another.",
        )


def _derived(scorer: _Scorer, schema: pa.Schema, also: set[str]) -> dict[str, str]:
    """Those of the model's expressions that are needed (inputs, and `also`), possible, and not columns already."""
    reads: dict[str, tuple[str, ...]] = {}
    for name, text in scorer.derive:
        if name not in schema.names:
            with suppress(NotFoundError):  # it needs a column that is not here; if the model reads it, that is told
                parsed = parse_expression(text, schema)
                reads[name], schema = parsed.columns, schema.append(pa.field(name, parsed.type))
    wanted = {*scorer.model.signature_in.names, *also}
    for name in reversed(reads):
        if name in wanted:
            wanted |= set(reads[name])
    return {name: text for name, text in scorer.derive if name in reads and name in wanted}


def _names_in(filter_text: str | None) -> set[str]:
    """The names that stand in a filter; one that can't be parsed is told later, with its place."""
    with suppress(SyntaxError):
        return {node.id for node in ast.walk(ast.parse(filter_text or "", mode="exec")) if isinstance(node, ast.Name)}
    return set()


def _keys(key_columns: Sequence[str], data: Source, model: Model) -> tuple[str, ...]:
    keys = unique_columns(data.arrow_schema.names if list(key_columns) == ["*"] else key_columns)
    for name in keys:
        input_columns(data, [name])  # names the nearest column where there is none
    clash = [name for name in keys if name in model.signature_out.names]
    if clash:
        raise UsageError(f"key columns have the names of output columns: {', '.join(clash)}", on=data.root)
    return keys


def _output_schema(data: Source, keys: Sequence[str], model: Model) -> pa.Schema:
    kept = [pa.field(name, _plain_type(data.arrow_schema.field(name).type)) for name in keys]
    return pa.schema([*kept, *model.signature_out])


def _plain_type(type_: pa.DataType) -> pa.DataType:
    return type_.value_type if pa.types.is_dictionary(type_) else type_


def _plain(values: pa.Array) -> pa.Array:
    """Category columns have another dictionary in each batch: they are written as their values."""
    return values.dictionary_decode() if pa.types.is_dictionary(values.type) else values
