"""Folders named key=value are typed columns."""

from __future__ import annotations

from datetime import date
from urllib.parse import quote

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.data.config import ColumnCorrection
from pipelines.data.partitions import NULL, Partitions, path_values, type_partitions
from pipelines.errors import DataError


def _typed(paths: list[str], **types: str) -> Partitions:
    corrections = {name: ColumnCorrection(type=t) for name, t in types.items()}
    return type_partitions(paths, [path_values(path) for path in paths], corrections=corrections, on="/data")


def test_types_are_integer_date_or_string() -> None:
    typed = _typed(
        [f"n=1/d=2013-01-31/s=a%2Fb/z=01/m=2013-02-30/{NULL}=x/f", f"n=-7/d={NULL}/s=5/z=10/m={NULL}/{NULL}=y/f"]
    )
    assert typed.fields[:5] == tuple(
        pa.field(name, t)
        for name, t in [
            ("n", pa.int64()),
            ("d", pa.date32()),
            ("s", pa.string()),
            ("z", pa.int64()),
            ("m", pa.string()),
        ]
    )
    assert typed.values.to_pylist() == [
        {"n": 1, "d": date(2013, 1, 31), "s": "a/b", "z": 1, "m": "2013-02-30", NULL: "x"},
        {"n": -7, "d": None, "s": "5", "z": 10, "m": None, NULL: "y"},
    ]


def test_a_column_that_is_null_everywhere_is_text() -> None:
    assert _typed([f"k={NULL}/f"]).fields == (pa.field("k", pa.string()),)


def test_a_correction_gives_the_text_of_the_path_back() -> None:
    assert _typed(["zip=01234/f"], zip="string").values.to_pylist() == [{"zip": "01234"}]
    assert _typed(["zip=01234/f"], zip="category").values.to_pylist() == [{"zip": 1234}]
    with pytest.raises(DataError, match=r"/data/zip=x/f: .*'zip'; expected int32; found 'x'. Correct the type"):
        _typed(["zip=1/f", "zip=x/f"], zip="int32")


def test_numbers_beyond_64_bit_stay_text() -> None:
    assert _typed(["k=12345678901234567890/f"]).fields == (pa.field("k", pa.string()),)


def test_files_must_agree_on_their_columns() -> None:
    assert _typed(["a=1/b=2/f", "b=3/a=4/f"]).values.to_pylist() == [{"a": 1, "b": 2}, {"a": 4, "b": 3}]
    with pytest.raises(DataError, match=r"/data: .*expected a=… as in a=1/f; found a=…/b=… in a=1/b=2/g"):
        _typed(["a=1/f", "a=1/b=2/g"])
    with pytest.raises(DataError, match=r"expected none as in f; found a=… in a=1/f"):
        _typed(["f", "a=1/f"])
    with pytest.raises(DataError, match="given twice"):
        _typed(["a=1/a=2/f"])


def test_without_folders_there_are_no_columns() -> None:
    typed = _typed(["x.parquet", "y/z.parquet"])
    assert typed.fields == ()
    assert len(typed.values) == 2


@settings(max_examples=40)
@given(
    st.lists(
        st.one_of(
            st.none(), st.integers(-(10**17), 10**17), st.dates(), st.text("ab/=%é 7.", min_size=1).map("x{}".format)
        ),
        min_size=1,
        max_size=5,
    )
)
def test_values_survive_the_path(values: list[object]) -> None:
    paths = [f"k={NULL if v is None else quote(str(v), safe='')}/f" for v in values]
    found = [row["k"] for row in _typed(paths).values.to_pylist()]
    kinds = {type(v) for v in values if v is not None}
    if kinds <= {int} or kinds <= {date}:
        assert found == values
    else:
        assert [None if v is None else str(v) for v in found] == [None if v is None else str(v) for v in values]
