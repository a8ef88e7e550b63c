"""Are the parts of dates those of the calendar, on the wall clock that was asked for?"""

from __future__ import annotations

import datetime as dt
import math
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.features.dates import CYCLES, cycle, date_part, parts_of

EXPECTED = {
    "year": lambda d: d.year,
    "quarter": lambda d: (d.month + 2) // 3,
    "month": lambda d: d.month,
    "week": lambda d: d.isocalendar().week,
    "day": lambda d: d.day,
    "dayofyear": lambda d: d.timetuple().tm_yday,
    "weekday": lambda d: d.weekday(),
    "hour": lambda d: d.hour,
    "minute": lambda d: d.minute,
    "second": lambda d: d.second,
}
MOMENTS = st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2100, 1, 1))


@given(st.lists(MOMENTS | st.none(), max_size=10), st.sampled_from(["s", "ms", "us", "ns"]))
def test_parts_of_timestamps_are_those_of_the_calendar(moments: list[dt.datetime | None], unit: str) -> None:
    moments = [moment and moment.replace(microsecond=0) for moment in moments]
    values = pa.array(moments, pa.timestamp("us")).cast(pa.timestamp(unit))
    for part, expected in EXPECTED.items():
        found = date_part(values, part).to_pylist()
        assert found == [None if moment is None else expected(moment) for moment in moments]


@given(st.lists(MOMENTS.map(dt.datetime.date), min_size=1, max_size=10), st.sampled_from([pa.date32(), pa.date64()]))
def test_parts_of_dates_are_those_of_the_calendar(days: list[dt.date], kind: pa.DataType) -> None:
    for part in parts_of(kind):
        found = date_part(pa.array(days, kind), part).to_pylist()
        midnight = [dt.datetime.combine(day, dt.time()) for day in days]
        if part == "epoch":
            assert found == [(moment - dt.datetime(1970, 1, 1)).total_seconds() for moment in midnight]
        else:
            assert found == [EXPECTED[part](moment) for moment in midnight]


@pytest.mark.parametrize("kind", [pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")])
def test_times_of_day_have_a_clock_but_no_date(kind: pa.DataType) -> None:
    values = pa.array([dt.time(3, 25, 45), None], kind)
    found = {part: date_part(values, part).to_pylist() for part in parts_of(kind)}
    assert found == {"hour": [3, None], "minute": [25, None], "second": [45, None], "epoch": [12345.0, None]}


def test_the_clock_is_that_of_the_zone() -> None:
    moment = dt.datetime(2013, 7, 1, 23, 30, tzinfo=dt.UTC)
    aware, naive = pa.array([moment], pa.timestamp("us", "UTC")), pa.array([moment.replace(tzinfo=None)])
    local = pa.array([moment], pa.timestamp("us", "America/New_York"))
    tokyo = moment.astimezone(ZoneInfo("Asia/Tokyo"))
    for values in (aware, naive, local):
        assert date_part(values, "hour", "Asia/Tokyo").to_pylist() == [tokyo.hour]
        assert date_part(values, "day", "Asia/Tokyo").to_pylist() == [tokyo.day]
        assert date_part(values, "epoch").to_pylist() == [moment.timestamp()]
    assert date_part(local, "hour").to_pylist() == [19]


@pytest.mark.parametrize("part", sorted(CYCLES))
def test_a_cycle_closes(part: str) -> None:
    period, first = CYCLES[part]
    sine, cosine = cycle(part)
    angles = 2 * math.pi * (np.arange(first, first + period) - first) / period
    # One rounding to float32.
    np.testing.assert_allclose(sine[first:], np.sin(angles), atol=6e-8)
    np.testing.assert_allclose(cosine[first:], np.cos(angles), atol=6e-8)
