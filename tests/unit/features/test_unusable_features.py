"""Is a feature that can't be used refused with its place, the cause and a remedy, all faults at once?"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pipelines.data.split import SplitPlan
from pipelines.errors import DataError, SpecError
from pipelines.features import FeatureConfig, Fitted, LabelConfig, check_features, fit_features

Fit = Callable[..., Fitted]

SCHEMA = pa.schema(
    {
        "distance": pa.float64(),
        "carrier": pa.string(),
        "plane": pa.dictionary(pa.int32(), pa.string()),
        "day": pa.date32(),
        "at": pa.timestamp("us"),
        "lasts": pa.duration("s"),
        "route": pa.list_(pa.string()),
        "crew": pa.struct({"name": pa.string()}),
        "photo": pa.binary(),
        "empty": pa.null(),
        "tail": pa.bool_(),
        "late": pa.bool_(),
    }
)

FAULTS: list[tuple[Any, str, str]] = [
    ("distanse", "features[0].columns", "Did you mean distance?"),
    ("late", "features[0].columns", "a model must not see what it predicts"),
    ("route", "features[0].columns", "derive plain columns"),
    ("crew", "features[0].columns", "derive plain columns"),
    ("photo", "features[0].columns", "Derive a number"),
    ("empty", "features[0].columns", "null in every file"),
    ({"columns": "carrier", "scale": "standard"}, "features[0]", "Encode it, or cast it"),
    ({"columns": "plane", "bins": 3}, "features[0]", "Encode it, or cast it"),
    ({"columns": "carrier", "impute": "median"}, "features[0]", "Encode it, or cast it"),
    ({"columns": "carrier", "dates": ["year"]}, "features[0].dates", "Cast it with derive"),
    ({"columns": "day", "dates": ["hour"]}, "features[0].dates", "has no hour"),
    ({"columns": "day", "encode": "one_hot"}, "features[0].encode", "Say with dates"),
    ({"columns": "at", "bins": 3}, "features[0].bins", "Say with dates"),
    ({"columns": "at", "dates": ["hour"], "timezone": "Atlantis/Capital"}, "features[0].timezone", "Europe/Lisbon"),
    ({"columns": "day", "dates": ["year"], "timezone": "UTC"}, "features[0].timezone", "Remove timezone"),
    ({"columns": "at", "dates": ["hour_cyclic"], "impute": {"constant": 24}}, "features[0].impute", "24 is not a hour"),
    (
        {"columns": "at", "dates": ["hour"], "impute": {"constant": "noon"}},
        "features[0].impute",
        "'noon' is not a part",
    ),
    ({"columns": "at", "impute": {"constant": 3}}, "features[0].impute", "which no one constant fits"),
    ({"columns": "distance", "impute": {"constant": "far"}}, "features[0].impute.constant", "Give a value"),
    ({"columns": "carrier", "impute": {"constant": 7}}, "features[0].impute.constant", "Give a value"),
    (
        {"columns": "tail", "encode": "one_hot", "impute": {"constant": 1}},
        "features[0].impute.constant",
        "Give a value",
    ),
    ({"columns": "lasts", "encode": "one_hot"}, "features[0].encode", "Remove encode"),
    ({"columns": "lasts", "impute": "most_frequent"}, "features[0].impute", "Use impute: median"),
    (
        {"columns": "day", "transform": "sklearn.preprocessing.PowerTransformer"},
        "features[0].columns",
        "Derive its parts",
    ),
]


@pytest.mark.parametrize(("feature", "path", "message"), FAULTS, ids=[str(case[0]) for case in FAULTS])
def test_a_feature_that_does_not_fit_its_column_is_a_fault_of_the_spec(feature: Any, path: str, message: str) -> None:
    (fault,) = check_features([FeatureConfig.model_validate(feature)], LabelConfig(column="late"), SCHEMA)
    assert fault.path.startswith(path)
    assert message in str(fault)
    assert fault.fix


def test_all_faults_come_at_once() -> None:
    features = [FeatureConfig.model_validate(feature) for feature in (["distanse", "route"], "late", "day")]
    faults = check_features(features, LabelConfig(column="lat"), SCHEMA)
    assert [fault.path for fault in faults] == [
        "label.column", "features[0].columns", "features[0].columns",
    ]  # fmt: skip
    assert [fault.path for fault in check_features([], LabelConfig(column="late"), SCHEMA)] == ["features"]


def test_faults_of_the_spec_come_before_any_data_is_read(fit: Fit) -> None:
    with pytest.raises(SpecError, match=r"2 faults\n.*features\[0\].*\n.*features\[1\]"):
        fit(pa.table({"x": [1, 2]}), "z", {"columns": "x", "dates": ["year"]})


def test_infinities_are_named_with_column_count_and_file(fit: Fit) -> None:
    table = pa.table({"x": [1.0, 2, 3, float("inf"), float("-inf"), 4], "z": [float("inf"), 1, 2, 3, 4, 5]})
    with pytest.raises(DataError) as caught:
        fit(table, ["x", "z"])
    text = str(caught.value)
    assert "2 columns have infinities" in text
    assert "x: 2, the first in part-1.parquet" in text
    assert "z: 1, the first in part-0.parquet" in text
    assert "infinities: missing" in text


def test_infinities_outside_of_training_are_refused_too(make: Callable[..., Any]) -> None:
    made = make(pa.table({"x": [1.0, float("inf")] * 50, "k": [0, 1] * 50, "y": [0, 1, 1, 0] * 25}))
    splits = [SplitPlan("hash", "k", 0.0, 0.5, seed) for seed in range(20)]
    split = next(s for s in splits if sorted(set(made.parts(s)[:2])) == [0, 2] and made.parts(s)[1] == 2)
    with pytest.raises(DataError, match="x: 50, the first in"):
        fit_features([FeatureConfig(columns=("x",))], LabelConfig(column="y"), made.source, made.shards(2), split)


def test_infinities_may_count_as_missing(fit: Fit) -> None:
    table = pa.table({"x": [1.0, float("inf"), None, 3.0]})
    feature = {"columns": "x", "infinities": "missing", "scale": "none", "impute": "mean"}
    assert fit(table, feature).plan.transform(table)[:, 0].tolist() == [1.0, 2.0, 2.0, 3.0]


NOTHING = pa.table({"x": pa.nulls(4, pa.float64()), "w": pa.nulls(4, pa.string()), "n": [1, 2, 3, 4]})


@pytest.mark.parametrize(
    "feature",
    [
        "x",
        {"columns": "x", "scale": "robust", "impute": "none"},
        {"columns": "x", "scale": "none", "impute": "median"},
        {"columns": "x", "impute": "most_frequent", "scale": "none"},
        {"columns": "x", "bins": 3},
        "w",
    ],
    ids=str,
)
def test_a_column_without_values_is_refused_where_something_must_be_learned_from_it(fit: Fit, feature: Any) -> None:
    with pytest.raises(DataError, match=r"column \w \(features\[1\]\): every value is missing.*Remove the column"):
        fit(NOTHING, "n", feature)


def test_a_column_without_values_may_pass_through(fit: Fit) -> None:
    plan = fit(NOTHING, {"columns": ["x", "n"]}, categorical="native").plan
    assert np.isnan(plan.transform(NOTHING)[:, 0]).all()


def test_numbers_beyond_float32_are_refused_unless_they_are_scaled(fit: Fit) -> None:
    table = pa.table({"x": [1e39, -1e39, 3e38]})
    with pytest.raises(DataError, match=r"do not fit float32.*Use scale: standard"):
        fit(table, {"columns": "x", "scale": "none"})
    assert np.isfinite(fit(table, {"columns": "x", "scale": "standard"}).plan.transform(table)).all()


def test_a_variance_beyond_float64_is_refused(fit: Fit) -> None:
    with pytest.raises(DataError, match=r"variance of its values is beyond float64.*Rescale or clip"):
        fit(pa.table({"x": [1e300, -1e300, 0.0]}), "x")


@pytest.fixture
def few_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cap on distinct values that a small test can pass."""
    monkeypatch.setattr("pipelines.features.scan.MOST_DISTINCT", 50)


