"""Which invented rows could have come from the training data? Drawn from fitted ranges and dictionaries."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from pipelines.features import Domain, FeaturePlan

_NULLS, _UNKNOWN = 0.1, 0.1  # shares: enough that 64 rows show each of them in almost every column
_UNKNOWN_TEXT = "~unknown~"
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_DAYS = 9_000  # days and times are drawn from 2000 to 2024: the plan keeps no range for them


def synthetic_rows(plan: FeaturePlan, rows: int, seed: int, *, odd: bool = True) -> pa.Table:
    """Draw rows in the plan's input schema.

    Parameters
    ----------
    plan : FeaturePlan
    rows : int
    seed : int
        The same seed and plan give the same rows.
    odd : bool
        Whether nulls, numbers out of the fitted range and unknown categories are among them; the first row is then all
        null.
    """
    random, domains = np.random.default_rng(seed), plan.domains()
    columns = [_column(field, domains.get(field.name, Domain()), rows, random, odd) for field in plan.input_schema]
    return pa.table(columns, schema=plan.input_schema)


def _column(field: pa.Field, domain: Domain, rows: int, random: np.random.Generator, odd: bool) -> pa.Array:
    plain = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    values = _values(plain, domain, rows, random, odd)
    if odd and field.nullable:
        values = [None if i == 0 or random.random() < _NULLS else value for i, value in enumerate(values)]
    return pa.array(values, plain).cast(field.type)


def _values(type_: pa.DataType, domain: Domain, rows: int, random: np.random.Generator, odd: bool) -> list[Any]:
    if domain.values:
        known = [domain.values[i] for i in random.integers(0, len(domain.values), rows)]
        strange = _strange(type_, domain) if odd else None
        return known if strange is None else [strange if random.random() < _UNKNOWN else value for value in known]
    return [_value(type_, number) for number in _numbers(type_, domain, rows, random, odd)]


def _strange(type_: pa.DataType, domain: Domain) -> Any:
    """A value that is in no dictionary, where the type has one."""
    if _is_text(type_):
        return _UNKNOWN_TEXT
    if pa.types.is_integer(type_):
        largest = max(int(value) for value in domain.values)
        return largest + 1 if largest + 1 <= _highest(type_) else None
    return None


def _numbers(type_: pa.DataType, domain: Domain, rows: int, random: np.random.Generator, odd: bool) -> list[float]:
    low = 0.0 if domain.low is None else domain.low
    high = low + 1.0 if domain.high is None else domain.high
    if domain.low is None and pa.types.is_temporal(type_):
        low, high = 0.0, float(_DAYS)
    margin = (high - low) / 10 if odd else 0.0
    return [float(number) for number in random.uniform(low - margin, high + margin, rows)]


def _value(type_: pa.DataType, number: float) -> Any:
    for matches, build in _BUILDERS:
        if matches(type_):
            return build(number, type_)
    return None


def _is_text(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_string_view(type_))


def _highest(type_: pa.DataType) -> int:
    unsigned = pa.types.is_unsigned_integer(type_)
    return int((1 << (type_.bit_width - (0 if unsigned else 1))) - 1)


def _integer(number: float, type_: pa.DataType) -> int:
    lowest = 0 if pa.types.is_unsigned_integer(type_) else -_highest(type_) - 1
    return min(max(round(number), lowest), _highest(type_))


def _naive(number: float, type_: pa.DataType) -> datetime:
    moment = (_EPOCH + timedelta(days=number)).replace(microsecond=0)  # whole seconds: no unit cuts them
    return moment if type_.tz else moment.replace(tzinfo=None)


_BUILDERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[float, pa.DataType], Any]], ...] = (
    (pa.types.is_boolean, lambda number, _: number >= 0.5),
    (pa.types.is_integer, _integer),
    (pa.types.is_floating, lambda number, _: number),
    (pa.types.is_decimal, lambda number, type_: round(Decimal(number), type_.scale)),
    (pa.types.is_date, lambda number, _: (_EPOCH + timedelta(days=number)).date()),
    (pa.types.is_timestamp, _naive),
    (pa.types.is_time, lambda number, _: (_EPOCH + timedelta(seconds=round(number * 86_400 / _DAYS))).time()),
    (pa.types.is_duration, lambda number, _: timedelta(seconds=round(number))),
    (_is_text, lambda number, _: f"text {round(number * 1000)}"),
)
