"""Do our steps compute what scikit-learn's transformers of the same name do?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from sklearn.feature_extraction import FeatureHasher
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    KBinsDiscretizer,
    MinMaxScaler,
    OneHotEncoder,
    OrdinalEncoder,
    RobustScaler,
    StandardScaler,
)

from pipelines.features import Fitted

Fit = Callable[..., Fitted]

# Of a float64 column our result is the float64 formula, rounded to float32 once (relative 6e-8). Of a float32 column
# the difference, the product and the inverse scale are rounded too: three roundings, relative to the result, and what
# the centre's rounding to 48 bits leaves.
ONE_ROUNDING = {"rtol": 6.1e-8, "atol": 1e-9}
THREE_ROUNDINGS = {"rtol": 2.5e-7, "atol": 1e-9}


def numbers(rows: int = 3000, gaps: bool = True, single: bool = False) -> tuple[pa.Table, np.ndarray]:
    rng = np.random.default_rng(3)
    columns = np.column_stack(
        [rng.normal(1e4, 3.0, rows), rng.lognormal(0, 2, rows), rng.integers(0, 7, rows), np.full(rows, 3.5)]
    )
    if single:
        columns = columns.astype(np.float32).astype(np.float64)
    if gaps:
        columns[:, :2][rng.random((rows, 2)) < 0.1] = np.nan
    kind = pa.float32() if single else pa.float64()
    table = pa.table({f"x{place}": pa.array(columns[:, place], kind) for place in range(4)})
    return table, columns


def transformed(fit: Fit, table: pa.Table, **feature: Any) -> np.ndarray:
    plan = fit(table, {"columns": table.column_names, **feature}, sparse=False).plan
    return np.asarray(plan.transform(table))


SCALERS = {"standard": StandardScaler(), "minmax": MinMaxScaler(), "robust": RobustScaler()}


@pytest.mark.parametrize("single", [False, True], ids=["float64", "float32"])
@pytest.mark.parametrize("scale", SCALERS)
def test_scaling(fit: Fit, scale: str, single: bool) -> None:
    table, columns = numbers(single=single)
    found = transformed(fit, table, scale=scale, impute="none")
    expected = SCALERS[scale].fit_transform(columns)
    tolerance = THREE_ROUNDINGS if single else ONE_ROUNDING
    # x0 lies 3,000 deviations from zero: scikit-learn's own float64 sums are good to 1e-13 of the mean there.
    np.testing.assert_allclose(found, expected, **tolerance)


@pytest.mark.parametrize("strategy", ["mean", "median", "most_frequent"])
def test_imputation(fit: Fit, strategy: str) -> None:
    table, columns = numbers()
    found = transformed(fit, table, scale="none", impute=strategy)
    # The mean is rounded to 32 bits below the deviation: 2e-10 of it.
    np.testing.assert_allclose(found, SimpleImputer(strategy=strategy).fit_transform(columns), rtol=6.1e-8)


def test_imputation_by_a_constant_and_its_indicator(fit: Fit) -> None:
    table, columns = numbers()
    found = transformed(fit, table.select(["x0"]), scale="none", impute={"constant": -1.5}, missing_indicator=True)
    expected = SimpleImputer(strategy="constant", fill_value=-1.5, add_indicator=True).fit_transform(columns[:, :1])
    np.testing.assert_allclose(found, expected, rtol=6.1e-8)
    np.testing.assert_array_equal(found[:, 1:], MissingIndicator().fit_transform(columns[:, :1]))


def test_scaling_then_imputation_is_a_pipeline_in_that_order(fit: Fit) -> None:
    table, columns = numbers()
    found = transformed(fit, table, scale="standard", impute="mean")
    expected = make_pipeline(StandardScaler(), SimpleImputer()).fit_transform(columns)
    np.testing.assert_allclose(found, expected, rtol=6.1e-8, atol=1e-8)


@pytest.mark.parametrize("bins", [2, 5, 16])
@pytest.mark.parametrize("by", ["quantile", "uniform"])
def test_bins(fit: Fit, by: str, bins: int) -> None:
    table, columns = numbers(gaps=False)
    for place, encode, form in ((1, "ordinal", "ordinal"), (0, "one_hot", "onehot-dense")):
        reference = KBinsDiscretizer(n_bins=bins, strategy=by, encode=form, quantile_method="linear", subsample=None)
        found = transformed(fit, table.select([f"x{place}"]), bins=bins, bin_by=by, encode=encode)
        np.testing.assert_array_equal(found, reference.fit_transform(columns[:, [place]]))


def words(rows: int = 2000) -> tuple[pa.Table, np.ndarray]:
    rng = np.random.default_rng(5)
    carriers = rng.choice(["UA", "B6", "AA", "é", "zz"], rows, p=[0.5, 0.2, 0.2, 0.09, 0.01])
    hours = rng.integers(0, 24, rows)
    return pa.table({"carrier": carriers, "hour": hours}), np.column_stack([carriers.astype(object), hours])


def test_one_hot(fit: Fit) -> None:
    table, columns = words()
    found = transformed(fit, table, encode="one_hot")
    np.testing.assert_array_equal(found, OneHotEncoder(sparse_output=False).fit_transform(columns).astype(np.float32))


@pytest.mark.parametrize("limits", [{"max_categories": 4}, {"min_frequency": 100}, {"min_frequency": 0.05}])
def test_infrequent_categories_share_the_last_column(fit: Fit, limits: dict[str, Any]) -> None:
    table, columns = words()
    plan = fit(table, {"columns": ["carrier"], "encode": "one_hot", **limits}, sparse=False).plan
    # scikit-learn counts the shared category in max_categories, we do not.
    theirs = {name: value + 1 if name == "max_categories" else value for name, value in limits.items()}
    reference = OneHotEncoder(sparse_output=False, handle_unknown="infrequent_if_exist", **theirs).fit(columns[:, :1])
    unknown = pa.table({"carrier": [*table["carrier"].to_pylist(), "never seen"]})
    expected = reference.transform(np.array([*columns[:, 0], "never seen"], object)[:, None])
    np.testing.assert_array_equal(np.asarray(plan.transform(unknown)), expected.astype(np.float32))
    assert plan.names[-1] == "carrier=(other)"


def test_ordinal_codes(fit: Fit) -> None:
    table, columns = words()
    plan = fit(table, {"columns": ["carrier", "hour"], "encode": "ordinal"}).plan
    reference = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1, encoded_missing_value=-1)
    reference.fit(columns)
    other = pa.table({"carrier": ["UA", "never seen", None], "hour": pa.array([3, 99, None], pa.int64())})
    asked = np.array(
        [["UA", 3], ["never seen", 99], ["never seen", 99]], object
    )  # OrdinalEncoder was fitted without None
    np.testing.assert_array_equal(np.asarray(plan.transform(other)), reference.transform(asked))
    np.testing.assert_array_equal(np.asarray(plan.transform(table)), reference.transform(columns))


def test_hashed_values_spread_and_collide_as_a_feature_hasher_lets_them(fit: Fit) -> None:
    rng = np.random.default_rng(7)
    values = [f"user-{n}" for n in rng.integers(0, 100_000, 5000)]
    table, buckets = pa.table({"user": values}), 512
    found = np.asarray(
        fit(table, {"columns": ["user"], "encode": "hash", "buckets": buckets}, sparse=False).plan.transform(table)
    )
    assert (found.sum(axis=1) == 1).all()
    theirs = (
        FeatureHasher(buckets, input_type="string", alternate_sign=False).transform([[v] for v in values]).toarray()
    )
    for matrix in (found, theirs):
        # Each value in one bucket; bucket sizes as of a fair draw: chi² of 511 degrees is within five sigma of 511.
        of = matrix.argmax(axis=1)
        first = {value: of[place] for place, value in reversed(list(enumerate(values)))}
        assert all(first[value] == of[place] for place, value in enumerate(values))
        sizes = np.bincount(list(first.values()), minlength=buckets)
        expected = len(first) / buckets
        assert abs(((sizes - expected) ** 2 / expected).sum() - 511) < 5 * (2 * 511) ** 0.5
