"""Do golden rows tell a model that predicts something else from one that does not?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from pipelines.errors import CorruptArtifactError
from pipelines.model import Golden, GoldenRowsError, Model, golden_rows
from pipelines.model.linear import LinearPredictor
from pipelines.model.synthetic import synthetic_rows


def nudged(model: Model, by: float) -> Model:
    """The same linear model with its intercept moved."""
    old = model.predictor
    assert isinstance(old, LinearPredictor)
    return replace(model, predictor=replace(old, intercept=old.intercept + by))


def test_a_model_agrees_with_its_golden_rows_after_the_trip_to_storage(model):
    golden = Golden.from_files(golden_rows(model).files())
    golden.check(Model.from_files(model.files()))
    assert golden.synthetic
    assert golden.inputs.num_rows == 64


@pytest.mark.parametrize("name", ["linear binary", "linear multiclass", "linear regression"])
def test_a_model_that_moved_beyond_the_tolerance_is_told(models, name):
    golden = golden_rows(models[name])
    by = 1e-3 * np.arange(1, len(models[name].predictor.intercept) + 1)  # softmax does not see a common shift
    with pytest.raises(GoldenRowsError, match=r"of 64 golden rows.*expected .*; found"):
        golden.check(nudged(models[name], by))


def test_rounding_within_the_tolerance_is_no_difference(models):
    golden_rows(models["linear binary"]).check(nudged(models["linear binary"], 1e-12))


def test_another_threshold_is_told_though_probabilities_agree(models):
    model = models["xgboost binary"]
    with pytest.raises(GoldenRowsError, match="column 'prediction'"):
        golden_rows(model).check(model.with_threshold(0.99))


def test_other_columns_are_told(models):
    with pytest.raises(GoldenRowsError, match="other columns"):
        golden_rows(models["linear multiclass"]).check(models["linear regression"])


def test_a_label_that_was_a_tie_within_the_tolerance_may_fall_either_way(models):
    model = models["linear binary"]
    golden = golden_rows(model)
    row = int(np.argmin(np.abs(golden.expected["probability"].to_numpy() - 0.5)))
    # Put the threshold right on the row's probability, then move the probability below it by rounding.
    tied = model.with_threshold(float(golden.expected["probability"][row].as_py()))
    at = golden_rows(tied)
    at.check(nudged(tied, -1e-13))


def test_invented_rows_hold_nulls_unknown_categories_and_values_out_of_range(make):
    table = synthetic_rows(make.plan(), 400, seed=1)
    assert table.slice(0, 1).to_pylist() == [{"distance": None, "delay": None, "carrier": None}]
    carriers = set(table["carrier"].to_pylist())
    assert {"AA", "B6", "DL", "UA", None} < carriers
    assert len(carriers) == 6
    distances = [value for value in table["distance"].to_pylist() if value is not None]
    assert min(distances) < 0 < 1000 < max(distances)
    assert table.equals(synthetic_rows(make.plan(), 400, seed=1))
    assert not table.equals(synthetic_rows(make.plan(), 400, seed=2))


def test_even_rows_hold_only_what_training_had(make):
    table = synthetic_rows(make.plan(), 400, seed=1, odd=False)
    assert table["distance"].null_count == table["carrier"].null_count == 0
    assert set(table["carrier"].to_pylist()) == {"AA", "B6", "DL", "UA"}


def test_a_model_that_refuses_nulls_gets_rows_without(make):
    from sklearn.linear_model import LogisticRegression

    model = make.skops("binary", LogisticRegression())
    strict = replace(model, features=make.plan(fill=None))  # missing numbers reach the estimator, which refuses them
    golden = golden_rows(strict)
    golden.check(strict)
    assert golden.inputs["distance"].null_count == 0


def test_a_sample_is_used_as_given(models, make):
    table = make.rows(100)
    golden = golden_rows(models["xgboost binary"], sample=table.append_column("name", pa.array(["x"] * 100)), rows=10)
    assert not golden.synthetic
    assert golden.inputs.equals(table.slice(0, 10))


@pytest.mark.parametrize("name", ["golden.json", "inputs.arrow", "expected.arrow"])
def test_damaged_golden_rows_are_told(models, name):
    files = golden_rows(models["linear binary"]).files()
    with pytest.raises(CorruptArtifactError):
        Golden.from_files(files | {name: files[name][:20]})


@pytest.mark.parametrize("type_", [
    pa.bool_(), pa.int8(), pa.uint8(), pa.int64(), pa.uint64(), pa.float16(), pa.float32(), pa.decimal128(12, 3),
    pa.date32(), pa.date64(), pa.timestamp("s"), pa.timestamp("ns", "UTC"), pa.time32("s"), pa.duration("us"),
    pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string()),
], ids=str)  # fmt: skip
def test_rows_can_be_invented_for_every_type_that_features_read(type_):
    from pipelines.features import FeaturePlan
    from pipelines.features.stored import Stored

    plan = FeaturePlan(Stored(pa.schema([("x", type_)]), ()))
    table = synthetic_rows(plan, 50, seed=0)
    assert table.schema == plan.input_schema
    assert table["x"].null_count < 50
