"""Do scikit-learn's and dask-ml's transformers work as steps: fitted, stored with skops, the same after loading?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask
import numpy as np
import pyarrow as pa
import pytest
from sklearn.decomposition import IncrementalPCA
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.preprocessing import PowerTransformer

from pipelines.data.split import SplitPlan
from pipelines.errors import UserCodeError
from pipelines.features import FeatureConfig, FeaturePlan, Fitted, LabelConfig, fit_features
from pipelines.features.steps import Foreign

Fit = Callable[..., Fitted]


@pytest.fixture(scope="module")
def table() -> pa.Table:
    rng = np.random.default_rng(0)
    return pa.table(
        {
            "a": rng.lognormal(0, 1, 300),
            "b": rng.normal(0, 1, 300).astype(np.float32),
            "n": rng.integers(0, 5, 300),
            "w": rng.choice(["x", "y", "z"], 300),
            "t": rng.choice(["late again", "on time", "never late", ""], 300),
        }
    )


NUMBERS = {
    "sklearn.preprocessing.PowerTransformer": {},
    "sklearn.preprocessing.QuantileTransformer": {"n_quantiles": 50},
    "sklearn.preprocessing.PolynomialFeatures": {"degree": 2},
    "sklearn.preprocessing.SplineTransformer": {},
    "sklearn.decomposition.PCA": {"n_components": 2},
    "sklearn.kernel_approximation.RBFSampler": {"n_components": 8},
    "sklearn.impute.KNNImputer": {},
    "dask_ml.preprocessing.StandardScaler": {},
    "dask_ml.preprocessing.MinMaxScaler": {},
    "dask_ml.preprocessing.RobustScaler": {},
    "dask_ml.preprocessing.QuantileTransformer": {"n_quantiles": 50},
    "dask_ml.preprocessing.PolynomialFeatures": {},
    "dask_ml.decomposition.PCA": {"n_components": 2},
    "dask_ml.decomposition.TruncatedSVD": {"n_components": 1},
}


# dask-ml's modules take seconds to import: most of them are left to the slow tests.
SLOW = [path for path in NUMBERS if path.startswith("dask_ml.") and path != "dask_ml.preprocessing.StandardScaler"]


@pytest.mark.parametrize("path", [pytest.param(path, marks=[pytest.mark.slow] * (path in SLOW)) for path in NUMBERS])
def test_transformers_of_numbers(fit: Fit, table: pa.Table, path: str) -> None:
    feature = {"columns": ["a", "b"], "transform": path, "params": NUMBERS[path]}
    plan = fit(table, "n", feature).plan
    assert plan.python_only
    found = plan.transform(table)
    again = FeaturePlan.from_files(plan.files())
    assert again.digest == plan.digest
    np.testing.assert_array_equal(again.transform(table), found)
    assert np.isfinite(found).all()
    assert len(set(plan.names)) == len(plan.names) == found.shape[1]


def test_dask_ml_computes_in_the_process_that_calls_it(fit: Fit, table: pa.Table) -> None:
    feature = {"columns": ["a", "b"], "transform": "dask_ml.preprocessing.QuantileTransformer"}
    with dask.config.set(scheduler="dask.distributed"):  # as after Client(); there is none
        fit(table, {**feature, "params": {"n_quantiles": 100}}).plan.transform(table)


def test_the_values_are_those_of_the_transformer_itself(fit: Fit, table: pa.Table) -> None:
    feature = {"columns": ["a", "b"], "transform": "sklearn.preprocessing.PowerTransformer"}
    found = fit(table, feature).plan.transform(table)
    columns = np.column_stack([table["a"].to_numpy(), table["b"].to_numpy().astype(np.float64)])
    # Fitted on the same rows in another order: the search for lambda ends within its tolerance.
    np.testing.assert_allclose(found, PowerTransformer().fit_transform(columns), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("sparse", [False, True])
def test_encoders_of_words(fit: Fit, table: pa.Table, sparse: bool) -> None:
    feature = {
        "columns": ["w", "n"],
        "transform": "sklearn.preprocessing.OneHotEncoder",
        "params": {"handle_unknown": "ignore"},
    }
    plan = fit(table, "a", feature, "w", sparse=sparse).plan
    found = plan.transform(table)
    found = np.asarray(found.toarray() if sparse else found)
    assert plan.names[1:4] == ("w_x", "w_y", "w_z")
    expected = np.stack([np.array(table["w"].to_pylist()) == word for word in "xyz"], axis=1)
    np.testing.assert_array_equal(found[:, 1:4], expected)
    np.testing.assert_array_equal(found[:, -3:], expected)


def test_texts_become_a_sparse_matrix(fit: Fit, table: pa.Table) -> None:
    path = "sklearn.feature_extraction.text.HashingVectorizer"
    plan = fit(table, {"columns": "t", "transform": path, "params": {"n_features": 256}}, "a").plan
    assert plan.sparse
    expected = HashingVectorizer(n_features=256).transform(table["t"].to_pylist()).toarray()
    np.testing.assert_allclose(plan.transform(table).toarray()[:, :256], expected.astype(np.float32))
    again = FeaturePlan.from_files(plan.files())
    assert (again.transform(table) != plan.transform(table)).nnz == 0


def test_the_sample_is_seeded_capped_and_recorded(fit: Fit, table: pa.Table) -> None:
    def step(**more: Any) -> tuple[Foreign, str]:
        feature = {"columns": "a", "transform": "sklearn.preprocessing.QuantileTransformer", **more}
        plan = fit(table, {**feature, "params": {"n_quantiles": 20}}).plan
        found = plan.steps[0]
        assert isinstance(found, Foreign)
        return found, plan.digest

    few, digest = step(sample_rows=100)
    assert (few.rows, few.seed, few.fit) == (100, 0, "sample")
    assert step(sample_rows=100)[1] == digest
    assert step(sample_rows=100, seed=1)[1] != digest
    assert step()[0].rows == 300


def test_incremental_fits_see_every_training_row(make: Callable[..., Any], table: pa.Table) -> None:
    made = make(table.append_column("y", pa.array(np.arange(300) % 2)))
    feature = FeatureConfig(
        columns=("a", "b", "n"),
        transform="sklearn.decomposition.IncrementalPCA",
        params={"n_components": 2, "batch_size": 400},
        fit="incremental",
    )
    split = SplitPlan("hash", None, 0.0, 0.3, 4)
    plans = [
        fit_features([feature], LabelConfig(column="y"), made.source, made.shards(shards), split).plan
        for shards in (1, 1, 7)
    ]
    assert plans[0].digest == plans[1].digest
    train = made.parts(split) == 0
    for plan in plans:
        (step,) = plan.steps
        assert isinstance(step, Foreign)
        assert (step.rows, step.fit) == (int(train.sum()), "incremental")
    columns = np.column_stack([table[name].to_numpy().astype(np.float64) for name in "abn"])
    expected = IncrementalPCA(2, batch_size=1000).fit(columns[train]).transform(columns)
    # Incremental PCA depends on its batches; the first component of these data hardly does.
    assert abs(np.corrcoef(plans[0].transform(table)[:, 0], expected[:, 0])[0, 1]) > 0.99


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"transform": "sklearn.preprocessing.NoSuchScaler"}, "can't be imported"),
    ({"transform": "no_such_package.Scaler"}, "can't be imported"),
    ({"transform": "math.sqrt"}, "is not a transformer"),
    ({"transform": "sklearn.preprocessing.PowerTransformer", "params": {"lambda": 2}}, "can't be made with params"),
    ({"transform": "sklearn.preprocessing.PowerTransformer", "params": {"method": "box-cox"}}, "failed in fit"),
    ({"transform": "sklearn.preprocessing.PowerTransformer", "fit": "incremental"}, "has no partial_fit"),
]


@pytest.mark.parametrize(("feature", "message"), REFUSED)
def test_a_transformer_that_fails_is_named(fit: Fit, table: pa.Table, feature: dict[str, Any], message: str) -> None:
    with pytest.raises(UserCodeError) as caught:
        fit(table, {"columns": ["b"], **feature})
    assert message in str(caught.value)
    assert feature["transform"] in str(caught.value)
    assert caught.value.exit_code == 4


def test_files_say_which_types_are_trusted(fit: Fit, table: pa.Table) -> None:
    plan = fit(table, {"columns": ["a", "b"], "transform": "dask_ml.preprocessing.StandardScaler"}).plan
    (step,) = plan.steps
    assert isinstance(step, Foreign)
    assert step.trusted == ("dask_ml.preprocessing.data.StandardScaler",)
    assert set(plan.files()) == {"plan.json", "categories.arrow", "transform0.skops"}
