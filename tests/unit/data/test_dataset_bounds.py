"""What bounds say an expression may be covers what it is: held against evaluating it on every row."""

from __future__ import annotations

import datetime as dt
import math
import random
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.data.bounds import Possible, as_truth, possible
from pipelines.data.expressions import parse_expression
from pipelines.data.pruning import statistics_range
from pipelines.data.statistics import ColumnStatistics, plain_type

DAY, HOUR = dt.date(2013, 12, 30), dt.datetime(2013, 12, 30, 23)
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "i": (pa.int64(), [-3, 0, 1, 2]),
    "j": (pa.int64(), [0, 2, 2**53]),
    "u": (pa.uint64(), [0, 3, 2**53 - 1]),
    "x": (pa.float64(), [math.nan, -math.inf, -0.0, 0.0, 1.5, math.inf]),
    "y": (pa.float32(), [math.nan, 0.1, 2.0]),
    "s": (pa.string(), ["", "a", "b", "é"]),
    "z": (pa.string(), ["a", "c"]),
    "b": (pa.bool_(), [True, False]),
    "d": (pa.date32(), [DAY, DAY + dt.timedelta(days=1), DAY + dt.timedelta(days=3)]),
    "t": (pa.timestamp("ms"), [HOUR, HOUR + dt.timedelta(minutes=59), HOUR + dt.timedelta(days=3)]),
}
LITERALS = {
    "i": ["0", "1", "1.5", "-7"],
    "j": ["2", "9007199254740991", "9007199254740992.0"],
    "u": ["0", "3", "-1"],
    "x": ["0", "-0.0", "1.5", "9"],
    "y": ["0.1", "2", "5"],
    "s": ["'a'", "'é'", "'x'"],
    "z": ["'a'", "'b'"],
    "b": ["True", "False"],
    "d": ["'2013-12-31'", "'2014-01-01'"],
    "t": ["'2013-12-30 23:59:00'", "'2015-01-01'"],
}
SCHEMA = pa.schema([(name, type) for name, (type, _) in VALUES.items()])
GROUPS = 200


def _groups() -> list[dict[str, list[Any]]]:
    """Row groups of one to three rows: constants, nulls only, and all mixtures of the odd values."""
    source = random.Random(7)
    groups = []
    for _ in range(GROUPS):
        rows = source.choice([1, 1, 2, 3])
        group = {}
        for name, (_, values) in VALUES.items():
            pool = source.choice([[*values, None], values, [source.choice(values)], [None], values[:2]])
            group[name] = [source.choice(pool) for _ in range(rows)]
        groups.append(group)
    return groups


ROWS = _groups()
TABLE = {name: pa.array(chain.from_iterable(g[name] for g in ROWS), type) for name, (type, _) in VALUES.items()}
OWNER = np.repeat(np.arange(GROUPS), [len(g["i"]) for g in ROWS])


def _ranges() -> dict[str, Possible]:
    source, ranges = random.Random(8), {}
    for name, (type, _) in VALUES.items():
        bounds, nulls = [], []
        for group in ROWS:
            known = [v for v in group[name] if v is not None and v == v]
            told = bool(known) and source.random() > 0.1
            bounds.append((min(known), max(known)) if told else (None, None))
            nulls.append(group[name].count(None) if source.random() > 0.1 else None)
        low, high = (pa.array([b[i] for b in bounds], type).cast(plain_type(type)) for i in (0, 1))
        rows = pa.chunked_array([pa.array([len(g[name]) for g in ROWS])])
        ranges[name] = statistics_range(ColumnStatistics(low, high, pa.array(nulls, pa.int64())), rows)
    return ranges


RANGES = _ranges()


def _check(condition: str) -> np.ndarray:
    expression = parse_expression(condition, SCHEMA)
    held = expression.evaluate(TABLE, len(OWNER))
    truth = as_truth(possible(expression.operand, RANGES, GROUPS))
    for may, is_so in (
        (truth.true, pc.fill_null(held, False)),
        (truth.false, pc.fill_null(pc.invert(held), False)),
        (truth.null, pc.is_null(held)),
    ):
        seen = np.zeros(GROUPS, bool)
        seen[OWNER[is_so.to_numpy(zero_copy_only=False)]] = True
        missed = np.flatnonzero(seen & ~may)
        assert not len(missed), (condition, ROWS[missed[0]])
    return truth.true


def _leaves(name: str) -> list[str]:
    signs = ["==", "!="] if name == "b" else ["==", "!=", "<", "<=", ">", ">="]
    other = {"i": "j", "j": "x", "x": "y", "y": "i", "s": "z", "z": "s", "u": "u", "b": "b", "d": "d", "t": "t"}[name]
    found = [f"is_null({name})", f"is_null({name} == {LITERALS[name][0]})"]
    for sign in signs:
        found += [f"{name} {sign} {other}", f"{name} {sign} {name}"]
        for literal in LITERALS[name]:
            found += [f"{name} {sign} {literal}", f"{literal} {sign} {name}"]
            if name in "ijxy":
                found += [
                    f"-{name} {sign} {literal}",
                    f"floor({name} * 0.5) {sign} {literal}",
                    f"abs({name}) {sign} {literal}",
                ]
                found += [f"(coalesce({name}, 1)) {sign} {literal}", f"(0 if b else {name}) {sign} {literal}"]
            if name in "xy":
                found += [f"cast({name}, 'float64') {sign} {literal}", f"is_nan({name})"]
            if name == "t":
                found += [f"date(t) {sign} '2013-12-30'", f"year(t) {sign} 2013", f"hour(t) {sign} 22"]
            if name == "d":
                found += [f"year(d) {sign} 2013", f"month(d) {sign} 12"]
    if name != "b":
        found += [f"{name} in ({', '.join(LITERALS[name])})", f"{name} not in ({LITERALS[name][0]},)", f"{name} in ()"]
    return found + (["b", "not b", "b and i > 0", "(i > 0) == b"] if name == "b" else [])


@pytest.mark.parametrize("name", VALUES)
def test_comparisons_of_one_column(name: str) -> None:
    told = 0
    for condition in _leaves(name):
        told += not _check(condition).all()
        _check(f"not ({condition})")
    assert told > len(_leaves(name)) // 5  # most leave something out


conditions = st.recursive(
    st.sampled_from([leaf for name in VALUES for leaf in _leaves(name)]),
    lambda inner: st.one_of(
        inner.map("not ({})".format),
        st.tuples(inner, st.sampled_from(["and", "or", "=="]), inner).map(lambda p: f"({p[0]}) {p[1]} ({p[2]})"),
        st.tuples(inner, inner).map("coalesce({0[0]}, {0[1]})".format),
        st.tuples(inner, inner, inner).map("(({0[0]}) if ({0[1]}) else ({0[2]}))".format),
        inner.map("is_null({})".format),
    ),
    max_leaves=5,
)


@settings(max_examples=150)
@given(conditions)
def test_conditions_of_conditions(condition: str) -> None:
    _check(condition)


def test_columns_without_bounds_may_be_anything() -> None:
    expression = parse_expression("i > 3 and not b", SCHEMA)
    truth = as_truth(possible(expression.operand, {}, 2))
    assert truth.true.all()
    assert truth.false.all()
    assert truth.null.all()
