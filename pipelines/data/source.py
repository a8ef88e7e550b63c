"""What must a process know to read shards? A `Source`: small, frozen, JSON-able."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa

from pipelines.codec import schema_from_text, schema_to_text
from pipelines.data.expressions import Expression, derived_schema, parse_expression, parse_filter
from pipelines.errors import NotFoundError

if TYPE_CHECKING:
    from pipelines.data.config import DataConfig
    from pipelines.data.dataset import Dataset


@dataclass(frozen=True)
class Source:
    """How any process reads shards of a dataset.

    Parameters
    ----------
    root : str
        URL or absolute path that all file paths are relative to.
    schema : str
        The unified schema, partition columns last, as `codec.schema_to_text` writes it.
    filter : str, optional
        Rows for which this expression is not true are left out; it may use derived columns.
    derive : tuple of (name, expression)
        New columns, computed before the filter; each may use those before it.
    partition_columns : tuple of str
    """

    root: str
    schema: str
    filter: str | None = None
    derive: tuple[tuple[str, str], ...] = ()
    partition_columns: tuple[str, ...] = ()

    @cached_property
    def stored_schema(self) -> pa.Schema:
        """Columns of the files and partition columns, without the derived ones."""
        return schema_from_text(self.schema)

    @cached_property
    def arrow_schema(self) -> pa.Schema:
        """All columns that can be asked for: those of the files, partition columns, derived ones."""
        return derived_schema(self.stored_schema, self.derive)

    @cached_property
    def derived(self) -> dict[str, Expression]:
        """Parsed derived columns by name, in order."""
        schema = self.stored_schema
        parsed = {}
        for name, text in self.derive:
            parsed[name] = parse_expression(text, schema, on=f"derive.{name}")
            schema = schema.append(pa.field(name, parsed[name].type))
        return parsed

    @cached_property
    def filter_expression(self) -> Expression | None:
        """The parsed filter."""
        return None if self.filter is None else parse_filter(self.filter, self.arrow_schema)

    def __getstate__(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def make_source(dataset: Dataset, config: DataConfig | None = None) -> Source:
    """Make the source of a dataset, with the filter and the derived columns of `config` checked against its schema.

    Raises
    ------
    SpecError, NotFoundError
        An expression that can't be parsed, has the wrong type or names a column that does not exist.
    """
    derive = () if config is None else tuple(config.derive.items())
    source = Source(
        root=dataset.root,
        schema=schema_to_text(dataset.schema),
        filter=None if config is None else config.filter,
        derive=derive,
        partition_columns=tuple(dataset.partition_columns),
    )
    _ = source.arrow_schema, source.filter_expression
    return source


def input_columns(source: Source, columns: Iterable[str]) -> tuple[str, ...]:
    """Columns that must be read from the files (or their paths) to get `columns` and to apply the filter.

    Derived columns are replaced by what they are computed from. In the order of the schema.
    """
    known, wanted = set(source.arrow_schema.names), set(columns)
    for name in wanted:
        if name not in known:
            raise NotFoundError.among("column", name, source.arrow_schema.names, on=source.root)
    if source.filter_expression is not None:
        wanted |= set(source.filter_expression.columns)
    for name, expression in reversed(source.derived.items()):
        if name in wanted:
            wanted |= set(expression.columns)
    return tuple(name for name in source.stored_schema.names if name in wanted)
