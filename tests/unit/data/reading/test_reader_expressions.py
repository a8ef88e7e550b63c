"""Expressions mean what SQL would say, have known types, and are refused with the place of the fault."""

from __future__ import annotations

import datetime as dt
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.data.expressions import derived_schema, parse_expression, parse_filter
from pipelines.errors import DataError, NotFoundError, UsageError

SCHEMA = pa.schema(
    [
        ("a", pa.int32()),
        ("f", pa.float32()),
        ("late", pa.bool_()),
        ("carrier", pa.dictionary(pa.int32(), pa.string())),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "America/New_York")),
        ("class", pa.string()),
        ("tail number", pa.string()),
    ]
)
ROWS = pa.RecordBatch.from_pylist(
    [
        {
            "a": 1,
            "f": 0.5,
            "late": True,
            "carrier": "AA",
            "day": dt.date(2013, 1, 1),
            "at": dt.datetime(2013, 7, 1, 12, tzinfo=dt.UTC),
            "class": "x",
            "tail number": "N1",
        },
        {},
        {
            "a": 3,
            "f": float("nan"),
            "late": False,
            "carrier": "UA",
            "day": dt.date(2014, 1, 4),
            "at": dt.datetime(2014, 1, 1, 3, tzinfo=dt.UTC),
            "class": "y",
            "tail number": " n2 ",
        },
    ],
    schema=SCHEMA,
)

MEANINGS: list[tuple[str, list[Any]]] = [
    ("a > 1", [False, None, True]),
    ("not (a > 1)", [True, None, False]),
    ("a > 1 or late", [True, None, True]),
    ("late and a > 100", [False, None, False]),
    ("a > 1 or is_null(a)", [False, True, True]),
    ("a is None", [False, True, False]),
    ("a is not None", [True, False, True]),
    ("1 < a <= 3", [False, None, True]),
    ("a == 1.0", [True, None, False]),
    ("a in (1, 2)", [True, None, False]),
    ("a in (1, 2.5)", [True, None, False]),
    ("a not in [1]", [False, None, True]),
    ("carrier in ('AA', 'B6')", [True, None, False]),
    ("carrier == 'UA'", [False, None, True]),
    ("starts_with(carrier, 'U')", [False, None, True]),
    ("contains(carrier, 'A')", [True, None, True]),
    ("matches(carrier, '^A+$')", [True, None, False]),
    ("day >= '2013-06-01'", [False, None, True]),
    ("day in ('2013-01-01',)", [True, None, False]),
    ("at < '2013-07-01 08:00:01'", [True, None, False]),
    ("at < '2013-07-01 08:00:00'", [False, None, False]),
    ("weekday(day)", [1, None, 5]),
    ("year(day) * 100 + month(day)", [201301, None, 201401]),
    ("hour(at)", [8, None, 22]),
    ("days_between(day, date('2013-01-11'))", [10, None, -358]),
    ("-a + 1", [0, None, -2]),
    ("a / 2", [0.5, None, 1.5]),
    ("(a - 1) / 0 > 0", [False, None, True]),
    ("abs(1 - a)", [0, None, 2]),
    ("coalesce(a, 0)", [1, 0, 3]),
    ("'yes' if a > 1 else 'no'", ["no", "no", "yes"]),
    ("if_else(late, 1, 2)", [1, 2, 2]),
    ("cast(a, 'string')", ["1", None, "3"]),
    ("least(a, 2)", [1, 2, 2]),
    ("lower(trim(col('tail number')))", ["n1", None, "n2"]),
    ("col('class') != 'x'", [False, None, True]),
    ("is_nan(f)", [False, None, True]),
    ("2 * 3 == 6", [True, True, True]),
    ("late", [True, None, False]),
]


@pytest.mark.parametrize(("text", "expected"), MEANINGS)
def test_an_expression_means_what_sql_says(text: str, expected: list[Any]) -> None:
    assert parse_expression(text, SCHEMA).evaluate(ROWS).to_pylist() == expected
    assert parse_expression(text, SCHEMA).evaluate(pa.Table.from_batches([ROWS[:1], ROWS[1:]])).to_pylist() == expected


