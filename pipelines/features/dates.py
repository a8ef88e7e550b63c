"""Which number does a part of a date or time stand for?"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

CYCLES = {
    "quarter": (4, 1), "month": (12, 1), "week": (53, 1), "day": (31, 1), "dayofyear": (366, 1), "weekday": (7, 0),
    "hour": (24, 0), "minute": (60, 0), "second": (60, 0),
}  # fmt: skip
"""Period and first value of the parts that come round."""

CLOCK_PARTS = ("hour", "minute", "second")

_PARTS: dict[str, Callable[[Any], Any]] = {
    "year": pc.year, "quarter": pc.quarter, "month": pc.month, "week": pc.iso_week, "day": pc.day,
    "dayofyear": pc.day_of_year, "weekday": pc.day_of_week, "hour": pc.hour, "minute": pc.minute, "second": pc.second,
}  # fmt: skip


def is_temporal(type_: pa.DataType) -> bool:
    """Whether a type is a date, a time of day or a timestamp."""
    return pa.types.is_date(type_) or pa.types.is_time(type_) or pa.types.is_timestamp(type_)


def parts_of(type_: pa.DataType) -> tuple[str, ...]:
    """Name the parts that columns of a type have."""
    if pa.types.is_time(type_):
        return (*CLOCK_PARTS, "epoch")
    days = tuple(part for part in _PARTS if part not in CLOCK_PARTS)
    return (*days, "epoch") if pa.types.is_date(type_) else (*_PARTS, "epoch")


def date_part(values: pa.Array, part: str, timezone: str | None = None) -> pa.Array:
    """Read a part off dates, times or timestamps.

    Parameters
    ----------
    values : Array of date, time or timestamp
    part : str
        ``epoch`` is seconds since 1970 (for times: since midnight), a double; all others are int64.
    timezone : str, optional
        Read the clock of this zone; timestamps without a zone are taken for UTC.
    """
    if part == "epoch":
        return _seconds(values)
    if timezone is not None and pa.types.is_timestamp(values.type):
        values = pc.cast(values, pa.timestamp(values.type.unit, timezone))
    return pc.cast(_PARTS[part](values), pa.int64())


@cache
def cycle(part: str) -> tuple[np.ndarray, np.ndarray]:
    """Sines and cosines of a part over its period (float32), by value; the table costs less than the functions."""
    period, first = CYCLES[part]
    angles = [2 * math.pi * (value - first) / period for value in range(period + first)]
    return np.array([math.sin(a) for a in angles], np.float32), np.array([math.cos(a) for a in angles], np.float32)


_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def _seconds(values: pa.Array) -> pa.Array:
    if pa.types.is_date(values.type):
        values = pc.cast(values, pa.timestamp("s"))
    width = pa.int32() if values.type.bit_width == 32 else pa.int64()
    counted = pc.cast(pc.cast(values, width), pa.float64(), safe=False)
    return pc.divide(counted, float(_PER_SECOND[values.type.unit]))