@pytest.mark.usefixtures("few_allowed")
def test_too_many_categories_are_refused_or_hashed(fit: Fit) -> None:
    table = pa.table({"user": [f"u{n}" for n in range(100)]})
    with pytest.raises(DataError, match=r"too many distinct values for a dictionary.*Use encode: hash, or auto"):
        fit(table, {"columns": "user", "encode": "one_hot"})
    plan = fit(table, {"columns": "user", "encode": "auto", "buckets": 64}).plan
    assert len(plan.names) == 64
    plan = fit(table, "user", categorical="native").plan
    assert (plan.names, plan.types) == (("user:hash",), ("c",))
    with pytest.raises(DataError, match=r"too many distinct values to tell the most frequent"):
        fit(pa.table({"x": np.arange(100.0)}), {"columns": "x", "impute": "most_frequent"})


def test_min_frequency_that_no_category_reaches_is_refused(fit: Fit) -> None:
    with pytest.raises(DataError, match=r"no category reaches min_frequency: 3.*Lower min_frequency"):
        fit(pa.table({"w": ["a", "b", "a", "b"]}), {"columns": "w", "min_frequency": 3})


def test_dates_are_never_taken_for_numbers(fit: Fit) -> None:
    days = [dt.date(2013, 1, 1) + dt.timedelta(days=7 * n) for n in range(10)]
    table = pa.table({"day": days})
    assert fit(table, "day", categorical="native").plan.names == ("day:year", "day:month", "day:day", "day:weekday")
    assert fit(table, "day").plan.names[:2] == ("day:year", "day:month_sin")