@pytest.mark.parametrize(("text", "expected"), MEANINGS)
def test_arrow_computes_the_same_and_the_type_is_known_before(text: str, expected: list[Any]) -> None:
    expression = parse_expression(text, SCHEMA)
    found = ds.dataset(pa.table(ROWS)).to_table(columns={"x": expression.arrow})["x"]
    assert found.to_pylist() == expected
    assert expression.evaluate(ROWS).type == expression.type


def test_the_columns_that_are_read_are_known_in_order_of_use() -> None:
    assert parse_expression("late and a > 1 and col('tail number') == 'x' or a < 0", SCHEMA).columns == (
        "late",
        "a",
        "tail number",
    )


REFUSED: list[tuple[str, str]] = [
    ("a >", "can't be parsed"),
    ("", "can't be parsed"),
    ("ai > 1", "at character 1: there is no column 'ai'. Did you mean a"),
    ("late and carier == 'AA'", "at character 10: there is no column 'carier'. Did you mean carrier"),
    ("loer(class_)", "there is no function 'loer'. Did you mean lower"),
    ("carrier > 5", "greater does not work on string and int64"),
    ("day > 'tomorrow'", "'tomorrow' is no date32"),
    ("a == None", "write is_null"),
    ("a in (1, None)", "add `or is_null"),
    ("a in (late,)", "list of constants"),
    ("a in 5", "`in` takes a list"),
    ("a is 5", "`is` takes None only"),
    ("a in ('x',)", "do not compare with int32"),
    ("late + 1", "add_checked does not work on bool and int64"),
    ("a and late", "and_kleene does not work on int32 and bool"),
    ("99999999999999999999 > a", "does not fit into 64 bits"),
    ("cast(a, 'integer')", "the second argument is a type in quotes"),
    ("starts_with(carrier, carrier)", "the second argument is a text in quotes"),
    ("hour(a, a)", "hour takes 1 arguments, not 2"),
    ("col(a)", "col takes one name in quotes"),
    ("hour(day)", "hour does not work on date32"),
]


@pytest.mark.parametrize(("text", "message"), REFUSED)
def test_a_fault_is_named_with_its_place(text: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_expression(text, SCHEMA, on="derive.x")
    assert message in str(error.value)
    assert "derive.x" in str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "a.__class__",
        "[a for a in (1, 2)]",
        "lambda: 1",
        "(a := 1)",
        "f'{a}'",
        "a ** 2",
        "a[0]",
        "print(a)",
        "open('/etc/passwd')",
        "hour(at, *[1])",
        "b'x'",
        "1j",
        "...",
        "a @ a",
        "(" * 300 + "a" + ")" * 300,
        "-" * 5000 + "a",
        "a" * 20_000,
    ],
)
def test_nothing_of_python_gets_through(text: str) -> None:
    with pytest.raises(UsageError):
        parse_expression(text, SCHEMA)


@given(st.text(max_size=40))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    with suppress(UsageError):
        parse_expression(text, SCHEMA)


def test_a_filter_says_true_or_false() -> None:
    assert parse_filter("a > 1", SCHEMA).type == pa.bool_()
    with pytest.raises(UsageError, match="true or false; expected bool; found int64"):
        parse_filter("a + 1", SCHEMA)


def test_derived_columns_have_known_types_and_may_use_those_before() -> None:
    schema = derived_schema(SCHEMA, [("slow", "a / 2"), ("slower", "slow > 1"), ("weekday_", "weekday(day)")])
    assert schema.names == [*SCHEMA.names, "slow", "slower", "weekday_"]
    assert [schema.field(name).type for name in ("slow", "slower", "weekday_")] == [
        pa.float64(),
        pa.bool_(),
        pa.int64(),
    ]
    with pytest.raises(UsageError, match=r"derive.late: there is such a column already"):
        derived_schema(SCHEMA, [("late", "a > 1")])
    with pytest.raises(NotFoundError):
        derived_schema(SCHEMA, [("x", "y + 1"), ("y", "a + 1")])


def test_a_value_that_can_not_be_computed_is_the_datas_fault() -> None:
    batch = pa.record_batch({"n": pa.array([2**62, 2**62]), "t": ["1", "x"]})
    for text in ("n + n", "cast(t, 'int64')"):
        with pytest.raises(DataError, match="can't be computed"):
            parse_expression(text, batch.schema).evaluate(batch)
